#include "core/program/player.hpp"

#include "core/errors.hpp"
#include "core/program/collective.hpp"
#include "core/program/walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

namespace isobar {

namespace {

constexpr Seconds never{std::numeric_limits<double>::infinity()};

/// The times of a lane, in seconds.
struct LaneTimes {
  double reach = 0;  // when it is at its next instruction
  std::uint64_t first_period = 0;
  /// Of the instructions of each period from the first one kept.
  std::vector<std::vector<double>> ends = std::vector<std::vector<double>>(1);
};

/// What the messages or collectives of a channel take.
struct ChannelTimes {
  double arrived = 0;              // when the last message so far has
  std::optional<Bytes> size = {};  // of that message
  TransferTimes transfer;          // of a message of that size
  Opcode collective = {};          // the last one so far
  std::vector<Bytes> sizes = {};   // its data, by end
  std::vector<Bytes> new_sizes = {};
  double collective_duration = 0;
};

struct MemoryChange {
  double time = 0;
  Tier tier = {};
  double bytes = 0;
};

/// The memory of a rank over time.
class RankMemory {
 public:
  explicit RankMemory(const std::array<double, tier_count>& resident) : held_(resident), peak_(resident) {}

  /// Changes of one time count in the order of the calls.
  void change(double time, const Hold& hold, double sign)
  {
    if (hold.size.value > 0) changes_.push_back({time, hold.tier, sign * hold.size.value});
  }
  /// Counts all changes before `time`; no earlier one may follow.
  void settle(double time)
  {
    const auto is_earlier = [](const MemoryChange& a, const MemoryChange& b) { return a.time < b.time; };
    // The changes of one compute lane are in order.
    if (!std::is_sorted(changes_.begin(), changes_.end(), is_earlier)) {
      std::stable_sort(changes_.begin(), changes_.end(), is_earlier);
    }
    auto change = changes_.begin();
    for (; change != changes_.end() && change->time < time; ++change) {
      const auto tier = static_cast<std::size_t>(change->tier);
      held_[tier] += change->bytes;
      peak_[tier] = std::max(peak_[tier], held_[tier]);
    }
    changes_.erase(changes_.begin(), change);
  }
  const std::array<double, tier_count>& peak() const { return peak_; }

 private:
  std::array<double, tier_count> held_;
  std::array<double, tier_count> peak_;
  std::vector<MemoryChange> changes_;  // not settled yet
};

struct RankTimes {
  explicit RankTimes(const std::array<double, tier_count>& resident) : memory(resident) {}

  std::size_t first_lane = 0;
  std::size_t lanes = 0;
  std::uint16_t periods_back = 0;    // the most that a wait so far looks back
  std::uint64_t settled_period = 0;  // the last one that a lane has entered
  std::vector<double> ends;          // of all lanes, by period
  RankMemory memory;
};

class ProgramPlayer : public WalkVisitor {
 public:
  ProgramPlayer(const Program& program, const PlayerRates& rates, const ProgramWalk& walk, std::uint64_t periods,
                const PlayedSink& sink)
      : program_(program), rates_(rates), sink_(sink), lanes_(walk.lanes()), channels_(program.channels().size())
  {
    played_.periods.resize(periods);
    for (auto& period : played_.periods) period.ranks.assign(program.ranks(), {never, Seconds(0), Seconds(0)});
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      std::array<double, tier_count> resident{};
      for (std::size_t tier = 0; tier < tier_count; ++tier) {
        resident[tier] = program.resident(rank, static_cast<Tier>(tier)).value;
      }
      RankTimes& times = ranks_.emplace_back(resident);
      times.first_lane = walk.number_of({rank, compute_lane});
      times.lanes = program.lanes(rank).size();
      times.ends.assign(periods, 0);
      for (std::size_t lane = 0; lane < times.lanes; ++lane) {
        const bool is_empty = program.length(rank, static_cast<LaneId>(lane)) == 0;
        if (is_empty) lanes_[times.first_lane + lane].reach = never.value;
      }
    }
  }

