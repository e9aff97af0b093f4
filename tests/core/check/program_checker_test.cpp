#include "core/check/program_checker.hpp"

#include "tests/support/editable_program.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace isobar::program_checker_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::EditableProgram;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// The lanes of the sound program, but compute and sync, which both of its ranks have.
constexpr LaneId send_activation = 1;     // rank 0
constexpr LaneId receive_gradient = 2;    // rank 0
constexpr LaneId receive_activation = 1;  // rank 1
constexpr LaneId send_gradient = 2;       // rank 1
constexpr LaneId sync_lane = 3;

Wait after(LaneId lane, std::uint64_t count)
{
  return {lane, 0, count};
}

/// Two stages with two micro-batches and a gradient sync. Rank 0 computes F0 F1 B0 B1 and an Update, rank 1 F0 B0 F1 B1
/// and an Update.
class SoundProgram : public EditableProgram {
 public:
  SoundProgram() : EditableProgram(2)
  {
    const auto activations = connect({{0, "send activation"}, {1, "receive activation"}});
    const auto gradients = connect({{1, "send gradient"}, {0, "receive gradient"}});
    const auto sync = connect({{0, "sync"}, {1, "sync"}});
    for (const std::uint64_t m : {0U, 1U}) {
      forward(0, m, {});
      transfer(activations, Payload::Activation, m, 100, after(compute_lane, m + 1));
      forward(1, m, after(receive_activation, m + 1));
      backward(1, m, {});
      transfer(gradients, Payload::Gradient, m, 50, after(compute_lane, 2 * m + 2));
    }
    for (const std::uint64_t m : {0U, 1U}) backward(0, m, after(receive_gradient, m + 1));
    collective(sync, Opcode::AllReduce, Payload::GradientFacts, 16, after(compute_lane, 4));
    for (const std::size_t rank : {0U, 1U}) compute(rank, Opcode::Update, 0, 1, after(sync_lane, 1));
  }

  void forward(std::size_t rank, std::uint64_t microbatch, const Waits& waits)
  {
    compute(rank, Opcode::Forward, microbatch, 1, waits).acquires.size = Bytes(10);
  }
  void backward(std::size_t rank, std::uint64_t microbatch, const Waits& waits)
  {
    compute(rank, Opcode::Backward, microbatch, 2, waits).releases.size = Bytes(10);
  }
  std::vector<Instruction>& list(std::size_t rank, LaneId lane) { return listing.at(rank).instructions.at(lane); }
  void erase(std::size_t rank, LaneId lane, std::ptrdiff_t position)
  {
    list(rank, lane).erase(list(rank, lane).begin() + position);
  }
  /// Leaves only rank 0, with an empty compute lane.
  void leave_one_rank()
  {
    listing.assign(1, {});
    channel_list.clear();
  }
  void remove_sync()
  {
    channel_list.pop_back();
    for (auto& rank : listing) {
      rank.lanes.pop_back();
      rank.instructions.pop_back();
      rank.instructions[compute_lane].back().waits = {};
    }
  }
};

TEST(FaultsOfProgram, AreNoneInASoundProgram)
{
  EXPECT_THAT(faults_of(SoundProgram()), IsEmpty());
}

/// A way to break the sound program, and the one line that says so.
struct Break {
  std::function<void(SoundProgram&)> edit;
  std::string fault;
};

void expect_each(const std::vector<Break>& breaks)
{
  for (const auto& [edit, fault] : breaks) {
    SoundProgram program;
    edit(program);
    EXPECT_THAT(faults_of(program), ElementsAre(fault));
  }
}

TEST(FaultsOfProgram, NameEachFaultOfLanesAndChannels)
{
  expect_each({
      {[](auto& p) {
         p.listing.clear();
         p.channel_list.clear();
       },
       "program: no ranks; it has at least one"},
      {[](auto& p) {
         p.leave_one_rank();
         p.listing[0].lanes.clear();
       },
       "rank 0: 0 lanes; it has 1 to 65536"},
      {[](auto& p) { p.listing[0].lanes[2].name = "send activation"; },
       "rank 0, lane send activation: the name of lane 1 and lane 2; names are unique in a rank"},
      {[](auto& p) { p.listing[0].lanes[0].engine = Engine::Network; },
       "rank 0, lane compute: lane 0 has a channel or another engine; it computes on the device"},
      {[](auto& p) {
         p.listing[0].lanes[1] = {"a\nb", Engine::Device, 0};
       },
       "rank 0, lane a\\x0ab: a channel and engine device; a lane with a channel has engine network"},
      {[](auto& p) {
         p.listing[0].lanes.push_back({"extra", Engine::Network, {}});
         p.listing[0].instructions.emplace_back();
       },
       "rank 0, lane extra: engine network and no channel; it needs one"},
      {[](auto& p) {
         p.listing[0].lanes.push_back({"extra", Engine::Network, 9});
         p.listing[0].instructions.emplace_back();
       },
       "rank 0, lane extra: channel 9; the program has 3"},
      {[](auto& p) {
         p.listing[0].lanes.push_back({"extra", Engine::Network, 0});
         p.listing[0].instructions.emplace_back();
       },
       "rank 0, lane extra: channel 0, which does not list it as an end"},
      {[](auto& p) {
         p.channel_list[2].ends.push_back({7, 0});
       },
       "channel 2, end 2: rank 7; the program has 2 ranks"},
      {[](auto& p) {
         p.channel_list[2].ends.push_back({1, 9});
       },
       "channel 2, end 2: lane 9 of rank 1, which has 4 lanes"},
      {[](auto& p) {
         p.channel_list[2].ends.push_back({1, send_gradient});
       },
       "channel 2, end 2: rank 1, lane send gradient, which does not have this channel"},
      {[](auto& p) {
         p.channel_list[2].ends.push_back({0, sync_lane});
       },
       "channel 2, end 2: rank 0 again; the ends of a channel are on different ranks"},
      {[](auto& p) { p.channel_list.emplace_back(); }, "channel 3: no ends"},
      {[](auto& p) { p.list(0, send_activation).pop_back(); },
       "rank 0, lane send activation: 1 instructions, but 2 at the other end of its channel, rank 1, lane receive "
       "activation"},
      {[](auto& p) { p.listing[1].resident[1] = Bytes(nan); },
       "rank 1: nan B of resident host memory; an amount is finite and at least 0"},
  });
}

