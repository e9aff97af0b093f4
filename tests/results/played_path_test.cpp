#include "results/played_path.hpp"

#include "core/costs/nominal_rates.hpp"
#include "results/explanation.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/uniform_rates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace isobar::results::played_path_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using Kind = PlayedPath::Kind;
/// Kind, rank that computes or sends, and seconds of a part.
using Piece = std::tuple<Kind, std::size_t, double>;

std::vector<Piece> pieces_of(const PlayedPath& path)
{
  std::vector<Piece> pieces;
  for (const auto& part : path.parts) pieces.emplace_back(part.kind, part.from, part.time.value);
  return pieces;
}

TEST(PlayedPath, LeadsFromTheLastUpdateThroughTheStagesToTheFirstForward)
{
  EditableProgram program(2);
  const auto activations = program.connect({{0, "send activation"}, {1, "receive activation"}});
  const auto gradients = program.connect({{1, "send gradient"}, {0, "receive gradient"}});
  program.compute(0, Opcode::Forward, 0, 1);
  program.transfer(activations, Payload::Activation, 0, 1, Wait{compute_lane, 0, 1});
  program.compute(1, Opcode::Forward, 0, 2, Wait{1, 0, 1});
  program.compute(1, Opcode::Backward, 0, 3);
  program.transfer(gradients, Payload::Gradient, 0, 2, Wait{compute_lane, 0, 2});
  program.compute(0, Opcode::Backward, 0, 4, Wait{2, 0, 1});
  program.compute(0, Opcode::Update, 0, 0.5);
  program.compute(1, Opcode::Update, 0, 1);
  const auto path = played_path(program, uniform_rates(0.25, 4));
  EXPECT_DOUBLE_EQ(path.step_time.value, 0.5 + 4 + 0.75 + 3 + 2 + 0.5 + 1);
  EXPECT_THAT(pieces_of(path),
              ElementsAre(Piece{Kind::Compute, 0, 0.5}, Piece{Kind::Compute, 0, 4}, Piece{Kind::Data, 1, 0.5},
                          Piece{Kind::Latency, 1, 0.25}, Piece{Kind::Compute, 1, 3}, Piece{Kind::Compute, 1, 2},
                          Piece{Kind::Data, 0, 0.25}, Piece{Kind::Latency, 0, 0.25}, Piece{Kind::Compute, 0, 1}));
}

TEST(PlayedPath, PaysTheLatencyOfTheFirstOfTheMessagesThatDelayEachOther)
{
  EditableProgram program(2);
  const auto forth = program.connect({{0, "send"}, {1, "receive"}});
  for (const std::uint64_t m : {0U, 1U, 2U}) program.transfer(forth, Payload::Activation, m, 8);
  EXPECT_THAT(pieces_of(played_path(program, uniform_rates(3, 4))),
              ElementsAre(Piece{Kind::Data, 0, 2}, Piece{Kind::Data, 0, 2}, Piece{Kind::Data, 0, 2},
                          Piece{Kind::Latency, 0, 3}));
}

TEST(PlayedPath, WaitsForTheLastEndOfACollective)
{
  EditableProgram program(3);
  std::vector<std::pair<std::size_t, std::string>> lanes;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    lanes.emplace_back(rank, "sync");
    program.compute(rank, Opcode::Backward, 0, rank == 1 ? 5 : 2);
  }
  const auto channel = program.connect(lanes);
  program.collective(channel, Opcode::AllReduce, Payload::ParameterGradient, 30, Wait{compute_lane, 0, 1});
  program.compute(0, Opcode::Update, 0, 1, Wait{1, 0, 1});
  const auto path = played_path(program, uniform_rates(0.5, 10));
  // Four messages of 10 bytes, each with its latency.
  EXPECT_THAT(pieces_of(path), ElementsAre(Piece{Kind::Compute, 0, 1}, Piece{Kind::Data, 0, 4},
                                           Piece{Kind::Latency, 0, 2}, Piece{Kind::Compute, 1, 5}));
  EXPECT_EQ(path.parts[1].collective, Payload::ParameterGradient);
  EXPECT_EQ(path.parts[0].collective, std::nullopt);
}

/// A plan of two stages with replicas and shards of random numbers.
struct Instance {
  Workload workload;
  Plan plan;
  Cluster devices;

  explicit Instance(std::mt19937_64& random)
      : workload(random_chain(random, 6)), devices(random_cluster(random, 12, 1e12))
  {
    add_splits(random, workload);
    std::vector<std::string> names;
    for (const auto& device : devices.devices) names.push_back(device.name);
    const std::uint64_t microbatches = 2 + random() % 3;
    for (const std::size_t first : {0U, 3U}) {
      const bool has_replicas = random() % 2 == 0;
      const auto takes = has_replicas ? std::vector<std::uint64_t>{1, microbatches - 1} : std::vector{microbatches};
      Stage stage = random() % 3 == 0 ? stage_of_unlike_replicas(random, takes, names)
                                      : random_stage(random, takes, 1 + random() % 3, names);
      stage.first_layer = first;
      stage.last_layer = first + 2;
      plan.stages.push_back(stage);
    }
    plan.stages = by_layers(plan.stages);
    plan.goal = goal_under(random() % 2 == 0 ? "1f1b" : "zero-bubble-h1", microbatches);
  }
};

TEST(PlayedPath, HasPartsThatSumToTheStepOfAnyPlan)
{
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const Instance instance(random);
    const auto program = schedules::make_program(instance.plan, instance.workload, instance.devices);
    const auto path = played_path(*program, nominal_rates(instance.plan, instance.devices));
    Seconds sum;
    for (const auto& part : path.parts) sum += part.time;
    ASSERT_NEAR(sum / path.step_time, 1, 1e-9) << i;
  }
}

TEST(ExplainByPlaying, TriesThePlanWithOnePartFaster)
{
  std::mt19937_64 random(8);
  for (int i = 0; i < 30; ++i) {
    const Instance instance(random);
    const auto program_on = [&](const Cluster& cluster) {
      return schedules::make_program(instance.plan, instance.workload, cluster);
    };
    const auto explanation = explain_by_playing(instance.plan, program_on, instance.workload, instance.devices);
    const auto step_on = [&](const Cluster& cluster) {
      return play_program(*program_on(cluster), nominal_rates(instance.plan, cluster)).periods[0].step_time;
    };
    const Seconds step = step_on(instance.devices);
    ASSERT_FALSE(explanation.faster_devices.empty());
    for (const auto& faster : explanation.faster_devices) {
      Cluster changed = instance.devices;
      changed.devices[changed.device_index(faster.name).value()].speed *= relaxation;
      EXPECT_DOUBLE_EQ(faster.saves.value, std::max(0.0, (step - step_on(changed)).value));
    }
    EXPECT_FALSE(explanation.bottleneck.has_value());
    double fractions = 0;
    for (const auto& part : explanation.step.value().parts) fractions += part.fraction;
    EXPECT_NEAR(fractions, 1, 1e-9);
  }
}

}  // namespace
}  // namespace isobar::results::played_path_test
