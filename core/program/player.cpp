#include "core/program/player.hpp"

#include "core/errors.hpp"
#include "core/program/channel_rounds.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"
#include "core/program/walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

namespace isobar {

namespace {

constexpr Seconds never{std::numeric_limits<double>::infinity()};
/// An update that ends when a computation begins does not reach into it, whatever the last digits say: else the two
/// would move each other in every round.
constexpr double rounding = 1e-12;

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
  std::vector<Bytes> results = {};  // likewise, of unequal parts
  std::vector<Bytes> new_results = {};
  double collective_duration = 0;
  std::optional<EndNetwork> network = {};  // of collectives
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

/// A time in which something slows down something else.
struct Interval {
  double begin = 0;
  double end = 0;

  bool operator==(const Interval&) const = default;
};

struct RankTimes {
  explicit RankTimes(const std::array<double, tier_count>& resident) : memory(resident) {}

  std::size_t first_lane = 0;
  std::size_t lanes = 0;
  std::uint16_t periods_back = 0;    // the most that a wait so far looks back
  std::uint64_t settled_period = 0;  // the last one that a lane has entered
  std::vector<double> ends;          // of all lanes, by period
  RankMemory memory;
  std::vector<Interval> collectives;  // that slow down its computations, ascending and apart
};

/// The times in which the devices of each machine compute, ascending and apart.
using BusyTimes = std::map<std::size_t, std::vector<Interval>>;

/// Joins intervals that overlap or touch.
void join(std::vector<Interval>& intervals)
{
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> joined;
  for (const auto& each : intervals) {
    if (!joined.empty() && each.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, each.end);
    } else {
      joined.push_back(each);
    }
  }
  intervals = std::move(joined);
}

/// How long work takes that begins at a time, at `busy_rate` during some intervals and at `rate` otherwise.
double duration_of(double work, double begin, double rate, double busy_rate, const std::vector<Interval>& busy)
{
  double left = work;
  double time = begin;
  auto interval =
      std::upper_bound(busy.begin(), busy.end(), begin, [](double at, const Interval& each) { return at < each.end; });
  for (; interval != busy.end(); ++interval) {
    const double before = std::max(0.0, interval->begin - time);
    if (before * rate >= left * (1 - rounding)) break;
    left -= before * rate;
    time += before;
    const double within = interval->end - time;
    if (within * busy_rate >= left * (1 - rounding)) return time + left / busy_rate - begin;
    left -= within * busy_rate;
    time = interval->end;
  }
  return time + left / rate - begin;
}

bool has_two_update_rates(const PlayerRates& rates)
{
  return std::any_of(rates.machines.begin(), rates.machines.end(),
                     [](const MachineRates& rank) { return rank.update_speed != rank.busy_update_speed; });
}

class ProgramPlayer : public WalkVisitor {
 public:
  /// `busy` is of the last time that the program was played.
  ProgramPlayer(const Program& program, const PlayerRates& rates, const ProgramWalk& walk, std::uint64_t periods,
                const PlayedSink& sink, const BusyTimes& busy)
      : program_(program),
        rates_(rates),
        sink_(sink),
        busy_(busy),
        notes_busy_times_(has_two_update_rates(rates)),
        lanes_(walk.lanes()),
        channels_(program.channels().size())
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
    const double begin = ready(turn);
    if (instruction.opcode >= Opcode::Update) {
      const Engine engine = program_.lanes(turn.at.rank)[turn.at.lane].engine;
      if (engine != Engine::Device) {
        const double end = begin + time_on_machine(turn, engine, begin);
        return complete(turn, begin, end, end);
      }
    }
    ensure(is_computation(instruction.opcode), "a transfer in a lane without a channel");
    const double duration = computing_time(turn, begin);
    const double end = begin + duration;
    // Later computations begin later.
    std::erase_if(ranks_[turn.at.rank].collectives, [&](const Interval& each) { return each.end <= end; });
    complete(turn, begin, end, end);
    if (notes_busy_times_ && duration > 0) new_busy_[rates_.machines.at(turn.at.rank).machine].push_back({begin, end});
    PlayedRank& rank = played_.periods[turn.period].ranks[turn.at.rank];
    rank.begin = std::min(rank.begin, Seconds(begin));
    rank.end = std::max(rank.end, Seconds(end));
    rank.busy += Seconds(duration);
  }