TEST(FaultsOfProgram, NameEachFaultOfAnInstructionAlone)
{
  expect_each({
      {[](auto& p) { p.instruction(0, compute_lane, 1).lane = 2; },
       "rank 0, lane compute, position 1: says lane 2; it is in lane 0"},
      {[](auto& p) { p.instruction(0, compute_lane, 1).opcode = Opcode::Send; },
       "rank 0, lane compute, position 1: Send in a lane without a channel"},
      {[](auto& p) { p.instruction(0, send_activation, 1).opcode = Opcode::Forward; },
       "rank 0, lane send activation, position 1: Forward in a lane with a channel"},
      {[](auto& p) { p.instruction(0, send_activation, 1).opcode = Opcode::Recv; },
       "rank 0, lane send activation, position 1: Recv at the first end of its channel; the sender is first"},
      {[](auto& p) { p.instruction(1, receive_activation, 0).opcode = Opcode::Send; },
       "rank 1, lane receive activation, position 0: Send at the second end of its channel; the sender is first"},
      {[](auto& p) {
         p.listing.emplace_back();
         p.listing[2].lanes.push_back({"sync", Engine::Network, 2});
         p.listing[2].instructions.emplace_back();
         p.channel_list[2].ends.push_back({2, 1});
         p.add(2, 1, p.instruction(1, sync_lane, 0)).waits = {};
         p.instruction(0, sync_lane, 0).opcode = Opcode::Send;
       },
       "rank 0, lane sync, position 0: Send over a channel of 3 ends; a transfer has two"},
      {[](auto& p) { p.instruction(0, compute_lane, 0).time = Seconds(-1); },
       "rank 0, lane compute, position 0: time -1; an amount is finite and at least 0"},
      {[](auto& p) { p.instruction(0, send_activation, 0).size = Bytes(std::numeric_limits<double>::infinity()); },
       "rank 0, lane send activation, position 0: size inf; an amount is finite and at least 0"},
      {[](auto& p) { p.instruction(1, compute_lane, 0).acquires.size = Bytes(nan); },
       "rank 1, lane compute, position 0: acquires nan; an amount is finite and at least 0"},
      {[](auto& p) { p.instruction(1, compute_lane, 0).releases.size = Bytes(-2); },
       "rank 1, lane compute, position 0: releases -2; an amount is finite and at least 0"},
      {[](auto& p) { p.instruction(0, compute_lane, 0).first_layer = 3; },
       "rank 0, lane compute, position 0: first_layer 3 is after last_layer 0"},
      {[](auto& p) { p.instruction(0, compute_lane, 2).waits = after(9, 1); },
       "rank 0, lane compute, position 2: waits for lane 9; the rank has 4 lanes"},
      {[](auto& p) { p.instruction(0, compute_lane, 2).waits = after(receive_gradient, 3); },
       "rank 0, lane compute, position 2: waits for 3 instructions of lane receive gradient, which has 2"},
      {[](auto& p) {
         p.instruction(0, compute_lane, 2).waits = Wait{receive_gradient, 1, 3};
       },
       "rank 0, lane compute, position 2: waits for 3 instructions of lane receive gradient, which has 2"},
      {[](auto& p) { p.instruction(0, compute_lane, 1).waits = after(compute_lane, 2); },
       "rank 0, lane compute, position 1: waits for 2 instructions of its own lane, where 1 come before it"},
  });
}