  void enter_period(const Turn& turn) override
  {
    RankTimes& rank = ranks_[turn.at.rank];
    LaneTimes& lane = lanes_[turn.number];
    // All lanes of the rank have ended the period before the last one.
    if (turn.period >= 2) lane.reach = std::max(lane.reach, rank.ends[turn.period - 2]);
    // So no wait of theirs looks further back than from the last period.
    if (lane.ends.size() < std::size_t{rank.periods_back} + 2) {
      lane.ends.emplace_back();
    } else {
      std::rotate(lane.ends.begin(), lane.ends.begin() + 1, lane.ends.end());
      lane.ends.back().clear();
      ++lane.first_period;
    }
    if (turn.period > rank.settled_period) {
      rank.settled_period = turn.period;
      rank.memory.settle(least_reach(rank));
    }
  }

  void execute(const Turn& turn) override
  {
    const Instruction& instruction = turn.instruction;
    ensure(is_computation(instruction.opcode), "a transfer in a lane without a channel");
    const double begin = ready(turn);
    double duration = 0;
    if (instruction.work.value > 0) {
      ensure(turn.at.rank < rates_.speeds.size() && rates_.speeds[turn.at.rank].value > 0,
             "a rank that computes needs a speed");
      duration = (instruction.work / rates_.speeds[turn.at.rank]).value;
    }
    const double end = begin + duration;
    complete(turn, begin, end, end);
    PlayedRank& rank = played_.periods[turn.period].ranks[turn.at.rank];
    rank.begin = std::min(rank.begin, Seconds(begin));
    rank.end = std::max(rank.end, Seconds(end));
    rank.busy += Seconds(duration);
  }

  void meet(std::size_t number, std::span<const Turn* const> turns) override
  {
    double begin = 0;
    for (const Turn* turn : turns) begin = std::max(begin, ready(*turn));
    if (is_transfer(turns.front()->instruction.opcode)) {
      const double arrived = transfer(channels_[number], *turns.front(), *turns.back(), begin);
      for (const Turn* turn : turns) complete(*turn, begin, begin, arrived);
    } else {
      const double end = begin + collective_duration(number, turns);
      for (const Turn* turn : turns) complete(*turn, begin, end, end);
    }
  }

  PlayedProgram result()
  {
    Seconds before;
    for (std::size_t i = 0; i < played_.periods.size(); ++i) {
      PlayedPeriod& period = played_.periods[i];
      for (const auto& rank : ranks_) period.end = std::max(period.end, Seconds(rank.ends[i]));
      period.step_time = period.end - before;
      before = period.end;
      for (auto& rank : period.ranks) {
        if (rank.begin == never) rank.begin = Seconds(0);
      }
    }
    for (auto& rank : ranks_) {
      rank.memory.settle(never.value);
      auto& peak = played_.peak_memory.emplace_back();
      for (std::size_t tier = 0; tier < tier_count; ++tier) peak[tier] = Bytes(rank.memory.peak()[tier]);
    }
    return std::move(played_);
  }

 private:
  /// When the turn's lane has reached it and its waits are over.
  double ready(const Turn& turn)
  {
    RankTimes& rank = ranks_[turn.at.rank];
    double time = lanes_[turn.number].reach;
    for (const Wait& wait : turn.instruction.waits) {
      rank.periods_back = std::max(rank.periods_back, wait.periods_back);
      if (wait.periods_back > turn.period) continue;
      const LaneTimes& lane = lanes_[rank.first_lane + wait.lane];
      time = std::max(time, lane.ends.at(turn.period - wait.periods_back - lane.first_period).at(wait.count - 1));
    }
    return time;
  }