  bool defers(const Turn& turn) override
  {
    if (rates_.interference.empty() || !is_on_device(turn.instruction) || turn.instruction.work.value <= 0)
      return false;
    if (interference_of(turn.at.rank) <= 1) return false;
    const double begin = ready(turn);
    deferred_.push_back({&turn, begin, begin + computing_time(turn, begin)});
    return true;
  }

  std::size_t next_deferred() override
  {
    const auto first = std::min_element(deferred_.begin(), deferred_.end(),
                                        [](const Deferred& a, const Deferred& b) { return a.end < b.end; });
    const std::size_t number = first->turn->number;
    *first = deferred_.back();
    deferred_.pop_back();
    return number;
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
      add_collective(turns, begin, end);
      for (const Turn* turn : turns) complete(*turn, begin, end, end);
    }
  }

  BusyTimes take_busy_times()
  {
    for (auto& [machine, intervals] : new_busy_) join(intervals);
    return std::move(new_busy_);
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

  /// How long a copy, an access of the disk or an update by the machine takes.
  double time_on_machine(const Turn& turn, Engine engine, double begin) const
  {
    ensure(turn.at.rank < rates_.machines.size(), "a rank that uses a machine needs its rates");
    const MachineRates& machine = rates_.machines[turn.at.rank];
    const Instruction& instruction = turn.instruction;
    switch (instruction.opcode) {
      case Opcode::Load: {
        const bool is_slow = instruction.payload == Payload::Parameter && instruction.pass == Opcode::Backward;
        return (machine.in.time_of(instruction.size) + (is_slow ? machine.backward_delay : Seconds(0))).value;
      }
      case Opcode::Store:
        return machine.out.time_of(instruction.size).value;
      case Opcode::Read:
        return machine.read.time_of(instruction.size).value;
      case Opcode::Write:
        return machine.write.time_of(instruction.size).value;
      default:
        ensure(engine == Engine::Host && instruction.opcode == Opcode::Update, "an instruction in a lane of others");
        return update_time(machine, instruction.work, begin);
    }
  }

  /// An update is slower while a device of the machine computes.
  double update_time(const MachineRates& machine, Flops work, double begin) const
  {
    if (work.value <= 0) return 0;
    ensure(machine.update_speed.value > 0 && machine.busy_update_speed.value > 0, "a machine that updates has a rate");
    static const std::vector<Interval> never_busy;
    const auto found = busy_.find(machine.machine);
    const bool is_slowed = found != busy_.end() && machine.update_speed != machine.busy_update_speed;
    return duration_of(work.value, begin, machine.update_speed.value, machine.busy_update_speed.value,
                       is_slowed ? found->second : never_busy);
  }

  double interference_of(std::size_t rank) const
  {
    return rates_.interference.empty() ? 1 : rates_.interference.at(rank);
  }

  /// How long a computation on a device takes, beside the collectives so far.
  double computing_time(const Turn& turn, double begin) const
  {
    const double work = turn.instruction.work.value;
    if (work <= 0) return 0;
    const std::size_t rank = turn.at.rank;
    ensure(rank < rates_.speeds.size() && rates_.speeds[rank].value > 0, "a rank that computes needs a speed");
    const double speed = rates_.speeds[rank].value;
    const auto& collectives = ranks_[rank].collectives;
    if (collectives.empty()) return work / speed;
    return duration_of(work, begin, speed, speed / interference_of(rank), collectives);
  }

  /// Notes a collective that slows down the computations of its ranks.
  void add_collective(std::span<const Turn* const> turns, double begin, double end)
  {
    if (rates_.interference.empty() || begin == end) return;
    for (const Turn* turn : turns) {
      if (interference_of(turn->at.rank) <= 1) continue;
      auto& collectives = ranks_[turn->at.rank].collectives;
      collectives.push_back({begin, end});
      join(collectives);
      for (auto& deferred : deferred_) {
        if (deferred.turn->at.rank != turn->at.rank) continue;
        deferred.end = deferred.begin + computing_time(*deferred.turn, deferred.begin);
      }
    }
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
    channel.new_results.clear();
    for (const Turn* turn : turns) {
      ensure(is_collective(opcode) && turn->instruction.opcode == opcode, "a collective that meets another one");
      channel.new_sizes.push_back(turn->instruction.size);
      channel.new_results.push_back(turn->instruction.result);
    }
    if (has_equal_parts(channel.new_results)) channel.new_results.clear();
    if (channel.collective == opcode && channel.sizes == channel.new_sizes && channel.results == channel.new_results) {
      return channel.collective_duration;
    }
    channel.collective = opcode;
    channel.sizes = channel.new_sizes;
    channel.results = channel.new_results;
    std::vector<std::string> sites;
    if (!rates_.sites.empty()) {
      for (const Turn* turn : turns) sites.push_back(rates_.sites.at(turn->at.rank));
    }
    if (!channel.network) channel.network = network_of_channel(program_, number, network_);
    const auto rounds = rounds_of(program_.channels()[number], opcode, channel.sizes, sites, channel.results);
    channel.collective_duration = collective_time(rounds, *channel.network).value;
    return channel.collective_duration;
  }

  /// A computation whose end other ranks may move.
  struct Deferred {
    const Turn* turn = nullptr;
    double begin = 0;
    double end = 0;  // beside the collectives so far
  };

  const Program& program_;
  const PlayerRates& rates_;
  const EndNetwork network_ = network_between_ranks(rates_);
  const PlayedSink& sink_;
  const BusyTimes& busy_;
  bool notes_busy_times_;
  BusyTimes new_busy_;
  std::vector<LaneTimes> lanes_;  // by number
  std::vector<RankTimes> ranks_;
  std::vector<ChannelTimes> channels_;
  std::vector<Deferred> deferred_;
  PlayedProgram played_;
};

}  // namespace