TEST(FaultsOfProgram, NameEachDifferenceOfInstructionsThatMeet)
{
  expect_each({
      {[](auto& p) { p.instruction(1, sync_lane, 0).opcode = Opcode::AllGather; },
       "rank 0, lane sync, position 0: AllReduce, but AllGather at rank 1, lane sync, position 0"},
      {[](auto& p) { p.instruction(1, receive_activation, 1).opcode = Opcode::AllReduce; },
       "rank 0, lane send activation, position 1: Send, but AllReduce at rank 1, lane receive activation, position 1"},
      {[](auto& p) {
         for (const std::size_t rank : {0U, 1U}) p.instruction(rank, 1, 1).opcode = Opcode::AllReduce;
       },
       "rank 0, lane send activation, position 1: AllReduce after Send over one channel, which has either transfers or "
       "collectives"},
      {[](auto& p) { p.instruction(1, receive_activation, 1).payload = Payload::Gradient; },
       "rank 0, lane send activation, position 1: activation, but gradient at rank 1, lane receive activation, "
       "position 1"},
      {[](auto& p) { p.instruction(1, receive_activation, 1).size = Bytes(90); },
       "rank 0, lane send activation, position 1: 100 B, but 90 B at rank 1, lane receive activation, position 1"},
      {[](auto& p) { p.instruction(1, sync_lane, 0).size = Bytes(8); },
       "rank 0, lane sync, position 0: 16 B, but 8 B at rank 1, lane sync, position 0"},
      {[](auto& p) { p.instruction(1, receive_activation, 0).microbatch = 1; },
       "rank 0, lane send activation, position 0: micro-batch 0, but micro-batch 1 at rank 1, lane receive activation, "
       "position 0"},
      {[](auto& p) { p.instruction(1, receive_activation, 0).stage = 2; },
       "rank 0, lane send activation, position 0: stage 0, but stage 2 at rank 1, lane receive activation, position 0"},
      {[](auto& p) { p.instruction(0, receive_gradient, 1).stage = 2; },
       "rank 1, lane send gradient, position 1: stage 1, but stage 2 at rank 0, lane receive gradient, position 1"},
      {[](auto& p) {
         for (const std::size_t rank : {0U, 1U}) p.instruction(rank, sync_lane, 0).payload = Payload::ParameterGradient;
       },
       "rank 0, lane sync, position 0: stage 0, but stage 1 at rank 1, lane sync, position 0"},
  });
}

TEST(FaultsOfProgram, NameEachTaskThatIsMissingOrTwice)
{
  expect_each({
      {[](auto& p) { p.instruction(0, compute_lane, 1).microbatch = 0; },
       "rank 0, lane compute, position 1: a second Forward for micro-batch 0 of stage 0; the first is at rank 0, lane "
       "compute, position 0"},
      {[](auto& p) { p.compute(0, Opcode::Update, 0); },
       "rank 0, lane compute, position 5: a second Update for stage 0; the first is at rank 0, lane compute, "
       "position 4"},
      {[](auto& p) { p.erase(1, compute_lane, 2); }, "stage 1: no Forward of micro-batch 1"},
      {[](auto& p) {
         p.leave_one_rank();
         for (const Opcode opcode : {Opcode::Forward, Opcode::Backward, Opcode::Update})
           p.compute(0, opcode, 0).stage = 1;
       },
       "stage 0: no Forward; stages are numbered from 0 without gaps"},
      {[](auto& p) { p.leave_one_rank(); }, "program: no Forward; it has one for every micro-batch"},
      {[](auto& p) { p.erase(0, compute_lane, 3); },
       "rank 0, lane compute, position 1: micro-batch 1 of stage 0 has no Backward"},
      {[](auto& p) { p.compute(0, Opcode::BackwardInput, 0); },
       "rank 0, lane compute, position 5: micro-batch 0 of stage 0 has a Backward too"},
      {[](auto& p) { p.compute(0, Opcode::BackwardWeight, 0); },
       "rank 0, lane compute, position 5: micro-batch 0 of stage 0 has a Backward too"},
      {[](auto& p) { p.instruction(0, compute_lane, 2).opcode = Opcode::BackwardInput; },
       "rank 0, lane compute, position 2: micro-batch 0 of stage 0 has no BackwardWeight"},
      {[](auto& p) { p.instruction(0, compute_lane, 2).opcode = Opcode::BackwardWeight; },
       "rank 0, lane compute, position 2: micro-batch 0 of stage 0 has no BackwardInput"},
      {[](auto& p) {
         p.instruction(0, compute_lane, 3).opcode = Opcode::BackwardWeight;
         p.compute(1, Opcode::BackwardInput, 1).stage = 0;
       },
       "rank 1, lane compute, position 5: micro-batch 1 of stage 0 has its Forward on rank 0"},
      {[](auto& p) {
         p.list(0, send_activation).pop_back();
         p.list(1, receive_activation).pop_back();
         p.instruction(1, compute_lane, 2).waits = {};
       },
       "rank 1, lane compute, position 2: no Recv brings the activation of micro-batch 1 from stage 0"},
      {[](auto& p) {
         p.list(1, send_gradient).pop_back();
         p.list(0, receive_gradient).pop_back();
         p.instruction(0, compute_lane, 3).waits = {};
       },
       "rank 0, lane compute, position 3: no Recv brings the gradient of micro-batch 1 from stage 1"},
      {[](auto& p) { p.transfer(0, Payload::Activation, 7, 100); },
       "rank 1, lane receive activation, position 2: micro-batch 7 of stage 1 has no Forward"},
      {[](auto& p) { p.list(1, compute_lane).pop_back(); }, "rank 1: no Update of stage 1, of which it has backwards"},
      {[](auto& p) { p.compute(0, Opcode::Update, 0).stage = 1; },
       "rank 0, lane compute, position 5: Update of stage 1, of which the rank has no backward"},
  });
}