  /// The turn takes from `begin` to `end`; its lane reaches the next one at `next`.
  void complete(const Turn& turn, double begin, double next, double end)
  {
    RankTimes& rank = ranks_[turn.at.rank];
    LaneTimes& lane = lanes_[turn.number];
    lane.reach = next;
    lane.ends.back().push_back(end);
    rank.ends[turn.period] = std::max(rank.ends[turn.period], end);
    rank.memory.change(begin, turn.instruction.acquires, 1);
    rank.memory.change(end, turn.instruction.releases, -1);
    if (sink_) sink_(turn, Seconds(begin), Seconds(end));
  }

  /// No instruction that the rank has left begins earlier.
  double least_reach(const RankTimes& rank) const
  {
    double least = never.value;
    for (std::size_t i = 0; i < rank.lanes; ++i) least = std::min(least, lanes_[rank.first_lane + i].reach);
    return least;
  }

  TransferTimes transfer_times(const Turn& from, const Turn& to, Bytes size) const
  {
    return rates_.transfer ? rates_.transfer(from.at.rank, to.at.rank, size) : TransferTimes{};
  }

  /// The arrival of a message that is ready at `time`.
  double transfer(ChannelTimes& channel, const Turn& send, const Turn& receive, double time) const
  {
    ensure(send.instruction.opcode == Opcode::Send && receive.instruction.opcode == Opcode::Recv,
           "a Send that meets no Recv");
    const Bytes size = send.instruction.size;
    if (channel.size != size) {
      channel.size = size;
      channel.transfer = transfer_times(send, receive, size);
    }
    channel.arrived = std::max(time + channel.transfer.latency.value, channel.arrived) + channel.transfer.data.value;
    return channel.arrived;
  }

  double collective_duration(std::size_t number, std::span<const Turn* const> turns)
  {
    ChannelTimes& channel = channels_[number];
    const Opcode opcode = turns.front()->instruction.opcode;
    channel.new_sizes.clear();
    for (const Turn* turn : turns) {
      ensure(is_collective(opcode) && turn->instruction.opcode == opcode, "a collective that meets another one");
      channel.new_sizes.push_back(turn->instruction.size);
    }
    if (channel.collective == opcode && channel.sizes == channel.new_sizes) return channel.collective_duration;
    channel.collective = opcode;
    channel.sizes = channel.new_sizes;
    std::vector<std::string> sites;
    if (!rates_.sites.empty()) {
      for (const Turn* turn : turns) sites.push_back(rates_.sites.at(turn->at.rank));
    }
    channel.collective_duration = 0;
    for (const Round& round : rounds_of(opcode, channel.sizes, program_.channels()[number].algorithm, sites)) {
      double longest = 0;
      for (const Flow& flow : round) {
        const TransferTimes times = transfer_times(*turns[flow.from], *turns[flow.to], flow.size());
        longest = std::max(longest, static_cast<double>(flow.messages) * times.latency.value + times.data.value);
      }
      channel.collective_duration += longest;
    }
    return channel.collective_duration;
  }

  const Program& program_;
  const PlayerRates& rates_;
  const PlayedSink& sink_;
  std::vector<LaneTimes> lanes_;  // by number
  std::vector<RankTimes> ranks_;
  std::vector<ChannelTimes> channels_;
  PlayedProgram played_;
};

}  // namespace

Seconds PlayedPeriod::window() const
{
  Seconds largest;
  for (const auto& rank : ranks) largest = std::max(largest, rank.window());
  return largest;
}

PlayedProgram play_program(const Program& program, const PlayerRates& rates, std::uint64_t periods,
                           const PlayedSink& sink)
{
  const std::uint64_t instructions = instructions_of(program);
  if (instructions > most_played_instructions) {
    throw InputError(fmt::format("program: {} instructions in a period; at most {} can be played", instructions,
                                 most_played_instructions));
  }
  ProgramWalk walk(program);
  ProgramPlayer player(program, rates, walk, periods, sink);
  if (const auto deadlock = walk.run(periods, player)) throw InputError("program: " + *deadlock);
  return player.result();
}

}  // namespace isobar
