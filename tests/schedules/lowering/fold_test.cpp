#include "schedules/lowering/fold.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/costs/shard_collective_times.hpp"
#include "core/plan/plan.hpp"
#include "core/program/channel_rounds.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// Which plans fold, and into which programs. tests/sim/play/fold_test.cpp compares their times.
namespace isobar::schedules::fold_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Two layers; shards first, then replicas, then stages of a layer each. With one stage both layers are in it.
Plan plan_of(std::size_t stages, std::size_t replicas, std::size_t shards)
{
  Plan plan;
  plan.goal.microbatches = 4 * replicas;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    Stage& stage = plan.stages.emplace_back();
    stage.first_layer = stage.last_layer = layer;
    std::size_t device = layer % stages * replicas * shards;
    for (std::size_t r = 0; r < replicas; ++r) {
      Replica& replica = stage.replicas.emplace_back();
      if (replicas > 1) replica.microbatches = 4;
      for (std::size_t k = 0; k < shards; ++k) {
        replica.shards.push_back({fmt::format("d{}", device++), 1.0 / static_cast<double>(shards)});
      }
    }
  }
  return plan;
}

std::string reason_of(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const auto folded = fold(plan, workload, cluster);
  const auto* reason = std::get_if<std::string>(&folded);
  return reason == nullptr ? "" : *reason;
}

std::vector<std::size_t> acting(const Program& program)
{
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    if (program.length(rank, compute_lane) > 0) ranks.push_back(rank);
  }
  return ranks;
}

TEST(Fold, LetsTheFirstShardOfTheFirstReplicaActForAll)
{
  const Workload workload = testing_support::divisible(2);
  const Plan plan = plan_of(2, 3, 4);
  const auto folded = fold(plan, workload, equal_devices(24));
  const auto& step = std::get<FoldedStep>(folded);
  EXPECT_EQ(step.program->ranks(), 24U);
  EXPECT_THAT(acting(*step.program), ElementsAre(0, 12));
  EXPECT_THAT(step.links, IsEmpty()) << "no two transfers share a link";
  EXPECT_EQ(deadlock_of(*step.program), std::nullopt);
  const auto whole = testing_support::unit_program(plan, workload);
  for (const std::size_t rank : {0U, 12U}) {
    EXPECT_EQ(lane_names(*step.program, rank), lane_names(*whole, rank));
    EXPECT_EQ(step.program->resident(rank, Tier::Device), whole->resident(rank, Tier::Device));
  }
  EXPECT_EQ(lane_names(*step.program, 1), std::vector<std::string>{"compute"});
  EXPECT_EQ(step.program->resident(1, Tier::Device), Bytes(0));
  for (const Channel& channel : step.program->channels()) {
    for (const End& end : channel.ends) EXPECT_TRUE(end.rank == 0 || end.rank == 12);
  }
  const LaneId sync = lane_named(*step.program, 0, "sync gradients").value();
  const Channel& channel = step.program->channels()[*step.program->lanes(0)[sync].channel];
  EXPECT_THAT(channel.folded->ranks, ElementsAre(0, 4, 8));
  EXPECT_THAT(channel.folded->places, ElementsAre(0));
}