TEST(FaultsOfProgram, NameEachInstructionThatDoesNotWaitForWhatItNeeds)
{
  expect_each({
      {[](auto& p) {
         std::swap(p.instruction(1, compute_lane, 2), p.instruction(1, compute_lane, 3));
         p.instruction(1, compute_lane, 2).releases.size = p.instruction(1, compute_lane, 3).acquires.size = Bytes(0);
       },
       "rank 1, lane compute, position 2: Backward of micro-batch 1 in stage 1 does not wait for the Forward at rank "
       "1, lane compute, position 3"},
      {[](auto& p) { p.instruction(1, compute_lane, 0).waits = {}; },
       "rank 1, lane compute, position 0: Forward of micro-batch 0 in stage 1 does not wait for the Recv at rank 1, "
       "lane receive activation, position 0"},
      {[](auto& p) { p.instruction(0, compute_lane, 2).waits = {}; },
       "rank 0, lane compute, position 2: Backward of micro-batch 0 in stage 0 does not wait for the Recv at rank 0, "
       "lane receive gradient, position 0"},
      {[](auto& p) {
         p.instruction(0, compute_lane, 2).waits = Wait{receive_gradient, 1, 1};
       },
       "rank 0, lane compute, position 2: Backward of micro-batch 0 in stage 0 does not wait for the Recv at rank 0, "
       "lane receive gradient, position 0"},
      {[](auto& p) { p.instruction(0, send_activation, 0).waits = {}; },
       "rank 0, lane send activation, position 0: Send of activation of micro-batch 0 in stage 0 does not wait for the "
       "Forward at rank 0, lane compute, position 0"},
      {[](auto& p) { p.instruction(1, send_gradient, 1).waits = after(compute_lane, 3); },
       "rank 1, lane send gradient, position 1: Send of gradient of micro-batch 1 in stage 1 does not wait for the "
       "backward at rank 1, lane compute, position 3"},
      {[](auto& p) {
         p.instruction(0, compute_lane, 2).opcode = Opcode::BackwardWeight;
         p.compute(0, Opcode::BackwardInput, 0, 1, after(receive_gradient, 1));
       },
       "rank 0, lane compute, position 2: BackwardWeight of micro-batch 0 in stage 0 does not wait for the "
       "BackwardInput at rank 0, lane compute, position 5"},
      {[](auto& p) {
         p.remove_sync();
         std::swap(p.instruction(0, compute_lane, 3), p.instruction(0, compute_lane, 4));
       },
       "rank 0, lane compute, position 3: Update in stage 0 does not wait for the last backward at rank 0, lane "
       "compute, position 4"},
      {[](auto& p) { p.instruction(0, compute_lane, 4).waits = {}; },
       "rank 0, lane compute, position 4: Update in stage 0 does not wait for the sync of gradient facts at rank 0, "
       "lane sync, position 0"},
      {[](auto& p) { p.instruction(0, sync_lane, 0).waits = after(compute_lane, 3); },
       "rank 0, lane sync, position 0: AllReduce of gradient facts in stage 0 does not wait for the last backward at "
       "rank 0, lane compute, position 3"},
      {[](auto& p) {
         p.channel_list[2].ends.pop_back();
         p.listing[1].lanes.pop_back();
         p.listing[1].instructions.pop_back();
         p.instruction(1, compute_lane, 4).waits = {};
       },
       "rank 1, lane compute, position 4: Update in stage 1 has no part in the sync of gradient facts, which other "
       "ranks have"},
  });
}

TEST(FaultsOfProgram, NameMemoryThatDoesNotReturnToItsBeginning)
{
  expect_each({
      {[](auto& p) { p.instruction(0, compute_lane, 2).releases.size = Bytes(30); },
       "rank 0, lane compute, position 2: Backward of micro-batch 0 in stage 0 releases more device memory than its "
       "rank has acquired"},
      {[](auto& p) { p.instruction(1, compute_lane, 3).releases.size = Bytes(0); },
       "rank 1: device memory ends 10 B above where it began; a period releases all that it acquires"},
  });
}

TEST(FaultsOfProgram, CheckTheMemoryOfEachTierApart)
{
  SoundProgram program;
  program.instruction(0, compute_lane, 2).releases.tier = Tier::Host;
  EXPECT_THAT(faults_of(program),
              ElementsAre("rank 0, lane compute, position 2: Backward of micro-batch 0 in stage 0 releases more host "
                          "memory than its rank has acquired",
                          "rank 0: device memory ends 10 B above where it began; a period releases all that it "
                          "acquires"));
  program.instruction(0, compute_lane, 0).acquires.tier = Tier::Host;
  EXPECT_THAT(faults_of(program), IsEmpty());
}

