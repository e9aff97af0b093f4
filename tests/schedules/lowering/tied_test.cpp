#include "core/check/program_checker.hpp"
#include "core/model/models.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/program/channel_rounds.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Programs of stages that share a matrix.
namespace isobar::schedules::tied_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double vocabulary = 48;
constexpr double hidden = 16;

/// embedding, two blocks by operators, head.
Workload tied_gpt()
{
  Workload workload;
  workload.sequence = 8;
  const GptSizes sizes{.layers = 2,
                       .hidden = 16,
                       .heads = 4,
                       .intermediate = 32,
                       .vocabulary = 48,
                       .positions = 8,
                       .unit = Unit::Operator,
                       .tied = true};
  workload.model = sizes;
  build_gpt(sizes, workload);
  return workload;
}

/// Two stages of so many replicas of so many shards.
Plan two_stages(std::size_t replicas, std::size_t shards, const std::string& schedule = "1f1b")
{
  Plan plan;
  plan.goal.schedule = schedule_from_text(schedule);
  plan.goal.microbatches = 4 * replicas;
  for (std::size_t i = 0; i < 2; ++i) {
    Stage& stage = plan.stages.emplace_back(Stage{3 * i, 3 * i + 2, {}});
    for (std::size_t r = 0; r < replicas; ++r) {
      Replica& replica = stage.replicas.emplace_back();
      replica.microbatches = replicas == 1 ? 0 : 4;
      for (std::size_t s = 0; s < shards; ++s) {
        replica.shards.push_back({fmt::format("d{}.{}.{}", i, r, s), 1 / static_cast<double>(shards)});
      }
    }
  }
  if (shards > 1) plan.stages = testing_support::by_layers(plan.stages);
  return plan;
}

std::unique_ptr<Program> program_of(const Plan& plan, const Workload& workload = tied_gpt())
{
  return testing_support::unit_program(plan, with_tied_copies(workload, plan));
}

/// A channel on which stages add up a matrix, and what each end has of it.
struct TiedSum {
  Channel channel;
  std::vector<Instruction> ends;
};

std::vector<TiedSum> sums_in(const Program& program)
{
  std::vector<TiedSum> sums;
  for (const Channel& channel : program.channels()) {
    TiedSum sum{channel, {}};
    for (const End& end : channel.ends) {
      if (program.length(end.rank, end.lane) > 0) sum.ends.push_back(program.at(end.rank, end.lane, 0));
    }
    if (!sum.ends.empty() && sum.ends.front().payload == Payload::TiedGradient) sums.push_back(std::move(sum));
  }
  return sums;
}

// Of a pair in a ring, each sends 2 (2 - 1) / 2 of what both have: 4 V h / t bytes, of divided gradients 1 / R of it.
TEST(TiedSums, SendTheBytesOfTheClosedForm)
{
  for (const std::size_t replicas : {1U, 2U, 4U}) {
    for (const std::size_t shards : {1U, 2U, 4U}) {
      for (const Sharding sharded : {Sharding::None, Sharding::Optimizer, Sharding::Gradients}) {
        Plan plan = two_stages(replicas, shards);
        if (replicas > 1) plan.sync.sharded = sharded;
        const auto program = program_of(plan);
        const auto sums = sums_in(*program);
        EXPECT_EQ(sums.size(), replicas * shards);
        const auto parts = static_cast<double>(plan.sync.sharded == Sharding::None ? 1 : replicas);
        for (const auto& [channel, ends] : sums) {
          ASSERT_EQ(ends.size(), 2U);
          double sent = 0;
          double received = 0;
          const std::vector<Bytes> sizes(2, ends.front().size);
          for (const Round& round : rounds_of(channel, ends.front().opcode, sizes, {})) {
            for (const Flow& flow : round) (flow.from == 0 ? sent : received) += flow.size().value;
          }
          EXPECT_DOUBLE_EQ(sent, 2 * (2 - 1) / 2 * 4 * vocabulary * hidden / static_cast<double>(shards) / parts);
          EXPECT_DOUBLE_EQ(received, sent);
        }
      }
    }
  }
}

TEST(TiedSums, JoinTheSameReplicaAndShardOfBothStages)
{
  const Plan plan = two_stages(2, 2);
  const auto program = program_of(plan);
  const auto devices = devices_of(plan);
  std::vector<std::pair<std::string, std::string>> joined;
  for (const auto& [channel, ends] : sums_in(*program)) {
    joined.emplace_back(devices[channel.ends[0].rank], devices[channel.ends[1].rank]);
  }
  EXPECT_THAT(joined, ElementsAre(std::pair("d0.0.0", "d1.0.0"), std::pair("d0.0.1", "d1.0.1"),
                                  std::pair("d0.1.0", "d1.1.0"), std::pair("d0.1.1", "d1.1.1")));
}