TEST(Fold, SaysWhyItDoesNot)
{
  const Workload workload = testing_support::divisible(2);
  EXPECT_EQ(reason_of(plan_of(2, 1, 1), workload, equal_devices(2)),
            "its stages have one replica, and its replicas have a shard each");
  Cluster unequal = equal_devices(4);
  unequal.devices[3].speed = FlopsPerSecond(2e12);
  EXPECT_EQ(reason_of(plan_of(2, 2, 1), workload, unequal), "devices d3 and d2 differ in speed");
  unequal.devices[3].speed = unequal.devices[2].speed;
  unequal.devices[1].memory = Bytes(1);
  EXPECT_EQ(reason_of(plan_of(2, 2, 1), workload, unequal), "devices d1 and d0 differ in memory");

  Plan plan = plan_of(2, 2, 1);
  plan.stages[1].replicas[0].microbatches = 3;
  plan.stages[1].replicas[1].microbatches = 5;
  EXPECT_EQ(reason_of(plan, workload, equal_devices(4)), "the replicas of stage 1 take 3 and 5 micro-batches");
  plan = plan_of(2, 2, 2);
  plan.stages[1].replicas[0].shards[0].share = 0.75;
  plan.stages[1].replicas[0].shards[1].share = 0.25;
  EXPECT_EQ(reason_of(plan, workload, equal_devices(8)), "the replicas of stage 1 have other shards");
  plan = plan_of(2, 2, 1);
  plan.stages[1].replicas.pop_back();
  EXPECT_EQ(reason_of(plan, workload, equal_devices(4)), "stage 1 has 1 replicas and stage 0 2");
  plan = plan_of(1, 2, 1);
  std::swap(plan.stages[1].replicas[0], plan.stages[1].replicas[1]);
  EXPECT_EQ(reason_of(plan, workload, equal_devices(2)), "device d0 has another place in one stage than in another");

  const auto of_shards = [&](const Plan& shards, const Workload& divided) {
    return reason_of(shards, divided, equal_devices(8));
  };
  Workload odd = workload;
  odd.layers[1].split->units = 6;
  EXPECT_EQ(of_shards(plan_of(2, 1, 4), odd),
            "its stages have one replica, and 4 shards divide 6 heads of layer layer1 in unequal parts");
  plan = plan_of(1, 1, 4);
  for (auto& stage : plan.stages) stage.grid = {ShardGrid::Form::TwoD, 2};
  EXPECT_EQ(of_shards(plan, workload), "its stages have one replica, and its shards are in a grid");
  plan = plan_of(2, 1, 2);
  plan.stages[1] = plan_of(2, 1, 4).stages[1];
  EXPECT_EQ(of_shards(plan, workload), "its stages have one replica, and stage 1 has 4 shards and stage 0 2");
  plan = plan_of(2, 2, 1);
  plan.stages[0].residence.optimizer = Tier::Host;
  EXPECT_EQ(reason_of(plan, workload, equal_devices(4)), "its stages live elsewhere than on their devices");
}

TEST(Fold, RefusesReplicasWhoseTransfersTakeOtherTimes)
{
  Cluster cluster = equal_devices(4);
  std::vector<Path> paths(25, {Seconds(1e-3), BytesPerSecond(1e9)});
  paths[1 * 5 + 3].bandwidth = BytesPerSecond(2e9);  // from replica 1 of stage 0 to that of stage 1
  cluster.network = std::make_shared<MatrixNetwork>(5, paths);
  EXPECT_EQ(reason_of(plan_of(2, 2, 1), testing_support::divisible(2), cluster),
            "flows of lane send activation of d0 meet others on their links in unlike ways");
}

TEST(Fold, HasTheDataServerSendToTheReplicaThatActs)
{
  Workload workload = testing_support::divisible(2);
  workload.input = Bytes(3e6);
  Plan plan = plan_of(2, 3, 1);
  plan.data_server = "data";
  Cluster cluster = equal_devices(6);
  cluster.data_server = "data";
  const auto folded = fold(plan, workload, cluster);
  const Program& program = *std::get<FoldedStep>(folded).program;
  EXPECT_EQ(program.ranks(), 7U);
  EXPECT_EQ(program.lanes(6).size(), 2U) << "compute, and one lane of inputs";
  const PlayerRates rates = nominal_rates(plan, cluster);
  EXPECT_DOUBLE_EQ(play_program(program, rates).periods[0].step_time.value,
                   play_program(*make_program(plan, workload, cluster), rates).periods[0].step_time.value);
  plan = plan_of(2, 1, 2);
  plan.data_server = "data";
  EXPECT_EQ(reason_of(plan, workload, cluster),
            "its stages have one replica, and each of its shards gets the input from the data server");
}