TEST(FaultsOfProgram, AreADeadlockWithTheLanesThatWaitForEachOther)
{
  SoundProgram program;
  program.instruction(0, compute_lane, 0).waits = after(receive_gradient, 1);
  EXPECT_THAT(faults_of(program),
              ElementsAre("deadlock, each waits for the next and the last for the first: "
                          "rank 0, lane compute, position 0; rank 0, lane receive gradient, position 0; "
                          "rank 1, lane send gradient, position 0; rank 1, lane compute, position 0; "
                          "rank 1, lane receive activation, position 0; rank 0, lane send activation, position 0"));
}

TEST(FaultsOfProgram, CountWaitsThroughOtherLanes)
{
  // The Update has a lane of its own and waits for the sync alone, which waits for the backwards.
  SoundProgram program;
  program.listing[0].lanes.push_back({"update", Engine::Device, {}});
  program.listing[0].instructions.emplace_back();
  program.add(0, 4, program.instruction(0, compute_lane, 4));
  program.list(0, compute_lane).pop_back();
  EXPECT_THAT(faults_of(program), IsEmpty());
  program.instruction(0, 4, 0).waits = {};
  EXPECT_THAT(faults_of(program),
              ElementsAre("rank 0, lane update, position 0: Update in stage 0 does not wait for the last backward at "
                          "rank 0, lane compute, position 3",
                          "rank 0, lane update, position 0: Update in stage 0 does not wait for the sync of gradient "
                          "facts at rank 0, lane sync, position 0"));
}

TEST(FaultsOfProgram, AreNoneWhereBackwardsAreSplit)
{
  SoundProgram program;
  for (const std::uint64_t m : {0U, 1U}) {
    Instruction& input = program.instruction(0, compute_lane, 2 + m);
    input.opcode = Opcode::BackwardInput;
    input.releases.size = Bytes(0);
  }
  const Instruction update = program.instruction(0, compute_lane, 4);
  program.list(0, compute_lane).pop_back();
  for (const std::uint64_t m : {1U, 0U}) {
    program.compute(0, Opcode::BackwardWeight, m).releases.size = Bytes(10);
  }
  program.add(0, compute_lane, update);
  // The sync still waits for four tasks only; the weight gradients come after these.
  EXPECT_THAT(faults_of(program),
              ElementsAre("rank 0, lane sync, position 0: AllReduce of gradient facts in stage 0 "
                          "does not wait for the last backward at rank 0, lane compute, position 5"));
  program.instruction(0, sync_lane, 0).waits = after(compute_lane, 6);
  EXPECT_THAT(faults_of(program), IsEmpty());
}

// --- several stages on a rank, and several ranks of a stage -----------------------------------------------------

TEST(FaultsOfProgram, CheckTheOrderOfNeighbouringStagesOnOneRank)
{
  const auto faults_of_order = [](const std::vector<std::pair<Opcode, std::uint32_t>>& order) {
    EditableProgram program(1);
    for (const auto& [opcode, stage] : order) program.compute(0, opcode, 0).stage = stage;
    for (const std::uint32_t stage : {0U, 1U}) program.compute(0, Opcode::Update, 0).stage = stage;
    return faults_of(program);
  };
  constexpr auto F = Opcode::Forward;
  constexpr auto B = Opcode::Backward;
  EXPECT_THAT(faults_of_order({{F, 0}, {F, 1}, {B, 1}, {B, 0}}), IsEmpty());
  EXPECT_THAT(faults_of_order({{F, 1}, {F, 0}, {B, 1}, {B, 0}}),
              ElementsAre("rank 0, lane compute, position 0: Forward of micro-batch 0 in stage 1 does not wait for the "
                          "Forward of the stage before at rank 0, lane compute, position 1"));
  EXPECT_THAT(
      faults_of_order({{F, 0}, {F, 1}, {B, 0}, {B, 1}}),
      ElementsAre("rank 0, lane compute, position 2: Backward of micro-batch 0 in stage 0 does not wait for the "
                  "backward of the stage after at rank 0, lane compute, position 3"));
}

/// One stage on `ranks` ranks, one micro-batch each. Channel i sums the parameter gradients of ranks i and i+1.
class ReplicatedProgram : public EditableProgram {
 public:
  explicit ReplicatedProgram(std::size_t ranks) : EditableProgram(ranks)
  {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (const Opcode opcode : {Opcode::Forward, Opcode::Backward, Opcode::Update}) {
        compute(rank, opcode, rank).stage = 0;
      }
    }
    for (std::size_t rank = 0; rank + 1 < ranks; ++rank) {
      const auto channel = connect({{rank, "sync up"}, {rank + 1, "sync down"}});
      collective(channel, Opcode::AllReduce, Payload::ParameterGradient, 100, after(compute_lane, 2));
      for (const auto& [end, lane] : channel_list[channel].ends) {
        instruction(end, lane, 0).stage = 0;
        instruction(end, compute_lane, 2).waits.add(after(lane, 1));
      }
    }
  }
};

