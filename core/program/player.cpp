#include "core/program/player.hpp"

#include "core/errors.hpp"
#include "core/program/channel_rounds.hpp"
#include "core/program/collective.hpp"
#include "core/program/contention.hpp"
#include "core/program/machine_use.hpp"
#include "core/program/rank_memory.hpp"
#include "core/program/round_time.hpp"
#include "core/program/shared_flows.hpp"
#include "core/program/walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
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

/// A message whose data share links with others.
struct SharedMessage {
  Turn send;
  Turn receive;
  double ready = 0;
  TransferTimes alone;
};

/// Likewise a collective.
struct SharedCollective {
  std::vector<Turn> turns;
  double begin = 0;
  std::size_t next_round = 0;
  std::size_t flows_left = 0;  // of the round under way
  double last_end = 0;         // of a flow so far
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
  Seconds collective_time;  // of its instruction
  double collective_duration = 0;
  // Of a channel that contends for links:
  bool contends = false;
  std::deque<SharedMessage> messages = {};  // under way
  std::vector<Round> rounds = {};           // of the last collective so far
  std::optional<SharedCollective> shared_collective = {};
};

struct RankTimes {
  explicit RankTimes(const std::array<double, tier_count>& resident) : memory(resident) {}

  std::size_t first_lane = 0;
  std::size_t lanes = 0;
  std::uint16_t periods_back = 0;    // the most that a wait so far looks back
  std::uint64_t settled_period = 0;  // the last one that a lane has entered
  std::vector<double> ends;          // of all lanes, by period
  std::vector<double> step_ends;     // of lanes that keep step, by step of all periods; empty: a period is a step
  RankMemory memory;
  std::vector<Interval> collectives;          // that slow down its computations, ascending and apart
  std::vector<double> collectives_under_way;  // likewise: when they began
};