TEST(TiedSums, AreThereOnlyForCopies)
{
  const Workload workload = tied_gpt();
  Plan together = two_stages(1, 1);
  together.stages = {Stage{0, 5, {Replica{0, {Shard{"d"}}}}}};
  EXPECT_THAT(sums_in(*program_of(together)), IsEmpty());
  EXPECT_THAT(program_of(together)->tied_stages(), IsEmpty());
  Workload apart = workload;
  apart.layers.back().tied_to.reset();
  EXPECT_THAT(sums_in(*program_of(two_stages(2, 1), apart)), IsEmpty());
  // Both stages of a V on its first device.
  Plan v = two_stages(1, 1, "zero-bubble-v");
  v.stages = {stage_on("a", 0, 1), stage_on("b", 2, 2), stage_on("b", 3, 3), stage_on("a", 4, 5)};
  EXPECT_THAT(sums_in(*program_of(v)), IsEmpty());
  EXPECT_EQ(program_of(v)->resident(0, Tier::Device), program_of(v, apart)->resident(0, Tier::Device));
}

TEST(TiedSums, HoldTheMatrixAtBothEnds)
{
  const Workload workload = tied_gpt();
  Workload alone = workload;
  alone.layers.back().tied_to.reset();
  const double matrix = vocabulary * hidden * bytes_per_parameter(workload);
  for (const std::size_t shards : {1U, 2U}) {
    const Plan plan = two_stages(1, shards);
    const auto with_copies = program_of(plan);
    const auto without = program_of(plan, alone);
    for (std::size_t rank = 0; rank < shards; ++rank) {
      EXPECT_EQ(with_copies->resident(rank, Tier::Device), without->resident(rank, Tier::Device));
      EXPECT_DOUBLE_EQ(
          (with_copies->resident(shards + rank, Tier::Device) - without->resident(shards + rank, Tier::Device)).value,
          matrix / static_cast<double>(shards));
    }
  }
}

TEST(TiedSums, PassTheProgramChecker)
{
  for (const std::size_t replicas : {1U, 2U}) {
    for (const std::size_t shards : {1U, 2U}) {
      for (const double clip_norm : {0.0, 1.0}) {
        Workload workload = tied_gpt();
        if (clip_norm > 0) workload.training.clip_norm = clip_norm;
        for (const char* schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1"}) {
          EXPECT_THAT(faults_of(*program_of(two_stages(replicas, shards, schedule), workload)), IsEmpty()) << schedule;
        }
      }
    }
  }
}

/// embedding, block0, mtp0, head: a decoder that predicts one token further.
Workload further_decoder(bool is_tied)
{
  Workload workload;
  workload.sequence = 8;
  DecoderSizes sizes;
  sizes.blocks = sizes.mtp_blocks = {{}};
  sizes.hidden = 16;
  sizes.vocabulary = 48;
  sizes.heads = sizes.kv_heads = 4;
  sizes.head_width = 4;
  sizes.intermediate = 32;
  sizes.tied = is_tied;
  workload.model = sizes;
  build_decoder(sizes, workload);
  return workload;
}

/// Stages that begin at these layers of a model of four.
Plan stages_from(const std::vector<std::size_t>& first_layers)
{
  Plan plan;
  plan.goal.schedule = schedule_from_text("1f1b");
  plan.goal.microbatches = 4;
  for (std::size_t i = 0; i < first_layers.size(); ++i) {
    const std::size_t end = i + 1 < first_layers.size() ? first_layers[i + 1] : 4;
    plan.stages.push_back(stage_on(fmt::format("d{}", i), first_layers[i], end - 1));
  }
  return plan;
}

// Each of n devices of a ring sends 2 (n - 1) / n of the matrix: 4 V h bytes.
TEST(TiedSums, AreOfTheEmbeddingThatFurtherPredictionsUse)
{
  struct Case {
    bool is_tied;
    std::vector<std::size_t> first_layers;
    std::vector<bool> has_copy;  // by device
  };
  for (const auto& [is_tied, first_layers, has_copy] : {
           Case{false, {0, 1, 2, 3}, {false, false, true, false}},
           Case{false, {0, 2}, {false, true}},
           Case{false, {0, 3}, {false, false}},
           Case{true, {0, 1, 2, 3}, {false, false, true, true}},
           Case{true, {0, 1, 2}, {false, false, true}},
           Case{true, {0, 3}, {false, true}},
       }) {
    const Workload workload = further_decoder(is_tied);
    Workload alone = workload;
    for (auto& layer : alone.layers) layer.tied_to.reset();
    const Plan plan = stages_from(first_layers);
    const auto program = program_of(plan, workload);
    EXPECT_THAT(faults_of(*program), IsEmpty());
    const auto without = program_of(plan, alone);
    std::size_t holders = 1;
    for (std::size_t rank = 0; rank < has_copy.size(); ++rank) {
      const Bytes copy = program->resident(rank, Tier::Device) - without->resident(rank, Tier::Device);
      EXPECT_DOUBLE_EQ(copy.value, has_copy[rank] ? vocabulary * hidden * bytes_per_parameter(workload) : 0) << rank;
      holders += has_copy[rank] ? 1 : 0;
    }
    const auto sums = sums_in(*program);
    ASSERT_EQ(sums.size(), holders > 1 ? 1U : 0U);
    for (const auto& [channel, ends] : sums) {
      ASSERT_EQ(ends.size(), holders);
      std::vector<double> sent(holders, 0);
      for (const Round& round :
           rounds_of(channel, ends.front().opcode, std::vector<Bytes>(holders, ends.front().size), {})) {
        for (const Flow& flow : round) sent[flow.from] += flow.size().value;
      }
      const auto n = static_cast<double>(holders);
      for (const double bytes : sent) EXPECT_DOUBLE_EQ(bytes, 2 * (n - 1) / n * 4 * vocabulary * hidden);
    }
  }
}