TEST(FaultsOfProgram, FindWhereGradientsOfAStageDoNotMeet)
{
  EXPECT_THAT(faults_of(ReplicatedProgram(1)), IsEmpty());
  EXPECT_THAT(faults_of(ReplicatedProgram(4)), IsEmpty());
  ReplicatedProgram cut(4);
  for (const auto& [rank, lane] : cut.channel_list[1].ends) {
    cut.listing[rank].instructions[lane].clear();
    cut.instruction(rank, compute_lane, 2).waits = after(static_cast<LaneId>(3 - lane), 1);
  }
  EXPECT_THAT(faults_of(cut), ElementsAre("stage 0: no collective of its parameter gradients joins ranks 0 and 2"));
}

TEST(FaultsOfProgram, FindAnUpdateBeforeTheSumOfItsGradients)
{
  ReplicatedProgram program(2);
  program.instruction(1, compute_lane, 2).waits = {};
  EXPECT_THAT(faults_of(program),
              ElementsAre("rank 1, lane compute, position 2: Update in stage 0 does not wait for the sync of its "
                          "gradients at rank 1, lane sync down, position 0"));
  program.instruction(1, compute_lane, 2).waits = after(1, 1);
  program.instruction(1, 1, 0).waits = after(compute_lane, 1);
  EXPECT_THAT(
      faults_of(program),
      ElementsAre("rank 1, lane sync down, position 0: AllReduce of parameter gradient in stage 0 does not wait "
                  "for the last backward at rank 1, lane compute, position 1"));
}

/// One stage on two ranks that update a part of it each, and then gather its parameters.
class DividedProgram : public ReplicatedProgram {
 public:
  static constexpr LaneId gather_lane = 2;

  DividedProgram() : ReplicatedProgram(2)
  {
    for (const auto& [rank, lane] : channel_list[0].ends) instruction(rank, lane, 0).opcode = Opcode::ReduceScatter;
    const auto channel = connect({{0, "gather"}, {1, "gather"}});
    collective(channel, Opcode::AllGather, Payload::Parameter, 50, after(compute_lane, 3));
    for (const auto& [rank, lane] : channel_list[channel].ends) {
      instruction(rank, lane, 0).stage = 0;
      instruction(rank, compute_lane, 0).waits.add({lane, 1, 1});
    }
  }
};

TEST(FaultsOfProgram, FindParametersThatAreUpdatedInPartsAndNotGathered)
{
  EXPECT_THAT(faults_of(DividedProgram()), IsEmpty());

  DividedProgram without_gather;
  for (const std::size_t rank : {0U, 1U}) {
    without_gather.listing[rank].instructions[DividedProgram::gather_lane].clear();
    without_gather.instruction(rank, compute_lane, 0).waits = {};
  }
  EXPECT_THAT(faults_of(without_gather),
              ElementsAre("stage 0: no collective of the parameters that ranks update in parts joins ranks 0 and 1"));

  DividedProgram too_early;
  too_early.instruction(0, DividedProgram::gather_lane, 0).waits = after(compute_lane, 2);
  EXPECT_THAT(faults_of(too_early),
              ElementsAre("rank 0, lane gather, position 0: AllGather of parameter in stage 0 does not wait for the "
                          "Update at rank 0, lane compute, position 2"));

  DividedProgram not_awaited;
  not_awaited.instruction(1, compute_lane, 0).waits = {};
  EXPECT_THAT(faults_of(not_awaited),
              ElementsAre("rank 1, lane compute, position 0: Forward of micro-batch 1 in stage 0 does not wait for a "
                          "gather of its parameters",
                          "rank 1, lane compute, position 1: Backward of micro-batch 1 in stage 0 does not wait for a "
                          "gather of its parameters"));
}

/// The same, but each rank gathers the parameters for its Forward and for its Backward.
class GatheringProgram : public DividedProgram {
 public:
  GatheringProgram()
  {
    for (const std::size_t rank : {0U, 1U}) {
      auto& gathers = listing[rank].instructions[gather_lane];
      gathers.push_back(gathers.front());
      gathers[0].waits = Wait{compute_lane, 1, 3};
      gathers[1].waits = after(compute_lane, 1);
      instruction(rank, compute_lane, 0).waits = after(gather_lane, 1);
      instruction(rank, compute_lane, 1).waits = after(gather_lane, 2);
    }
  }
};

TEST(FaultsOfProgram, FindParametersThatAreGatheredForAPassBeforeTheyAreUpdated)
{
  EXPECT_THAT(faults_of(GatheringProgram()), IsEmpty());

  GatheringProgram too_early;
  too_early.instruction(1, DividedProgram::gather_lane, 0).waits = {};
  EXPECT_THAT(faults_of(too_early),
              ElementsAre("rank 1, lane gather, position 0: AllGather of parameter in stage 0 does not wait for the "
                          "Update of the period before at rank 1, lane compute, position 2"));

  GatheringProgram not_awaited;
  not_awaited.instruction(0, compute_lane, 1).waits = {};
  EXPECT_THAT(faults_of(not_awaited),
              ElementsAre("rank 0, lane compute, position 1: Backward of micro-batch 0 in stage 0 does not wait for a "
                          "gather of its parameters"));
}

// --- ranks that compute a stage together -------------------------------------------------------------------------

constexpr LaneId sum_activations = 1;
constexpr LaneId sum_gradients = 2;
constexpr LaneId sum_shared = 3;