TEST(Fold, AddsWhatAllRanksAgreeOnToTheFirstUpdate)
{
  Workload workload = testing_support::divisible(2);
  workload.training.clip_norm = 1;
  for (auto& layer : workload.layers) layer.update = Flops(1e9);
  const Plan plan = plan_of(2, 3, 1);
  const Cluster cluster = equal_devices(6);
  const auto folded = fold(plan, workload, cluster);
  const Program& program = *std::get<FoldedStep>(folded).program;
  EXPECT_THAT(acting(program), ElementsAre(0, 3));
  const Instruction facts = first_of(program, 0, "sync");
  EXPECT_EQ(facts.size, Bytes(0));
  // Six ranks send ten messages of a few bytes one after another; the two that act send two.
  const Instruction update = program.at(0, compute_lane, program.length(0, compute_lane) - 1);
  const double message = std::ceil(gradient_sync_size.value / 6) / 1e9;
  EXPECT_NEAR(update.time.value, 1e-3 + (10 - 2) * 1e-3 + 10 * message, 1e-9);
}

TEST(Fold, GivesTheTimesOfShardsAlone)
{
  Workload workload = testing_support::divisible(2);
  workload.layers[0].output = Bytes(4e6);
  workload.layers[0].gradient = Bytes(2e6);
  const Plan plan = plan_of(1, 1, 4);
  const Cluster cluster = equal_devices(4);
  // An AllReduce of V bytes among four: 6 messages of V / 4 bytes. The first layer has no gradient of its input, and
  // the last one gathers a byte of each.
  const auto first = shard_collective_times(plan, 0, 0, workload, cluster);
  EXPECT_DOUBLE_EQ(first.forward.value, 6 * (1e-3 + 1e6 / 1e9));
  EXPECT_EQ(first.backward, Seconds(0));
  const auto last = shard_collective_times(plan, 1, 1, workload, cluster);
  EXPECT_DOUBLE_EQ(last.forward.value, 3 * (1e-3 + 1 / 1e9));
  EXPECT_DOUBLE_EQ(last.backward.value, 6 * (1e-3 + 5e5 / 1e9));
  EXPECT_EQ(shard_collective_times(plan_of(1, 2, 1), 0, 0, workload, cluster).forward, Seconds(0));
}

// --- folded channels -----------------------------------------------------------------------------------------------

Channel folded_channel(std::vector<std::size_t> ranks, std::vector<std::size_t> places, Algorithm algorithm)
{
  Channel channel;
  channel.algorithm = algorithm;
  for (const std::size_t place : places) channel.ends.push_back({ranks[place], 1});
  channel.folded = FoldedEnds{std::move(ranks), std::move(places)};
  return channel;
}

std::vector<std::pair<std::size_t, std::size_t>> flows_of(const Round& round)
{
  std::vector<std::pair<std::size_t, std::size_t>> flows;
  for (const Flow& flow : round) flows.emplace_back(flow.from, flow.to);
  return flows;
}

TEST(FoldedChannel, HasTheFlowsThatLeaveOrReachARankThatActs)
{
  const Channel channel = folded_channel({0, 5, 6, 7}, {0}, Algorithm::Ring);
  const auto rounds = rounds_of(channel, Opcode::AllReduce, {Bytes(400)}, {});
  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_THAT(flows_of(rounds[0]), ElementsAre(std::pair(0, 1), std::pair(3, 0)));
  EXPECT_EQ(rounds[0][0].messages, 6U) << "as among all four";
  EXPECT_EQ(rounds[0][0].message, Bytes(100));
}

TEST(FoldedChannel, HasOnlyTheFlowsThatLeaveWhereRanksStandForOthers)
{
  const Channel channel = folded_channel({0, 5, 0, 5, 0}, {0, 1}, Algorithm::Ring);
  const auto rounds = rounds_of(channel, Opcode::AllGather, {Bytes(30), Bytes(30)}, {});
  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_THAT(flows_of(rounds[0]), ElementsAre(std::pair(0, 1), std::pair(1, 2)));
  EXPECT_EQ(rounds[0][0].messages, 4U);
}