EndNetwork network_between_ranks(const PlayerRates& rates)
{
  EndNetwork network = {rates.transfer, rates.shared_links};
  if (!rates.collective_starts.empty()) {
    network.start = [&rates](std::size_t rank) { return rates.collective_starts.at(rank); };
  }
  return network;
}

Seconds PlayedPeriod::window() const
{
  Seconds largest;
  for (const auto& rank : ranks) largest = std::max(largest, rank.window());
  return largest;
}

namespace {

/// Whether a machine updates anything.
bool uses_host(const Program& program)
{
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    const auto& lanes = program.lanes(rank);
    if (std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.engine == Engine::Host; })) {
      return true;
    }
  }
  return false;
}

}  // namespace

PlayedProgram play_program(const Program& program, const PlayerRates& rates, std::uint64_t periods,
                           const PlayedSink& sink)
{
  const std::uint64_t instructions = instructions_of(program);
  if (instructions > most_played_instructions) {
    throw InputError(fmt::format("program: {} instructions in a period; at most {} can be played", instructions,
                                 most_played_instructions));
  }
  const auto play = [&](const PlayedSink& to, BusyTimes& busy) {
    ProgramWalk walk(program);
    ProgramPlayer player(program, rates, walk, periods, to, busy);
    if (const auto deadlock = walk.run(periods, player)) throw InputError("program: " + *deadlock);
    PlayedProgram result = player.result();
    busy = player.take_busy_times();
    return result;
  };
  BusyTimes busy;
  if (!has_two_update_rates(rates) || !uses_host(program)) return play(sink, busy);
  // Each round makes at least one more time final.
  for (std::uint64_t round = 0; round <= periods * instructions; ++round) {
    const BusyTimes before = busy;
    play({}, busy);
    if (busy == before) return play(sink, busy);
  }
  throw std::logic_error("updates and computations that keep moving each other");
}

}  // namespace isobar