/// Two stages that two ranks compute together, with one micro-batch: F0 F1 B1 B0 and two Updates on each.
class SharedStages : public EditableProgram {
 public:
  SharedStages() : EditableProgram(2)
  {
    const auto activations = connect({{0, "sum activations"}, {1, "sum activations"}});
    const auto gradients = connect({{0, "sum gradients"}, {1, "sum gradients"}});
    const auto shared = connect({{0, "sum shared"}, {1, "sum shared"}});
    for (const std::size_t rank : {0U, 1U}) {
      compute(rank, Opcode::Forward, 0).stage = 0;
      compute(rank, Opcode::Forward, 0, 1, after(sum_activations, 1)).stage = 1;
      compute(rank, Opcode::Backward, 0, 1, after(sum_activations, 2)).stage = 1;
      compute(rank, Opcode::Backward, 0, 1, after(sum_gradients, 1)).stage = 0;
      compute(rank, Opcode::Update, 0, 1, after(sum_shared, 2)).stage = 0;
      compute(rank, Opcode::Update, 0, 1, after(sum_shared, 1)).stage = 1;
    }
    meet(activations, Opcode::AllReduce, Payload::Activation, 0, after(compute_lane, 1));
    meet(activations, Opcode::AllGather, Payload::Activation, 1, after(compute_lane, 2));
    meet(gradients, Opcode::AllReduce, Payload::Gradient, 1, after(compute_lane, 3));
    meet(shared, Opcode::AllReduce, Payload::ParameterGradient, 1, after(compute_lane, 3));
    meet(shared, Opcode::AllReduce, Payload::ParameterGradient, 0, after(compute_lane, 4));
  }

  void meet(std::size_t channel, Opcode opcode, Payload payload, std::uint32_t stage, Wait wait)
  {
    collective(channel, opcode, payload, 8, wait);
    for (const End& end : channel_list.at(channel).ends) listing[end.rank].instructions[end.lane].back().stage = stage;
  }
  /// An instruction of both ranks.
  void edit(LaneId lane, std::size_t position, const std::function<void(Instruction&)>& change)
  {
    for (const std::size_t rank : {0U, 1U}) change(instruction(rank, lane, position));
  }
};

TEST(FaultsOfProgram, AreNoneWhereRanksMakeTheirResultsWhole)
{
  EXPECT_THAT(faults_of(SharedStages()), IsEmpty());
}

TEST(FaultsOfProgram, NameEachTaskThatDoesNotWaitForWholeResults)
{
  const std::vector<std::pair<std::function<void(SharedStages&)>, std::string>> breaks = {
      {[](auto& p) { p.instruction(0, compute_lane, 1).waits = {}; },
       "rank 0, lane compute, position 1: Forward of micro-batch 0 in stage 1 does not wait for the collective of "
       "activations of the stage before at rank 0, lane sum activations, position 0"},
      {[](auto& p) { p.instruction(1, compute_lane, 2).waits = {}; },
       "rank 1, lane compute, position 2: Backward of micro-batch 0 in stage 1 does not wait for the collective of its "
       "activations at rank 1, lane sum activations, position 1"},
      {[](auto& p) { p.instruction(0, compute_lane, 3).waits = {}; },
       "rank 0, lane compute, position 3: Backward of micro-batch 0 in stage 0 does not wait for the collective of "
       "gradients of the stage after at rank 0, lane sum gradients, position 0"},
      {[](auto& p) { p.instruction(1, sum_activations, 0).waits = {}; },
       "rank 1, lane sum activations, position 0: AllReduce of activation in stage 0 does not wait for the Forward at "
       "rank 1, lane compute, position 0"},
      {[](auto& p) { p.instruction(0, sum_gradients, 0).waits = {}; },
       "rank 0, lane sum gradients, position 0: AllReduce of gradient in stage 1 does not wait for the backward at "
       "rank "
       "0, lane compute, position 2"},
      {[](auto& p) { p.instruction(0, compute_lane, 4).waits = {}; },
       "rank 0, lane compute, position 4: Update in stage 0 does not wait for the sync of its gradients at rank 0, "
       "lane "
       "sum shared, position 1"},
  };
  for (const auto& [edit, fault] : breaks) {
    SharedStages program;
    edit(program);
    EXPECT_THAT(faults_of(program), ElementsAre(fault));
  }
}

TEST(FaultsOfProgram, NameRanksThatComputeTheSameButDoNotMeet)
{
  SharedStages alone;
  alone.edit(sum_activations, 1, [](Instruction& sum) { sum.payload = Payload::ParameterGradient; });
  EXPECT_THAT(faults_of(alone), ElementsAre("rank 0, lane compute, position 1: no collective of its activations",
                                            "rank 1, lane compute, position 1: no collective of its activations"));
  SharedStages without_gradient;
  without_gradient.edit(sum_gradients, 0, [](Instruction& sum) { sum.payload = Payload::ParameterGradient; });
  EXPECT_THAT(faults_of(without_gradient),
              ElementsAre("rank 0, lane compute, position 1: no collective of its gradients",
                          "rank 1, lane compute, position 1: no collective of its gradients"));
  SoundProgram doubled;
  doubled.compute(1, Opcode::Forward, 0).stage = 0;
  EXPECT_THAT(faults_of(doubled),
              testing::Contains("rank 1, lane compute, position 5: a second Forward for micro-batch 0 of stage 0; the "
                                "first is at rank 0, lane compute, position 0"));
}

