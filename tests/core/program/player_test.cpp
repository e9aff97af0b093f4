#include "core/program/player.hpp"

#include "core/errors.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/uniform_rates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::player_test {
namespace {

using testing_support::EditableProgram;
using testing_support::uniform_rates;

constexpr double tolerance = 1e-12;

Wait after(LaneId lane, std::uint64_t count, std::uint16_t periods_back = 0)
{
  return {lane, periods_back, count};
}

double device_peak(const PlayedProgram& played, std::size_t rank)
{
  return played.peak_memory.at(rank)[static_cast<std::size_t>(Tier::Device)].value;
}

/// Two stages with two micro-batches: all forwards first on the first, one at a time on the second.
void add_two_stages(EditableProgram& program)
{
  const auto activations = program.connect({{0, "send activation"}, {1, "receive activation"}});
  const auto gradients = program.connect({{1, "send gradient"}, {0, "receive gradient"}});
  for (const std::uint64_t m : {0U, 1U}) {
    program.compute(0, Opcode::Forward, m, 1);
    program.transfer(activations, Payload::Activation, m, 1, after(compute_lane, m + 1));
    program.compute(1, Opcode::Forward, m, 2, after(1, m + 1));
    program.compute(1, Opcode::Backward, m, 3);
    program.transfer(gradients, Payload::Gradient, m, 1, after(compute_lane, 2 * m + 2));
  }
  for (const std::uint64_t m : {0U, 1U}) program.compute(0, Opcode::Backward, m, 2, after(2, m + 1));
  program.compute(0, Opcode::Update, 0, 0.5);
  program.compute(1, Opcode::Update, 0, 1);
}

TEST(PlayProgram, TakesTheTimesOfASmallPipelineByHand)
{
  EditableProgram program(2);
  add_two_stages(program);
  // Messages of 0.5 s latency and 0.25 s data. Activations arrive at 1.75 and 2.75, gradients at 7.5 and 12.5.
  const auto played = play_program(program, uniform_rates(0.5, 4));
  ASSERT_EQ(played.periods.size(), 1U);
  const PlayedPeriod& period = played.periods[0];
  EXPECT_DOUBLE_EQ(period.end.value, 15);
  EXPECT_DOUBLE_EQ(period.step_time.value, 15);
  EXPECT_DOUBLE_EQ(period.ranks[0].begin.value, 0);
  EXPECT_DOUBLE_EQ(period.ranks[0].end.value, 15);
  EXPECT_DOUBLE_EQ(period.ranks[0].busy.value, 6.5);
  EXPECT_DOUBLE_EQ(period.ranks[1].begin.value, 1.75);
  EXPECT_DOUBLE_EQ(period.ranks[1].end.value, 12.75);
  EXPECT_DOUBLE_EQ(period.ranks[1].busy.value, 11);
  EXPECT_DOUBLE_EQ(period.window().value, 15);
}

TEST(PlayProgram, TakesNoTimeForTransfersWithoutRates)
{
  EditableProgram program(2);
  add_two_stages(program);
  PlayerRates rates;
  EXPECT_DOUBLE_EQ(play_program(program, rates).periods[0].end.value, 1 + 2 + 3 + 2 + 3 + 2 + 0.5);
}

TEST(PlayProgram, LetsMessagesOfALaneFollowBackToBack)
{
  EditableProgram program(2);
  const auto channel = program.connect({{0, "send"}, {1, "receive"}});
  for (std::uint64_t m = 0; m < 64; ++m) program.transfer(channel, Payload::Activation, m, 10);
  EXPECT_NEAR(play_program(program, uniform_rates(0.1, 100)).periods[0].end.value, 0.1 + 64 * 0.1, tolerance);
}

TEST(PlayProgram, StartsATransferWhenBothEndsHaveReachedIt)
{
  EditableProgram program(2);
  const auto channel = program.connect({{0, "send"}, {1, "receive"}});
  program.compute(0, Opcode::Forward, 0, 1);
  program.compute(1, Opcode::Forward, 0, 3);
  program.transfer(channel, Payload::Activation, 0, 10, after(compute_lane, 1), after(compute_lane, 1));
  // The second is ready with the first, although it waits for nothing, and follows it.
  program.transfer(channel, Payload::Activation, 1, 10);
  EXPECT_DOUBLE_EQ(play_program(program, uniform_rates(0.5, 10)).periods[0].end.value, 3 + 0.5 + 2);
}

TEST(PlayProgram, AsksForTheTimesOfTheRanksThatExchangeAMessage)
{
  EditableProgram program(3);
  const auto forth = program.connect({{2, "send"}, {0, "receive"}});
  program.transfer(forth, Payload::Activation, 0, 8);
  PlayerRates rates;
  rates.transfer = [](std::size_t from, std::size_t to, Bytes size) {
    return TransferTimes{Seconds(static_cast<double>(10 * from + to)), Seconds(size.value)};
  };
  EXPECT_DOUBLE_EQ(play_program(program, rates).periods[0].end.value, 20 + 8);
}

// --- collectives ------------------------------------------------------------------------------------------------

/// The time of a collective whose ends are reached 1 s apart, after the last of them.
double duration_of(Opcode opcode, std::size_t ends, double bytes, Algorithm algorithm, const PlayerRates& rates)
{
  EditableProgram program(ends);
  std::vector<std::pair<std::size_t, std::string>> lanes;
  for (std::size_t rank = 0; rank < ends; ++rank) {
    lanes.emplace_back(rank, "sync");
    program.compute(rank, Opcode::Forward, 0, static_cast<double>(rank + 1));
  }
  const auto channel = program.connect(lanes, algorithm);
  program.collective(channel, opcode, Payload::ParameterGradient, bytes, after(compute_lane, 1));
  // A computation that waits for the collective on the first rank ends a second after it.
  program.compute(0, Opcode::Update, 0, 1, after(1, 1));
  return play_program(program, rates).periods[0].end.value - static_cast<double>(ends) - 1;
}

double upward_log2(std::size_t ends)
{
  return std::ceil(std::log2(static_cast<double>(ends)));
}

TEST(PlayProgram, TakesTheClosedFormsOfCollectives)
{
  constexpr double latency = 0.25;
  constexpr double rate = 100;
  for (const std::size_t ends : {1U, 2U, 3U, 4U, 7U}) {
    for (const double bytes : {0.0, 1.0, 10.0, 1000.0}) {
      const auto rates = uniform_rates(latency, rate);
      const auto others = static_cast<double>(ends - 1);
      const double whole = latency + bytes / rate;
      const double part = latency + std::ceil(bytes / static_cast<double>(ends)) / rate;
      const auto expect = [&](Opcode opcode, Algorithm algorithm, double expected) {
        EXPECT_NEAR(duration_of(opcode, ends, bytes, algorithm, rates), ends == 1 ? 0 : expected, 1e-9)
            << name_of(opcode) << " " << name_of(algorithm) << " of " << bytes << " B by " << ends;
      };
      expect(Opcode::AllReduce, Algorithm::Ring, 2 * others * part);
      expect(Opcode::ReduceScatter, Algorithm::Ring, others * part);
      expect(Opcode::AllGather, Algorithm::Ring, others * whole);
      expect(Opcode::AllReduce, Algorithm::Tree, 2 * upward_log2(ends) * whole);
      expect(Opcode::Broadcast, Algorithm::Ring, upward_log2(ends) * whole);
      expect(Opcode::AllReduce, Algorithm::Direct, 2 * part);
      expect(Opcode::AllReduce, Algorithm::Server, 2 * whole);
      expect(Opcode::ReduceScatter, Algorithm::Server, whole + part);
      expect(Opcode::AllToAll, Algorithm::Ring, others * part);
    }
  }
}

TEST(PlayProgram, TakesTheRoundsOfAHierarchicalCollectiveOverItsSites)
{
  PlayerRates rates = uniform_rates(0, 1);
  rates.sites = {"here", "here", "there", "there"};
  rates.transfer = [sites = rates.sites](std::size_t from, std::size_t to, Bytes size) {
    const bool is_near = sites[from] == sites[to];
    return TransferTimes{Seconds(is_near ? 0.5 : 3), size / BytesPerSecond(is_near ? 100 : 10)};
  };
  // Within each site half of the data there, a ring of two messages of a quarter across, and half back.
  const double within = 0.5 + 200.0 / 100;
  const double across = 2 * (3 + 100.0 / 10);
  EXPECT_NEAR(duration_of(Opcode::AllReduce, 4, 400, Algorithm::Hierarchical, rates), within + across + within, 1e-9);
}

TEST(PlayProgram, EndsARoundWithItsLongestFlow)
{
  PlayerRates rates = uniform_rates(0, 1);
  rates.transfer = [](std::size_t from, std::size_t, Bytes size) {
    return TransferTimes{Seconds(from == 1 ? 5 : 1), size / BytesPerSecond(10)};
  };
  EXPECT_NEAR(duration_of(Opcode::AllReduce, 3, 300, Algorithm::Ring, rates), 4 * (5 + 100.0 / 10), 1e-9);
}

TEST(PlayProgram, TakesTheSizeOfEachCollectiveOfAChannel)
{
  EditableProgram program(2);
  const auto channel = program.connect({{0, "sync"}, {1, "sync"}});
  for (const double bytes : {100.0, 100.0, 300.0}) {
    program.collective(channel, Opcode::AllReduce, Payload::ParameterGradient, bytes);
  }
  // One after the other: two messages of half the data each.
  EXPECT_NEAR(play_program(program, uniform_rates(1, 10)).periods[0].end.value, 3 * 2 + 500.0 / 10, tolerance);
}

// --- periods ----------------------------------------------------------------------------------------------------

TEST(PlayProgram, LetsALaneBeAtMostOnePeriodAheadOfTheOthersOfItsRank)
{
  EditableProgram program(2);
  const auto channel = program.connect({{0, "send"}, {1, "receive"}});
  program.compute(0, Opcode::Forward, 0, 1);
  program.transfer(channel, Payload::Activation, 0, 0, after(compute_lane, 1));
  program.compute(1, Opcode::Forward, 0, 3, after(1, 1));
  PlayerRates rates;
  const auto played = play_program(program, rates, 6);
  // The second rank takes the message of period p once it has ended period p-2, at 3 p - 2. The first rank begins
  // period p once it has ended period p-2, with the message of that.
  const double begins_of_first[] = {0, 1, 2, 3, 4, 7};
  for (std::size_t p = 0; p < 6; ++p) {
    const PlayedPeriod& period = played.periods[p];
    EXPECT_DOUBLE_EQ(period.ranks[0].begin.value, begins_of_first[p]) << "period " << p;
    EXPECT_DOUBLE_EQ(period.ranks[1].begin.value, 1 + 3 * static_cast<double>(p));
    EXPECT_DOUBLE_EQ(period.end.value, 4 + 3 * static_cast<double>(p));
    EXPECT_DOUBLE_EQ(period.step_time.value, p == 0 ? 4 : 3);
  }
}

TEST(PlayProgram, SendsBackToBackFromOnePeriodToTheNext)
{
  EditableProgram program(2);
  const auto channel = program.connect({{0, "send"}, {1, "receive"}});
  program.transfer(channel, Payload::Activation, 0, 10);
  program.transfer(channel, Payload::Activation, 1, 10);
  const auto played = play_program(program, uniform_rates(5, 10), 4);
  // Latency 5 s, data 1 s. The third period waits until the first has arrived, at 7; the fourth for the second, at 9.
  EXPECT_DOUBLE_EQ(played.periods[0].end.value, 7);
  EXPECT_DOUBLE_EQ(played.periods[1].end.value, 9);
  EXPECT_DOUBLE_EQ(played.periods[2].end.value, 7 + 7);
  EXPECT_DOUBLE_EQ(played.periods[3].end.value, 9 + 7);
}

/// A data server whose input m waits for the forward two before, on the first period for none.
void add_input(EditableProgram& program, std::uint64_t microbatches)
{
  const auto channel = program.connect({{1, "send activation"}, {0, "receive activation"}});
  for (std::uint64_t m = 0; m < microbatches; ++m) {
    const std::uint64_t missing = m < 2 ? 2 - m : 0;
    const auto periods_back = static_cast<std::uint16_t>((missing + microbatches - 1) / microbatches);
    program.transfer(channel, Payload::Activation, m, 0, {},
                     after(compute_lane, m + periods_back * microbatches - 1, periods_back));
    program.compute(0, Opcode::Forward, m, 3, after(1, m + 1));
  }
}

TEST(PlayProgram, LetsAWaitLookBackIntoThePeriodBefore)
{
  EditableProgram program(2);
  add_input(program, 2);
  // Inputs take 4 s. Those of the second period leave at 7 and 10, when a forward has ended.
  const auto played = play_program(program, uniform_rates(4, 1), 2);
  EXPECT_DOUBLE_EQ(played.periods[0].end.value, 10);
  EXPECT_DOUBLE_EQ(played.periods[1].end.value, 17);
}

TEST(PlayProgram, LetsAWaitLookBackOverSeveralPeriods)
{
  // One micro-batch of input per period plays as many in one.
  for (const std::uint64_t inputs : {1U, 2U, 3U, 7U}) {
    EditableProgram single(2);
    add_input(single, 1);
    EditableProgram all(2);
    add_input(all, inputs);
    const auto rates = uniform_rates(4, 1);
    const double expected = play_program(all, rates).periods.back().end.value;
    EXPECT_DOUBLE_EQ(play_program(single, rates, inputs).periods.back().end.value, expected) << inputs << " inputs";
  }
}

TEST(PlayProgram, PlaysNoPeriods)
{
  EditableProgram program(2);
  add_two_stages(program);
  EXPECT_TRUE(play_program(program, {}, 0).periods.empty());
}

// --- memory -----------------------------------------------------------------------------------------------------

/// Adds a computation of one second that acquires and releases memory.
Instruction& hold(EditableProgram& program, double acquires, double releases)
{
  Instruction& instruction = program.compute(0, Opcode::Forward, 0, 1);
  instruction.acquires.size = Bytes(acquires);
  instruction.releases.size = Bytes(releases);
  return instruction;
}

PlayerRates one_rank()
{
  PlayerRates rates;
  return rates;
}

TEST(PlayProgram, PeaksAtTheMemoryThatIsHeldAtOnce)
{
  EditableProgram program(1);
  program.listing[0].resident[0] = Bytes(5);
  for (const double acquired : {10, 10, 0, 0}) hold(program, acquired, 10 - acquired);
  EXPECT_DOUBLE_EQ(device_peak(play_program(program, one_rank()), 0), 25);
  EXPECT_DOUBLE_EQ(device_peak(play_program(program, one_rank(), 3), 0), 25);
}

TEST(PlayProgram, ReleasesMemoryBeforeTheNextInstructionOfTheLaneAcquiresIts)
{
  EditableProgram program(1);
  for (const double acquired : {10, 0, 10, 0}) hold(program, acquired, 10 - acquired);
  hold(program, 8, 8).time = Seconds(0);
  hold(program, 8, 8).time = Seconds(0);
  EXPECT_DOUBLE_EQ(device_peak(play_program(program, one_rank()), 0), 10);
}

TEST(PlayProgram, CountsTheMemoryOfEachTierApart)
{
  EditableProgram program(1);
  hold(program, 10, 0).acquires.tier = Tier::Host;
  hold(program, 3, 3);
  hold(program, 0, 10).releases.tier = Tier::Host;
  program.listing[0].resident[static_cast<std::size_t>(Tier::Disk)] = Bytes(7);
  const auto peak = play_program(program, one_rank()).peak_memory.at(0);
  EXPECT_DOUBLE_EQ(peak[0].value, 3);
  EXPECT_DOUBLE_EQ(peak[1].value, 10);
  EXPECT_DOUBLE_EQ(peak[2].value, 7);
}

/// The peak of a rank that receives into buffers of 7 B, which its forwards of 1 s release.
double peak_of_receiver(bool waits_for_forward)
{
  EditableProgram program(2);
  const auto channel = program.connect({{1, "send"}, {0, "receive"}});
  for (std::uint64_t m = 0; m < 4; ++m) {
    const Wait forward =
        m > 0 ? after(compute_lane, m) : after(compute_lane, 4, 1);  // the one before, also of a period
    program.transfer(channel, Payload::Activation, m, 1, {}, waits_for_forward ? Waits(forward) : Waits());
    program.instruction(0, 1, m).acquires.size = Bytes(7);
    program.compute(0, Opcode::Forward, m, 1, after(1, m + 1)).releases.size = Bytes(7);
  }
  return device_peak(play_program(program, uniform_rates(0, 1), 3), 0);
}

TEST(PlayProgram, CountsMemoryOfAllLanesInTheOrderOfTime)
{
  // All messages of a period are ready at its begin. Those of the third one are when the first has ended, at 5 s: by
  // then 4 of the 8 buffers have been released.
  EXPECT_DOUBLE_EQ(peak_of_receiver(false), 8 * 7);
  // A buffer is free again when the forward ends that the next message waits for.
  EXPECT_DOUBLE_EQ(peak_of_receiver(true), 7);
}

// --- programs that cannot be played -----------------------------------------------------------------------------

TEST(PlayProgram, NamesTheLanesOfADeadlock)
{
  EditableProgram program(2);
  add_two_stages(program);
  program.instruction(0, 0, 0).waits = after(2, 1);  // the first forward waits for a gradient
  EXPECT_THAT([&] { play_program(program, uniform_rates(0, 1)); },
              testing::ThrowsMessage<InputError>(
                  "program: deadlock, each waits for the next and the last for the first: "
                  "rank 0, lane compute, position 0; rank 0, lane receive gradient, position 0; "
                  "rank 1, lane send gradient, position 0; rank 1, lane compute, position 0; "
                  "rank 1, lane receive activation, position 0; rank 0, lane send activation, position 0"));
}

// --- interference ------------------------------------------------------------------------------------------------

/// Rates of two ranks of 1 FLOP/s and 1 B/s, whose devices are slower beside collectives.
PlayerRates interfering(std::size_t ranks, double interference)
{
  PlayerRates rates = uniform_rates(0, 1);
  rates.interference.assign(ranks, interference);
  return rates;
}

/// When the only computation of rank 0 ends.
double end_of_computation(const Program& program, const PlayerRates& rates)
{
  return play_program(program, rates).periods[0].ranks[0].end.value;
}

TEST(PlayProgram, SlowsDownAComputationBesideACollective)
{
  for (const double interference : {1.0, 1.14, 2.0}) {
    for (const double collective : {0.0, 2.0, 10.0, 12.0, 100.0}) {
      EditableProgram program(2);
      program.collective(program.connect({{0, "sync"}, {1, "sync"}}), Opcode::AllReduce, Payload::Gradient, collective);
      program.compute(0, Opcode::Forward, 0, 10);
      const double slowed = 10 * interference;
      const double expected = slowed <= collective ? slowed : collective + (10 - collective / interference);
      EXPECT_NEAR(end_of_computation(program, interfering(2, interference)), expected, tolerance)
          << interference << " " << collective;
    }
  }
}

TEST(PlayProgram, SlowsDownAComputationFromTheTimeAtWhichACollectiveBegins)
{
  EditableProgram program(2);
  const auto channel = program.connect({{0, "sync"}, {1, "sync"}});
  program.compute(0, Opcode::Forward, 0, 10);
  program.compute(1, Opcode::Forward, 0, 3);
  program.collective(channel, Opcode::AllReduce, Payload::Gradient, 4);
  program.instruction(1, 1, 0).waits.add(after(compute_lane, 1));
  EXPECT_NEAR(end_of_computation(program, interfering(2, 1.25)), 10 + 4 - 4 / 1.25, tolerance);
  PlayerRates rates = interfering(2, 1.25);
  rates.interference[0] = 1;
  EXPECT_NEAR(end_of_computation(program, rates), 10, tolerance) << "of another device";
}

TEST(PlayProgram, SlowsDownAComputationOnceBesideTwoCollectives)
{
  EditableProgram program(2);
  for (const auto* name : {"one", "two"}) {
    program.collective(program.connect({{0, name}, {1, name}}), Opcode::AllReduce, Payload::Gradient, 4);
  }
  program.compute(0, Opcode::Forward, 0, 10);
  EXPECT_NEAR(end_of_computation(program, interfering(2, 1.25)), 10 + 4 - 4 / 1.25, tolerance);
}

TEST(PlayProgram, LetsASlowedComputationDelayTheCollectivesThatSlowDownOthers)
{
  // Ranks 0 and 1 meet at once; rank 1 then lets rank 2 begin a collective, which slows down rank 2.
  EditableProgram program(3);
  const auto first = program.connect({{0, "first"}, {1, "first"}});
  const auto second = program.connect({{1, "second"}, {2, "second"}});
  program.collective(first, Opcode::AllReduce, Payload::Gradient, 4);
  program.compute(1, Opcode::Forward, 0, 6);
  program.collective(second, Opcode::AllReduce, Payload::Gradient, 2);
  program.instruction(1, 2, 0).waits.add(after(compute_lane, 1));
  program.compute(2, Opcode::Forward, 0, 20);
  program.compute(2, Opcode::Backward, 0, 1, after(1, 1));
  const auto played = play_program(program, interfering(3, 2));
  EXPECT_NEAR(played.periods[0].ranks[1].end.value, 4 + (6 - 2), tolerance);
  EXPECT_NEAR(played.periods[0].ranks[2].end.value, 21 + 1, tolerance) << "a second of work is lost from 8 to 10";
  EXPECT_NEAR(played.periods[0].ranks[1].busy.value, 8, tolerance);
}

TEST(PlayProgram, NamesALaneThatWaitsForOneThatHasEnded)
{
  EditableProgram program(1);
  program.listing[0].lanes.push_back({"other", Engine::Device, {}});
  program.listing[0].instructions.emplace_back();
  program.compute(0, Opcode::Forward, 0, 1);
  program.add(0, 1, {}).waits = after(compute_lane, 2);
  EXPECT_THAT([&] { play_program(program, one_rank()); },
              testing::ThrowsMessage<InputError>("program: deadlock, each waits for the next and the last has ended: "
                                                 "rank 0, lane other, position 0; rank 0, lane compute, position 1"));
}

TEST(PlayProgram, ShowsEightLanesOfALongDeadlock)
{
  constexpr std::size_t ranks = 10;
  EditableProgram program(ranks);
  for (std::size_t i = 0; i < ranks; ++i) program.connect({{i, "send"}, {(i + 1) % ranks, "receive"}});
  for (std::size_t i = 0; i < ranks; ++i) {
    const LaneId receive_lane = i == 0 ? 2 : 1;  // rank 0 was connected as a sender first
    program.transfer(i, Payload::Activation, 0, 1, after(receive_lane, 1));
  }
  EXPECT_THAT([&] { play_program(program, {}); },
              testing::ThrowsMessage<InputError>(testing::EndsWith("; and 12 more")));
}

/// A lane as long as it says.
class LongProgram : public EditableProgram {
 public:
  explicit LongProgram(std::uint64_t length) : EditableProgram(1), length_(length) {}
  std::uint64_t length(std::size_t, LaneId) const override { return length_; }
  Instruction at(std::size_t, LaneId, std::uint64_t) const override { return {}; }