/// What the checker finds in the program of two stages once `change` has changed it.
std::vector<std::string> faults_with(const std::function<void(testing_support::EditableProgram&, LaneId)>& change,
                                     double clip_norm = 0)
{
  Workload workload = tied_gpt();
  if (clip_norm > 0) workload.training.clip_norm = clip_norm;
  testing_support::EditableProgram program(*program_of(two_stages(2, 1), workload));
  const LaneId lane = sums_in(program).front().channel.ends.front().lane;
  change(program, lane);
  return faults_of(program);
}

TEST(TiedSums, AreMissedByTheProgramChecker)
{
  const auto no_instructions = [](testing_support::EditableProgram& program, LaneId) {
    for (const auto& [channel, ends] : sums_in(program)) {
      for (const End& end : channel.ends) program.listing[end.rank].instructions[end.lane].clear();
    }
    for (auto& rank : program.listing) {
      for (auto& instructions : rank.instructions) {
        for (auto& each : instructions) {
          Waits kept;
          for (const Wait& wait : each.waits) {
            if (!rank.instructions[wait.lane].empty()) kept.add(wait);
          }
          each.waits = kept;
        }
      }
    }
  };
  EXPECT_THAT(faults_with(no_instructions),
              Contains("stage 0: no collective of tied gradients joins rank 0 with one of each of stages 0, 1"));
}

TEST(TiedSums, AreCheckedAgainstEachOther)
{
  const auto first = [](const std::function<void(Instruction&)>& edit) {
    return faults_with([&](auto& program, LaneId lane) { edit(program.instruction(0, lane, 0)); });
  };
  EXPECT_THAT(first([](Instruction& sum) { sum.size = Bytes(1); }), Contains(HasSubstr("1 B, but 3072 B at rank 2")));
  EXPECT_THAT(first([](Instruction& sum) { sum.opcode = Opcode::ReduceScatter; }),
              Contains(HasSubstr("ReduceScatter of a tied gradient, which an AllReduce adds up")));
  EXPECT_THAT(first([](Instruction& sum) { sum.stage = 1; }), Contains(HasSubstr("stage 1, but stage 1 at rank 2")));
  EXPECT_THAT(first([](Instruction& sum) { sum.waits = {}; }),
              Contains(HasSubstr("AllReduce of tied gradient in stage 0 does not wait for the last backward")));
  EXPECT_THAT(first([](Instruction& sum) { sum.waits = {}; }),
              Contains(HasSubstr("AllReduce of tied gradient in stage 0 does not wait for the sync of its gradients")));
  const auto update_first = [](auto& program, LaneId) {
    auto& compute = program.listing[0].instructions[compute_lane];
    compute.back().waits = {};
  };
  EXPECT_THAT(faults_with(update_first), Contains(HasSubstr("Update in stage 0 does not wait for the sum of its tied "
                                                            "gradients")));
  const auto facts_first = [](auto& program, LaneId lane) {
    for (auto& instructions : program.listing[0].instructions) {
      for (auto& each : instructions) {
        if (each.payload != Payload::GradientFacts || !is_collective(each.opcode)) continue;
        Waits others;
        for (const Wait& wait : each.waits) {
          if (wait.lane != lane) others.add(wait);
        }
        each.waits = others;
      }
    }
  };
  EXPECT_THAT(faults_with(facts_first, 1.0),
              Contains(HasSubstr("AllReduce of gradient facts in stage 0 does not wait for the sum of its tied "
                                 "gradients")));
  const auto not_tied = [](auto& program, LaneId) { program.tied.clear(); };
  EXPECT_THAT(faults_with(not_tied),
              Contains("stage 0: rank 0 adds up tied gradients, and no other stage has a copy of "
                       "a matrix of it"));
}

}  // namespace
}  // namespace isobar::schedules::tied_test