TEST(FaultsOfProgram, NameAGroupOfRanksWhoseParameterGradientsMeetNoOtherGroup)
{
  // Ranks 0 and 1 compute micro-batch 0, ranks 2 and 3 micro-batch 1; only the first ranks add up their gradients.
  EditableProgram program(4);
  const std::size_t groups[2] = {program.connect({{0, "sum activations"}, {1, "sum activations"}}),
                                 program.connect({{2, "sum activations"}, {3, "sum activations"}})};
  const std::size_t shared[2] = {program.connect({{0, "sum shared"}, {1, "sum shared"}}),
                                 program.connect({{2, "sum shared"}, {3, "sum shared"}})};
  const auto sync = program.connect({{0, "sync"}, {2, "sync"}});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    program.compute(rank, Opcode::Forward, rank / 2).stage = 0;
    program.compute(rank, Opcode::Backward, rank / 2, 1, after(1, 1)).stage = 0;
    Waits sums = after(2, 1);
    if (rank % 2 == 0) sums.add(after(3, 1));
    program.compute(rank, Opcode::Update, 0, 1, sums).stage = 0;
  }
  for (const std::size_t group : {0U, 1U}) {
    program.collective(groups[group], Opcode::AllGather, Payload::Activation, 8, after(compute_lane, 1));
    program.collective(shared[group], Opcode::AllReduce, Payload::ParameterGradient, 8, after(compute_lane, 2));
  }
  program.collective(sync, Opcode::AllReduce, Payload::ParameterGradient, 8, after(compute_lane, 2));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    for (LaneId lane = 1; lane < program.lanes(rank).size(); ++lane) {
      Instruction& collective = program.instruction(rank, lane, 0);
      collective.stage = 0;
      if (lane == 1) collective.microbatch = rank / 2;
    }
  }
  EXPECT_THAT(faults_of(program),
              ElementsAre("stage 0: no collective of its parameter gradients joins rank 1 with each "
                          "group of ranks"));
}

// --- evaluation, many faults, long programs ---------------------------------------------------------------------

TEST(FaultsOfProgram, AcceptProgramsWithoutBackwardsOnlyAsEvaluations)
{
  EditableProgram program(2);
  const auto activations = program.connect({{0, "send activation"}, {1, "receive activation"}});
  for (std::uint64_t m = 0; m < 3; ++m) {
    program.compute(0, Opcode::Forward, m);
    program.transfer(activations, Payload::Activation, m, 100, after(compute_lane, m + 1));
    program.compute(1, Opcode::Forward, m, 1, after(1, m + 1));
  }
  EXPECT_THAT(faults_of(program, ProgramUse::Evaluation), IsEmpty());
  const auto faults = faults_of(program);
  ASSERT_EQ(faults.size(), 6U);
  EXPECT_EQ(faults[0], "rank 0, lane compute, position 0: micro-batch 0 of stage 0 has no Backward");
  program.instruction(1, compute_lane, 2).opcode = Opcode::Update;
  EXPECT_THAT(faults_of(program, ProgramUse::Evaluation),
              ElementsAre("rank 1, lane compute, position 2: Update in an evaluation, which has only forwards"));
}

TEST(FaultsOfProgram, AreShownUpToTwentyAndThenCounted)
{
  EditableProgram program(1);
  for (std::uint64_t m = 0; m < 31; ++m) program.compute(0, Opcode::Forward, m);
  const auto faults = faults_of(program);
  ASSERT_EQ(faults.size(), 21U);
  EXPECT_EQ(faults[19], "rank 0, lane compute, position 19: micro-batch 19 of stage 0 has no Backward");
  EXPECT_EQ(faults[20], "and 11 more");
}

/// A lane that is as long as it says.
class LongProgram : public EditableProgram {
 public:
  explicit LongProgram(std::uint64_t length) : EditableProgram(1), length_(length) {}
  std::uint64_t length(std::size_t, LaneId) const override { return length_; }

 private:
  std::uint64_t length_;
};

TEST(FaultsOfProgram, AreNotLookedForBeyondTheLimit)
{
  for (const std::uint64_t length : {most_checked_instructions + 1, std::numeric_limits<std::uint64_t>::max()}) {
    EXPECT_THAT(
        faults_of(LongProgram(length)),
        ElementsAre(fmt::format("program: {} instructions in a period; at most 4194304 can be checked", length)));
  }
}

TEST(FaultsOfProgram, DoNotLookForMicroBatchesOneByOne)
{
  EditableProgram program(1);
  program.compute(0, Opcode::Forward, 0);
  program.compute(0, Opcode::Forward, std::numeric_limits<std::uint64_t>::max());
  EXPECT_THAT(faults_of(program), ElementsAre("stage 0: no Forward of micro-batch 1"));
}

}  // namespace
}  // namespace isobar::program_checker_test
