#include "core/model/sharding.hpp"

#include "core/model/workload.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace isobar::expert_imbalance_test {
namespace {

TEST(MostOverMean, IsAsForcedWithoutASpread)
{
  EXPECT_EQ(most_over_mean({1.25}, 3, 64, 8), 1.25);
  EXPECT_EQ(most_over_mean({}, 3, 64, 8), 1);
}

TEST(MostOverMean, OfOneDeviceIsTheMean)
{
  EXPECT_DOUBLE_EQ(most_over_mean({1, 2.0, 7}, 3, 64, 1), 1);
}

// A device of fewer has the mean of what several of more have.
TEST(MostOverMean, IsNeverLessWhereMoreDevicesDivideThem)
{
  for (std::size_t layer = 0; layer < 20; ++layer) {
    double last = 1;
    for (std::size_t parts = 1; parts <= 64; parts *= 2) {
      const double most = most_over_mean({1, 0.5, 1}, layer, 64, parts);
      EXPECT_GE(most, last * (1 - 1e-12));
      EXPECT_LE(most, static_cast<double>(parts));
      last = most;
    }
  }
}

TEST(MostOverMean, DependsOnSeedAndLayer)
{
  std::set<double> drawn;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (std::size_t layer = 0; layer < 4; ++layer) drawn.insert(most_over_mean({1, 0.5, seed}, layer, 64, 8));
  }
  EXPECT_EQ(drawn.size(), 16U);
  EXPECT_EQ(most_over_mean({1, 0.5, 3}, 2, 64, 8), most_over_mean({1, 0.5, 3}, 2, 64, 8));
}

// Of two devices with an expert each, the more loaded one has 1 + |difference| / sum. For a small spread s the loads
// are normal, so the mean of that is 1 + s / sqrt(pi).
TEST(MostOverMean, HasTheSpreadOfItsExperts)
{
  constexpr double spread = 0.05;
  constexpr std::size_t layers = 20'000;
  double sum = 0;
  for (std::size_t layer = 0; layer < layers; ++layer) sum += most_over_mean({1, spread, 1}, layer, 2, 2) - 1;
  EXPECT_NEAR(sum / static_cast<double>(layers), spread / std::sqrt(std::acos(-1.0)), 0.02 * spread);
}

const std::string mixture =
    "model: decoder\nlayers: 2\nhidden: 64\nheads: 2\nvocabulary: 100\nexperts: 8\ntop_k: 2\nexpert_intermediate: 32\n"
    "sequence: 16\nunit: operator\n";

TEST(ExpertImbalance, IsDrawnForEachLayerAndNumberOfDevices)
{
  const Workload workload = workload_from_text(mixture + "expert_spread: 0.5\nexpert_seed: 4\n", "mixture.yaml");
  for (const std::size_t degree : {2, 4}) {
    const Workload divided = with_experts(workload, {degree});
    for (std::size_t layer = 0; layer < divided.layers.size(); ++layer) {
      const auto& experts = divided.layers[layer].experts;
      if (!experts) continue;
      const double most = most_over_mean({1, 0.5, 4}, layer, 8, degree);
      EXPECT_EQ(experts->imbalance, most);
      const auto& all = workload.layers[layer];
      EXPECT_EQ(all.experts->imbalance, 1);
      EXPECT_DOUBLE_EQ(experts->forward.value, most * all.experts->forward.value);
      EXPECT_DOUBLE_EQ(divided.layers[layer].forward.value,
                       all.forward.value + (most - 1) * all.experts->forward.value);
    }
  }
}

TEST(ExpertImbalance, IsReadInOneOfItsForms)
{
  const auto message = [](const std::string& lines) {
    return message_of([&] { workload_from_text(mixture + lines, "m.yaml"); });
  };
  EXPECT_EQ(message("expert_spread: -1\n"),
            "InputError m.yaml:11: expert_spread: \"-1\" is out of range; write a number, 0 or more");
  EXPECT_EQ(
      message("expert_spread: 11\n"),
      "InputError m.yaml:11: expert_spread: 11; the standard deviation of an expert's tokens over their mean is 0 "
      "(even) to 10");
  EXPECT_EQ(message("expert_spread: 0.5\nexpert_imbalance: 2\n"),
            "InputError m.yaml:11: expert_spread: is drawn, and expert_imbalance says the most; leave out one of them");
  EXPECT_EQ(message("expert_seed: 2\n"),
            "InputError m.yaml:11: expert_seed: nothing is drawn; write expert_spread, or leave it out");
  EXPECT_EQ(message_of([] {
              workload_from_text(
                  "model: decoder\nlayers: 2\nhidden: 64\nheads: 2\nvocabulary: 100\nintermediate: 64\n"
                  "sequence: 16\nexpert_spread: 1\n",
                  "d.yaml");
            }),
            "InputError d.yaml:8: expert_spread: no layer has experts; leave it out");
  const Workload workload = workload_from_text(mixture + "expert_spread: 0.5\n", "m.yaml");
  EXPECT_EQ(why_not_divided(workload, ExpertParallelism{2, true}, 2),
            "expert_spread: is drawn for groups whose shards have a part of every expert; leave out whole experts, or "
            "write expert_imbalance");
}

}  // namespace
}  // namespace isobar::expert_imbalance_test