class ProgramPlayer : public WalkVisitor {
 public:
  /// `busy` is of the last time that the program was played.
  ProgramPlayer(const Program& program, const PlayerRates& rates, const ProgramWalk& walk, std::uint64_t periods,
                const PlayedSink& sink, const BusyTimes& busy, const Contention& contention)
      : program_(program),
        rates_(rates),
        sink_(sink),
        machines_(rates, busy),
        contention_(contention),
        notes_busy_times_(has_two_update_rates(rates)),
        lanes_(walk.lanes()),
        channels_(program.channels().size())
  {
    for (std::size_t i = 0; i < channels_.size(); ++i) channels_[i].contends = contention.channels[i];
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
      if (program.steps(rank) > 1) times.step_ends.assign(periods * program.steps(rank), 0);
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
      // What is under way ends later than now.
      const double shared = flows_.next() < never.value ? flows_.now() : never.value;
      rank.memory.settle(std::min(least_reach(rank), shared));
    }
  }

  void enter_step(const Turn& turn) override
  {
    if (turn.step < 2) return;
    LaneTimes& lane = lanes_[turn.number];
    lane.reach = std::max(lane.reach, ranks_[turn.at.rank].step_ends[turn.step - 2]);
  }

  void execute(const Turn& turn) override
  {
    const Instruction& instruction = turn.instruction;
    const double begin = ready(turn);
    if (instruction.opcode >= Opcode::Update) {
      const Engine engine = program_.lanes(turn.at.rank)[turn.at.lane].engine;
      if (engine != Engine::Device) {
        const double end =
            is_shared(turn) ? ends_on_machines_.at(turn.number) : begin + machines_.time_alone(turn, engine, begin);
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
    if (is_shared(turn)) {
      const Engine engine = program_.lanes(turn.at.rank)[turn.at.lane].engine;
      machines_.begin(turn, engine, ready(turn), channels_.size() + turn.number, flows_);
      return true;
    }
    if (rates_.interference.empty() || !is_on_device(turn.instruction) || turn.instruction.time.value <= 0)
      return false;
    if (interference_of(turn.at.rank) <= 1) return false;
    const double begin = ready(turn);
    deferred_.push_back({&turn, begin, begin + computing_time(turn, begin)});
    return true;
  }

  Deferred next_deferred() override
  {
    while (over_.empty()) {
      const auto first = std::min_element(deferred_.begin(), deferred_.end(),
                                          [](const DeferredTurn& a, const DeferredTurn& b) { return a.end < b.end; });
      const double next_update = machines_.next();
      const double next_flow = flows_.next();
      if (first != deferred_.end() && first->end <= std::min(next_flow, next_update)) {
        const std::size_t number = first->turn->number;
        *first = deferred_.back();
        deferred_.pop_back();
        return {false, number};
      }
      if (next_update < next_flow) {
        for (const std::size_t owner : machines_.advance()) end_on_machine(owner, machines_.now());
      } else {
        for (const SharedFlows::End& end : flows_.advance()) end_flow(end);
      }
    }
    const Deferred next = over_.front();
    over_.pop_front();
    return next;
  }

  bool meet(std::size_t number, std::span<const Turn* const> turns) override
  {
    double begin = 0;
    for (const Turn* turn : turns) begin = std::max(begin, ready(*turn));
    ChannelTimes& channel = channels_[number];
    if (is_transfer(turns.front()->instruction.opcode)) {
      find_transfer_times(channel, *turns.front(), *turns.back());
      if (channel.contends) {
        begin_message(number, *turns.front(), *turns.back(), begin);
        return false;
      }
      channel.arrived = std::max(begin + channel.transfer.latency.value, channel.arrived) + channel.transfer.data.value;
      for (const Turn* turn : turns) complete(*turn, begin, begin, channel.arrived);
      return true;
    }
    find_rounds(number, turns);
    if (channel.contends && !channel.rounds.empty()) {
      begin_collective(number, turns, begin);
      return false;
    }
    const double end = begin + channel.collective_duration;
    add_collective(turns, begin, end);
    for (const Turn* turn : turns) complete(*turn, begin, end, end);
    return true;
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

  /// Whether the turn uses a machine, and shares what it uses with others.
  bool is_shared(const Turn& turn) const { return contention_.lanes[turn.at.rank][turn.at.lane]; }

  double interference_of(std::size_t rank) const
  {
    return rates_.interference.empty() ? 1 : rates_.interference.at(rank);
  }

  /// How long a computation on a device takes, beside the collectives so far.
  double computing_time(const Turn& turn, double begin) const
  {
    const double time = turn.instruction.time.value;
    const std::size_t rank = turn.at.rank;
    const auto& collectives = ranks_[rank].collectives;
    const auto& under_way = ranks_[rank].collectives_under_way;
    if (collectives.empty() && under_way.empty()) return time;
    const double slow = 1 / interference_of(rank);
    if (under_way.empty()) return duration_of(time, begin, slow, collectives);
    std::vector<Interval> all = collectives;
    for (const double since : under_way) all.push_back({since, never.value});
    join(all);
    return duration_of(time, begin, slow, all);
  }

  /// Notes a collective that slows down the computations of its ranks.
  void add_collective(std::span<const Turn* const> turns, double begin, double end)
  {
    if (rates_.interference.empty() || begin == end) return;
    for (const Turn* turn : turns) add_collective(turn->at.rank, begin, end);
  }

  void add_collective(std::size_t rank, double begin, double end)
  {
    if (interference_of(rank) <= 1) return;
    auto& collectives = ranks_[rank].collectives;
    collectives.push_back({begin, end});
    join(collectives);
    slow_down_deferred(rank);
  }

  void slow_down_deferred(std::size_t rank)
  {
    for (auto& deferred : deferred_) {
      if (deferred.turn->at.rank != rank) continue;
      deferred.end = deferred.begin + computing_time(*deferred.turn, deferred.begin);
    }
  }

  /// The turn takes from `begin` to `end`; its lane reaches the next one at `next`.
  void complete(const Turn& turn, double begin, double next, double end)
  {
    leave(turn, begin, next);
    this->end(turn, begin, end);
  }

  /// The turn begins; its lane reaches the next one at `next`.
  void leave(const Turn& turn, double begin, double next)
  {
    lanes_[turn.number].reach = next;
    ranks_[turn.at.rank].memory.change(begin, turn.instruction.acquires, 1);
  }

  void end(const Turn& turn, double begin, double end)
  {
    RankTimes& rank = ranks_[turn.at.rank];
    LaneTimes& lane = lanes_[turn.number];
    lane.ends.at(turn.period - lane.first_period).push_back(end);
    rank.ends[turn.period] = std::max(rank.ends[turn.period], end);
    if (!rank.step_ends.empty() && program_.lanes(turn.at.rank)[turn.at.lane].keeps_step) {
      rank.step_ends[turn.step] = std::max(rank.step_ends[turn.step], end);
    }
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

  void find_transfer_times(ChannelTimes& channel, const Turn& send, const Turn& receive) const
  {
    ensure(send.instruction.opcode == Opcode::Send && receive.instruction.opcode == Opcode::Recv,
           "a Send that meets no Recv");
    const Bytes size = send.instruction.size;
    if (channel.size == size) return;
    channel.size = size;
    channel.transfer = transfer_times(send, receive, size);
  }

  /// Finds the rounds of the channel's next collective and, if it contends with no other channel, its duration.
  void find_rounds(std::size_t number, std::span<const Turn* const> turns)
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
    const Seconds time = turns.front()->instruction.time;
    if (channel.collective == opcode && channel.sizes == channel.new_sizes && channel.results == channel.new_results &&
        channel.collective_time == time) {
      return;
    }
    channel.collective = opcode;
    channel.collective_time = time;
    channel.sizes = channel.new_sizes;
    channel.results = channel.new_results;
    std::vector<std::string> sites;
    if (!rates_.sites.empty()) {
      for (const Turn* turn : turns) sites.push_back(rates_.sites.at(turn->at.rank));
    }
    if (time > Seconds(0)) {
      channel.rounds.clear();
      channel.collective_duration = time.value;
      return;
    }
    const Channel& ends = program_.channels()[number];
    channel.rounds = rounds_of(ends, opcode, channel.sizes, sites, channel.results);
    std::erase_if(channel.rounds, [](const Round& round) { return round.empty(); });
    if (channel.contends) return;
    channel.collective_duration = collective_time(channel.rounds, network_between(ranks_of(ends), network_)).value;
  }

  // --- channels that contend for links ----------------------------------------------------------------------------

  /// The number of the way from one rank to another.
  std::size_t way(std::size_t from, std::size_t to)
  {
    const auto [place, is_new] = ways_.try_emplace({from, to}, 0);
    if (is_new) place->second = flows_.way_over(rates_.shared_links(from, to));
    return place->second;
  }

  /// Lets the data of a message flow, or all those of a flow.
  void begin_flow(std::size_t channel, std::size_t from, std::size_t to, double time, Bytes size, TransferTimes alone)
  {
    const bool has_data = alone.data > Seconds(0);
    flows_.begin(channel, way(from, to), time, has_data ? size.value : 0, has_data ? (size / alone.data).value : 0,
                 weight_of_flow(alone.latency));
  }

  void begin_message(std::size_t number, const Turn& send, const Turn& receive, double ready)
  {
    ChannelTimes& channel = channels_[number];
    leave(send, ready, ready);
    leave(receive, ready, ready);
    channel.messages.push_back({send, receive, ready, channel.transfer});
    if (channel.messages.size() == 1) begin_data(number);
  }

  /// Lets the data of the channel's first message flow.
  void begin_data(std::size_t number)
  {
    const ChannelTimes& channel = channels_[number];
    const SharedMessage& message = channel.messages.front();
    begin_flow(number, message.send.at.rank, message.receive.at.rank,
               std::max(message.ready + message.alone.latency.value, channel.arrived), message.send.instruction.size,
               message.alone);
  }

  void begin_collective(std::size_t number, std::span<const Turn* const> turns, double begin)
  {
    SharedCollective& collective = channels_[number].shared_collective.emplace();
    collective.begin = begin;
    for (const Turn* turn : turns) {
      collective.turns.push_back(*turn);
      if (interference_of(turn->at.rank) <= 1) continue;
      ranks_[turn->at.rank].collectives_under_way.push_back(begin);
      slow_down_deferred(turn->at.rank);
    }
    const auto ranks = ranks_of(program_.channels()[number]);
    collective.last_end = begin + collective_start(channels_[number].rounds, network_between(ranks, network_)).value;
    begin_round(number);
  }

  void begin_round(std::size_t number)
  {
    SharedCollective& collective = *channels_[number].shared_collective;
    const auto ranks = ranks_of(program_.channels()[number]);
    const Round& round = channels_[number].rounds[collective.next_round++];
    const double time = collective.last_end;
    collective.flows_left = round.size();
    for (const Flow& flow : round) {
      const std::size_t from = ranks[flow.from];
      const std::size_t to = ranks[flow.to];
      const TransferTimes alone = rates_.transfer(from, to, flow.size());
      begin_flow(number, from, to, time + static_cast<double>(flow.messages) * alone.latency.value, flow.size(), alone);
    }
  }

  /// An instruction that shared its machine has ended, and may be executed.
  void end_on_machine(std::size_t owner, double time)
  {
    const std::size_t number = owner - channels_.size();
    ends_on_machines_[number] = time;
    over_.push_back({false, number});
  }

  void end_flow(const SharedFlows::End& flow)
  {
    if (flow.owner >= channels_.size()) return end_on_machine(flow.owner, flow.time);
    ChannelTimes& channel = channels_[flow.owner];
    if (channel.shared_collective) return end_flow_of_round(flow);
    const SharedMessage message = channel.messages.front();
    channel.messages.pop_front();
    channel.arrived = flow.time;
    end(message.send, message.ready, flow.time);
    end(message.receive, message.ready, flow.time);
    over_.push_back({true, flow.owner});
    if (!channel.messages.empty()) begin_data(flow.owner);
  }

  void end_flow_of_round(const SharedFlows::End& flow)
  {
    ChannelTimes& channel = channels_[flow.owner];
    SharedCollective& collective = *channel.shared_collective;
    collective.last_end = std::max(collective.last_end, flow.time);
    if (--collective.flows_left > 0) return;
    if (collective.next_round < channel.rounds.size()) return begin_round(flow.owner);
    for (const Turn& turn : collective.turns) {
      if (interference_of(turn.at.rank) > 1) {
        auto& under_way = ranks_[turn.at.rank].collectives_under_way;
        under_way.erase(std::find(under_way.begin(), under_way.end(), collective.begin));
        add_collective(turn.at.rank, collective.begin, collective.last_end);
      }
      complete(turn, collective.begin, collective.last_end, collective.last_end);
    }
    channel.shared_collective.reset();
    over_.push_back({true, flow.owner});
  }

  /// A computation whose end other ranks may move.
  struct DeferredTurn {
    const Turn* turn = nullptr;
    double begin = 0;
    double end = 0;  // beside the collectives so far
  };

  const Program& program_;
  const PlayerRates& rates_;
  const EndNetwork network_ = network_between_ranks(rates_);
  const PlayedSink& sink_;
  MachineUse machines_;
  const Contention& contention_;
  bool notes_busy_times_;
  BusyTimes new_busy_;
  std::vector<LaneTimes> lanes_;  // by number
  std::vector<RankTimes> ranks_;
  std::vector<ChannelTimes> channels_;
  std::vector<DeferredTurn> deferred_;
  SharedFlows flows_;                                                // owned by channels and, after these, lanes
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> ways_;  // from and to ranks
  std::deque<Deferred> over_;                                        // what has ended, which the walk does not know
  std::map<std::size_t, double> ends_on_machines_;  // by lane: of the last instruction that shared a machine
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

PlayedProgram play_program(const Program& program, const PlayerRates& rates, std::uint64_t periods,
                           const PlayedSink& sink)
{
  const std::uint64_t instructions = instructions_of(program);
  if (instructions > most_played_instructions) {
    throw InputError(fmt::format("program: {} instructions in a period; at most {} can be played", instructions,
                                 most_played_instructions));
  }
  const Contention contention = contention_of(program, rates);
  const auto play = [&](const PlayedSink& to, BusyTimes& busy) {
    ProgramWalk walk(program);
    ProgramPlayer player(program, rates, walk, periods, to, busy, contention);
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
    if (are_equal(busy, before)) return play(sink, busy);
  }
  throw std::logic_error("updates and computations that keep moving each other");
}

}  // namespace isobar