TEST(FoldedChannel, KeepsTheSitesOfAll)
{
  Channel channel = folded_channel({0, 1, 2, 3}, {0}, Algorithm::Hierarchical);
  channel.sites = {"a", "a", "b", "b"};
  const auto rounds = rounds_of(channel, Opcode::AllReduce, {Bytes(400)}, {"a"});
  EXPECT_EQ(
      rounds.size(),
      rounds_of(Opcode::AllReduce, std::vector<Bytes>(4, Bytes(400)), Algorithm::Hierarchical, channel.sites).size());
  for (const Round& round : rounds) {
    for (const Flow& flow : round) EXPECT_TRUE(flow.from == 0 || flow.to == 0);
  }
}

// --- comparison of flows -------------------------------------------------------------------------------------------

/// Endpoints with a link up and one down each.
class TwoLinks : public Network {
 public:
  explicit TwoLinks(std::size_t endpoints)
  {
    for (std::size_t i = 0; i < endpoints; ++i) {
      names_.push_back(fmt::format("up{}", i));
      names_.push_back(fmt::format("down{}", i));
    }
  }
  Path path(std::size_t, std::size_t) const override { return {Seconds(1e-6), BytesPerSecond(1e9)}; }
  std::vector<std::string> links(std::size_t from, std::size_t to) const override
  {
    return {names_[2 * from], names_[2 * to + 1]};
  }
  std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override
  {
    return {{names_[2 * from], BytesPerSecond(1e9)}, {names_[2 * to + 1], BytesPerSecond(1e9)}};
  }

 private:
  std::vector<std::string> names_;
};

TEST(FoldedFlows, AreAlikeWhereEachMeetsWhatTheOthersMeet)
{
  const TwoLinks network(8);
  KnownPaths paths(network);
  const FlowKind ring = {{{{0, 1}, {1, 2}, {2, 3}, {3, 0}}}, {{{0, 1}, {3, 0}}}, 0};
  EXPECT_EQ(compare_flows({ring}, paths).unlike, std::nullopt);
  // Each of the ring's ranks also sends to one of another stage, which ranks 1 and 3 do not in the folded program.
  const FlowKind sends = {{{{0, 4}}, {{1, 5}}, {{2, 6}}, {{3, 7}}}, {{{0, 4}}}, 1};
  EXPECT_EQ(compare_flows({ring, sends}, paths).unlike, 0U);
  const FlowKind receives = {{{{4, 0}}, {{5, 1}}, {{6, 2}}, {{7, 3}}}, {{{4, 0}}}, 2};
  EXPECT_EQ(compare_flows({ring, sends, receives}, paths).unlike, 0U);
  // Two of them that are a ring do.
  const FlowKind ring_of_two = {ring.whole, {{{0, 1}, {1, 0}}}, 0};
  const FlowKind two_send = {sends.whole, {{{0, 4}}, {{1, 5}}}, 1};
  const FlowKind two_receive = {receives.whole, {{{4, 0}}, {{5, 1}}}, 2};
  EXPECT_EQ(compare_flows({ring_of_two, two_send, two_receive}, paths).unlike, std::nullopt);
}

TEST(FoldedFlows, CountTheUsersOfLinks)
{
  const TwoLinks network(4);
  KnownPaths paths(network);
  const FlowKind to_two = {{{{0, 1}}, {{0, 1}}, {{0, 1}}}, {{{0, 1}}}, 0};
  const FoldedLinks links = compare_flows({to_two}, paths);
  EXPECT_EQ(links.unlike, std::nullopt);
  ASSERT_EQ(links.links.size(), 2U);
  EXPECT_EQ(links.links[0].link, "down1");
  EXPECT_EQ(links.links[0].users, 3);
  EXPECT_EQ(links.links[1].link, "up0");
  const FlowKind another = {{{{0, 2}}}, {{{0, 2}}}, 1};
  EXPECT_NE(compare_flows({to_two, another}, paths).unlike, std::nullopt) << "one flow meets three, not one";
}

}  // namespace
}  // namespace isobar::schedules::fold_test