 private:
  std::uint64_t length_;
};

TEST(PlayProgram, RefusesMoreInstructionsThanItsLimit)
{
  EXPECT_NO_THROW(play_program(LongProgram(most_played_instructions), {}));
  EXPECT_THAT(
      [] { play_program(LongProgram(most_played_instructions + 1), {}); },
      testing::ThrowsMessage<InputError>("program: 4194305 instructions in a period; at most 4194304 can be played"));
}

TEST(PlayProgram, RefusesInstructionsThatDoNotFitTheirLane)
{
  EditableProgram program(2);
  add_two_stages(program);
  program.instruction(1, 0, 1).opcode = Opcode::Send;
  EXPECT_THROW(play_program(program, uniform_rates(0, 1)), std::logic_error);
  program.instruction(1, 0, 1).opcode = Opcode::Backward;
  program.instruction(1, 1, 0).opcode = Opcode::Send;
  EXPECT_THROW(play_program(program, uniform_rates(0, 1)), std::logic_error);
  program.instruction(1, 1, 0).opcode = Opcode::Recv;
  program.channel_list[0].ends[0].lane = compute_lane;
  EXPECT_THROW(play_program(program, uniform_rates(0, 1)), std::logic_error);
}

}  // namespace
}  // namespace isobar::player_test
