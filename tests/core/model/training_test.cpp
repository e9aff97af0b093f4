#include "core/model/training.hpp"

#include "core/errors.hpp"
#include "core/model/workload.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::training_test {
namespace {

constexpr auto small_gpt = "model: gpt\nlayers: 2\nhidden: 8\nheads: 2\nvocabulary: 50\nsequence: 8\n";

Training training_of(const std::string& keys)
{
  return workload_from_text(small_gpt + keys, "x.yaml").training;
}

std::string fault_of(const std::string& keys)
{
  try {
    training_of(keys);
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "none";
}

void expect_rates(const Training& training, const std::vector<double>& expected)
{
  for (std::uint64_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(learning_rate_at(training, step), expected[step], 1e-17) << "step " << step;
  }
}

TEST(LearningRate, IsConstantUnlessTheWorkloadSaysOtherwise)
{
  expect_rates(training_of(""), {0.01, 0.01, 0.01});
  expect_rates(training_of("learning_rate: 0.3\n"), {0.3, 0.3});
}

// The numbers below were printed by torch 2.11.0 and transformers 4.57.6: param_groups[0]["lr"] before each step of
// AdamW.

TEST(LearningRate, RisesAsTransformersConstantScheduleWithWarmup)
{
  expect_rates(training_of("learning_rate: 0.003\nwarmup_steps: 4\n"),
               {0, 0.00075, 0.0015, 0.0022500000000000003, 0.003, 0.003, 0.003});
}

TEST(LearningRate, FallsAsTransformersLinearScheduleWithWarmup)
{
  expect_rates(training_of("learning_rate: 0.003\nwarmup_steps: 3\nlearning_rate_decay: linear\ndecay_steps: 10\n"),
               {0, 0.001, 0.002, 0.003, 0.0025714285714285713, 0.002142857142857143, 0.0017142857142857142,
                0.0012857142857142856, 0.0008571428571428571, 0.00042857142857142855, 0, 0, 0});
}

TEST(LearningRate, FallsAsTransformersCosineSchedulesWithWarmup)
{
  const std::string cosine = "learning_rate: 0.003\nwarmup_steps: 3\nlearning_rate_decay: cosine\ndecay_steps: 10\n";
  expect_rates(training_of(cosine),
               {0, 0.001, 0.002, 0.003, 0.002851453301853629, 0.0024352347027881004, 0.0018337814009344716,
                0.0011662185990655284, 0.0005647652972118998, 0.00014854669814637144, 0});
  expect_rates(training_of(cosine + "min_learning_rate: 0.0003\n"),
               {0, 0.001, 0.002, 0.003, 0.0028663079716682656, 0.0024917112325092907, 0.0019504032608410242,
                0.0013495967391589756, 0.0008082887674907098, 0.0004336920283317343, 0.0003});
}

TEST(LearningRate, FallsAsTorchsCosineAnnealingLrAndLinearLr)
{
  const std::string rates = "learning_rate: 0.003\ndecay_steps: 8\nmin_learning_rate: 0.0003\nlearning_rate_decay: ";
  expect_rates(training_of(rates + "cosine\n"),
               {0.003, 0.0028972373688902374, 0.002604594154601839, 0.0021666226336928716, 0.0016500000000000002,
                0.001133377366307129, 0.000695405845398161, 0.00040276263110976295, 0.0003});
  expect_rates(training_of(rates + "linear\n"),
               {0.003, 0.0026625, 0.002325, 0.0019874999999999997, 0.0016499999999999998, 0.0013124999999999996,
                0.0009749999999999997, 0.0006374999999999997, 0.0003, 0.0003, 0.0003});
}

TEST(LearningRate, StaysAtItsLowestAfterTheDecay)
{
  for (const std::string decay : {"linear", "cosine"}) {
    const Training training = training_of("decay_steps: 8\nmin_learning_rate: 0.001\nlearning_rate_decay: " + decay);
    for (const std::uint64_t step : {8U, 9U, 16U, 1'000'000'000U}) EXPECT_EQ(learning_rate_at(training, step), 0.001);
  }
}

TEST(TrainingKeys, SetTheConstantsOfTheOptimizer)
{
  const Training adamw = training_of("optimizer: adamw\nbeta1: 0.8\nbeta2: 0.95\nepsilon: 1.0e-6\n");
  EXPECT_EQ(adamw.beta1, 0.8);
  EXPECT_EQ(adamw.beta2, 0.95);
  EXPECT_EQ(adamw.epsilon, 1e-6);
  EXPECT_EQ(training_of("optimizer: momentum\nmomentum: 0.5\n").momentum, 0.5);
  const Training usual = training_of("optimizer: adam\n");
  EXPECT_EQ(usual.beta1, 0.9);
  EXPECT_EQ(usual.beta2, 0.999);
  EXPECT_EQ(usual.epsilon, 1e-8);
  EXPECT_EQ(training_of("optimizer: momentum\n").momentum, 0.9);
}

TEST(TrainingKeys, GoWithTheOptimizerThatHasThem)
{
  EXPECT_EQ(fault_of("beta1: 0.9\noptimizer: momentum\nbeta2: 0.9\nepsilon: 1.0e-6\n"),
            "x.yaml:7: beta1: goes with optimizer: adam or adamw; leave it out\n"
            "x.yaml:9: beta2: goes with optimizer: adam or adamw; leave it out\n"
            "x.yaml:10: epsilon: goes with optimizer: adam or adamw; leave it out");
  EXPECT_EQ(fault_of("optimizer: adam\nmomentum: 0.9\n"),
            "x.yaml:8: momentum: goes with optimizer: momentum; leave it out");
}

TEST(TrainingKeys, AreInTheirRanges)
{
  EXPECT_EQ(fault_of("optimizer: adam\nbeta1: 1\nbeta2: 1.5\nepsilon: 0\n"),
            "x.yaml:8: beta1: 1 is not below 1\n"
            "x.yaml:9: beta2: 1.5 is not below 1\n"
            "x.yaml:10: epsilon: is 0, by which updates may divide; write a positive number");
  EXPECT_EQ(fault_of("optimizer: momentum\nmomentum: 1\n"), "x.yaml:8: momentum: 1 is not below 1");
}

TEST(TrainingKeys, OfTheDecayGoTogether)
{
  constexpr auto alone = "goes with learning_rate_decay: linear or cosine; leave it out, or write that";
  EXPECT_EQ(fault_of("decay_steps: 8\nmin_learning_rate: 0.1\n"),
            fmt::format("x.yaml:7: decay_steps: {0}\nx.yaml:8: min_learning_rate: {0}", alone));
  EXPECT_EQ(fault_of("learning_rate_decay: cosine\n"),
            "x.yaml:7: learning_rate_decay: cosine without decay_steps; write the step at which the decay ends");
  EXPECT_EQ(fault_of("learning_rate_decay: linear\nwarmup_steps: 8\ndecay_steps: 8\n"),
            "x.yaml:9: decay_steps: 8 is not above warmup_steps, 8");
  EXPECT_EQ(fault_of("learning_rate_decay: linear\ndecay_steps: 8\nmin_learning_rate: 0.02\n"),
            "x.yaml:9: min_learning_rate: 0.02 is above learning_rate, 0.01");
  EXPECT_EQ(fault_of("learning_rate_decay: cosin\ndecay_steps: 8\n"),
            "x.yaml:7: learning_rate_decay: \"cosin\" is not one of none, linear, cosine; did you mean cosine?\n"
            "x.yaml:8: decay_steps: goes with learning_rate_decay: linear or cosine; leave it out, or write that");
}

}  // namespace
}  // namespace isobar::training_test
