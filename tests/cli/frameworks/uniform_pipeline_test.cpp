#include "cli/frameworks/uniform_pipeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::cli::uniform_pipeline_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

Replica replica_of(std::uint64_t microbatches, const std::vector<std::string>& devices)
{
  Replica replica{microbatches, {}};
  for (const auto& device : devices) replica.shards.push_back({device, 1.0 / static_cast<double>(devices.size())});
  return replica;
}

/// Two stages of two replicas of two shards each, whose layers are parts.
Plan plan_of_eight()
{
  Plan plan;
  plan.goal.microbatches = 8;
  const std::vector<std::vector<Replica>> replicas = {{replica_of(4, {"a", "b"}), replica_of(4, {"c", "d"})},
                                                      {replica_of(4, {"e", "f"}), replica_of(4, {"g", "h"})}};
  for (std::size_t layer = 0; layer < 4; ++layer) plan.stages.push_back({layer, layer, replicas[layer / 2]});
  return plan;
}

TEST(UniformPipeline, HasTheDegreesOfAPlan)
{
  std::vector<std::string> faults;
  const auto pipeline = uniform_pipeline(plan_of_eight(), "X", faults);
  EXPECT_THAT(faults, IsEmpty());
  EXPECT_EQ(pipeline.devices, 2U);
  EXPECT_EQ(pipeline.chunks, 1U);
  EXPECT_EQ(pipeline.replicas, 2U);
  EXPECT_EQ(pipeline.shards, 2U);
  EXPECT_EQ(pipeline.microbatches, 4U);
  EXPECT_THAT(pipeline.stages, ElementsAre(Pair(0, 1), Pair(2, 3)));
  EXPECT_THAT(pipeline.ranks, ElementsAre("a", "b", "c", "d", "e", "f", "g", "h"));
}

TEST(UniformPipeline, TakesNeighboursThatDivideASequenceAsOneReplica)
{
  Plan plan = plan_of_eight();
  plan.context = {2, ContextExchange::Ring};
  std::vector<std::string> faults;
  const auto pipeline = uniform_pipeline(plan, "X", faults);
  EXPECT_EQ(pipeline.context, 2U);
  EXPECT_EQ(pipeline.replicas, 1U);
  EXPECT_EQ(pipeline.microbatches, 4U);  // of whole sequences
}

TEST(UniformPipeline, NamesEachStageThatIsUnlikeTheFirst)
{
  std::vector<std::string> faults;
  Plan plan = plan_of_eight();
  plan.stages[0].replicas[1].microbatches = 5;
  plan.stages[2].replicas[1].shards[0].share = 0.25;
  plan.stages[2].replicas[1].shards[1].share = 0.75;
  plan.stages[3] = plan.stages[2];
  plan.stages[3].first_layer = plan.stages[3].last_layer = 3;
  plan.samples = 7;
  uniform_pipeline(plan, "X", faults);
  EXPECT_THAT(faults, ElementsAre("stages[0]: a replica takes 5 of 8 micro-batches; X gives replicas as many",
                                  "stages[1]: g takes 0.25 of each layer; X gives shards equal parts",
                                  "samples: a step of 7 samples, so that micro-batches are not full; X fills all "
                                  "micro-batches of a step"));
}

TEST(UniformPipeline, NamesOtherNumbersOfReplicasAndShards)
{
  std::vector<std::string> faults;
  Plan plan;
  plan.goal.microbatches = 4;
  plan.stages = {{0, 0, {replica_of(2, {"a"}), replica_of(2, {"b"})}}, {1, 1, {replica_of(4, {"c"})}}};
  uniform_pipeline(plan, "X", faults);
  EXPECT_THAT(faults, ElementsAre("stages[1]: 1 replica, and stages[0] has 2; X has as many of each stage"));
  faults.clear();
  plan.stages = {{0, 0, {replica_of(0, {"a", "b"})}}, {1, 1, {replica_of(0, {"c"})}}};
  uniform_pipeline(plan, "X", faults);
  EXPECT_THAT(faults, ElementsAre("stages[1]: 1 shard of a replica, and stages[0] has 2; X has as many of each stage"));
}

TEST(UniformPipeline, NamesDevicesWithMoreStagesThanOthers)
{
  std::vector<std::string> faults;
  Plan plan;
  plan.goal.schedule.name = "listed";
  for (const auto* device : {"a", "b", "a"}) {
    const std::size_t layer = plan.stages.size();
    plan.stages.push_back(stage_on(device, layer, layer));
  }
  uniform_pipeline(plan, "X", faults);
  EXPECT_THAT(faults, ElementsAre("stages[0]: its devices have 2 of 3 stages; X gives devices as many"));
}

TEST(UniformPipeline, ComparesOrdersNotNamesOfSchedules)
{
  Plan plan;
  plan.goal.microbatches = 2;
  plan.stages = {stage_on("a", 0, 0), stage_on("b", 1, 1)};
  plan.goal.schedule = {"1f1b", {{"warm_up", {1, 0}}}};
  EXPECT_TRUE(has_order_of(plan, {}));
  plan.goal.schedule = {"gpipe"};
  EXPECT_FALSE(has_order_of(plan, {}));
  plan.stages = {stage_on("a", 0, 1)};
  plan.goal.schedule = {"sequential"};
  EXPECT_TRUE(has_order_of(plan, {}));
}

TEST(UniformPipeline, NamesAReplicaThatWorksInAnotherOrder)
{
  Plan plan;
  plan.goal.microbatches = 4;
  plan.goal.schedule = {"1f1b", {{"warm_up", {1, 2, 0, 0}}}};
  plan.stages = {{0, 0, {replica_of(2, {"a"}), replica_of(2, {"b"})}},
                 {1, 1, {replica_of(2, {"c"}), replica_of(2, {"d"})}}};
  std::vector<std::string> faults;
  const auto pipeline = uniform_pipeline(plan, "X", faults);
  const Plan single = single_pipeline(plan, pipeline, "X", faults);
  EXPECT_THAT(faults, ElementsAre("schedule: b works in another order than a; X has one order for all replicas"));
  EXPECT_THAT(single.goal.schedule.numbers.at("warm_up"), ElementsAre(1, 0));
  EXPECT_EQ(single.goal.microbatches, 2U);
}

}  // namespace
}  // namespace isobar::cli::uniform_pipeline_test
