#include "results/played_path.hpp"

#include "core/errors.hpp"
#include "core/program/channel_rounds.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"
#include "core/program/walk.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace isobar::results {

namespace {

/// When an instruction begins, of a transfer when it is ready, and when it ends.
struct Played {
  Seconds begin;
  Seconds end;
};

/// An instruction as a time of the path: its begin or its end.
struct Point {
  End lane;
  std::uint64_t position = 0;
  bool is_end = true;
  Seconds time;
};

class PlayedPathFinder {
 public:
  PlayedPathFinder(const Program& program, const PlayerRates& rates) : program_(program), rates_(rates)
  {
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) played_.emplace_back(program.lanes(rank).size());
    const auto played = play_program(program, rates, 1, [this](const Turn& turn, Seconds begin, Seconds end) {
      played_[turn.at.rank][turn.at.lane].push_back({begin, end});
    });
    path_.step_time = played.periods.front().step_time;
  }

  PlayedPath path()
  {
    std::optional<Point> point = last();
    while (point) point = point->is_end ? begin_of(*point) : before(*point);
    return std::move(path_);
  }

 private:
  const Played& played(const End& lane, std::uint64_t position) const
  {
    return played_[lane.rank][lane.lane][position];
  }
  Instruction instruction(const Point& point) const
  {
    return program_.at(point.lane.rank, point.lane.lane, point.position);
  }
  /// The lanes that meet at an instruction of a lane.
  std::vector<End> ends_of(const End& lane) const
  {
    const auto channel = program_.lanes(lane.rank)[lane.lane].channel;
    return channel ? program_.channels()[*channel].ends : std::vector{lane};
  }

  std::optional<Point> last() const
  {
    std::optional<Point> latest;
    for (std::size_t rank = 0; rank < played_.size(); ++rank) {
      for (std::size_t lane = 0; lane < played_[rank].size(); ++lane) {
        const auto& instructions = played_[rank][lane];
        for (std::uint64_t i = 0; i < instructions.size(); ++i) {
          if (latest && instructions[i].end <= latest->time) continue;
          latest = Point{{rank, static_cast<LaneId>(lane)}, i, true, instructions[i].end};
        }
      }
    }
    return latest;
  }

  /// Goes from the end of an instruction to its begin, or to the end of the message that delayed this one.
  Point begin_of(const Point& point)
  {
    const Instruction at = instruction(point);
    Point begin = point;
    begin.is_end = false;
    begin.time = played(point.lane, point.position).begin;
    if (is_copy(at.opcode) || (is_computation(at.opcode) && !is_on_device(at))) {
      const auto kind = is_copy(at.opcode) ? PlayedPath::Kind::Copy : PlayedPath::Kind::Update;
      add({kind, point.lane.rank, std::nullopt, at.stage, std::nullopt, point.time - begin.time});
    } else if (is_computation(at.opcode)) {
      add({PlayedPath::Kind::Compute, point.lane.rank, std::nullopt, at.stage, std::nullopt, point.time - begin.time});
    } else if (is_transfer(at.opcode)) {
      const auto ends = ends_of(point.lane);
      const TransferTimes times = transfer_times(ends.front().rank, ends.back().rank, at.size);
      const Seconds first_byte = begin.time + times.latency;
      const Seconds arrived = point.position > 0 ? played(point.lane, point.position - 1).end : Seconds(0);
      add_transfer(ends.front().rank, ends.back().rank, at.stage, std::nullopt, PlayedPath::Kind::Data,
                   point.time - std::max(first_byte, arrived));
      if (arrived > first_byte) return {point.lane, point.position - 1, true, arrived};
      add_transfer(ends.front().rank, ends.back().rank, at.stage, std::nullopt, PlayedPath::Kind::Latency,
                   times.latency);
    } else {
      add_collective(point.lane, at, point.position, point.time - begin.time);
    }
    return begin;
  }

  /// What an instruction that begins has waited for: of all its ends the latest; none at the begin of the period.
  std::optional<Point> before(const Point& point) const
  {
    std::optional<Point> latest;
    const auto consider = [&](const Point& candidate) {
      if (candidate.time > Seconds(0) && (!latest || candidate.time > latest->time)) latest = candidate;
    };
    for (const End& lane : ends_of(point.lane)) {
      if (point.position > 0) {
        // A lane of transfers goes on once a message is ready.
        const Instruction earlier = program_.at(lane.rank, lane.lane, point.position - 1);
        const Played& times = played(lane, point.position - 1);
        const bool is_end = !is_transfer(earlier.opcode);
        consider({lane, point.position - 1, is_end, is_end ? times.end : times.begin});
      }
      for (const Wait& wait : program_.at(lane.rank, lane.lane, point.position).waits) {
        if (wait.periods_back > 0) continue;
        const End other = {lane.rank, wait.lane};
        consider({other, wait.count - 1, true, played(other, wait.count - 1).end});
      }
    }
    return latest;
  }

  TransferTimes transfer_times(std::size_t from, std::size_t to, Bytes size) const
  {
    return rates_.transfer ? rates_.transfer(from, to, size) : TransferTimes{};
  }

  /// Adds the rounds of a collective, each by its longest flow. Beside other flows they take longer than alone; that
  /// is divided among their data.
  void add_collective(const End& lane, const Instruction& at, std::uint64_t position, Seconds time)
  {
    const std::size_t number = program_.lanes(lane.rank)[lane.lane].channel.value();
    const Channel& channel = program_.channels()[number];
    std::vector<Bytes> sizes;
    std::vector<Bytes> results;
    std::vector<std::string> sites;
    for (const End& end : channel.ends) {
      const Instruction& of_end = program_.at(end.rank, end.lane, position);
      sizes.push_back(of_end.size);
      results.push_back(of_end.result);
      if (!rates_.sites.empty()) sites.push_back(rates_.sites.at(end.rank));
    }
    if (has_equal_parts(results)) results.clear();
    const EndNetwork network = network_between(ranks_of(channel), network_);
    const auto rounds = rounds_of(at.opcode, sizes, channel.algorithm, sites, results);
    Seconds start = collective_start(rounds, network);
    struct RoundPart {
      std::size_t from = 0;
      std::size_t to = 0;
      Seconds latency;
      Seconds data;
    };
    std::vector<RoundPart> parts;
    Seconds latencies;
    Seconds data;
    for (const Round& round : rounds) {
      const auto ends = ends_of_flows(round, network);
      const auto last = std::max_element(ends.begin(), ends.end());
      if (last == ends.end()) continue;
      const Flow& flow = round[static_cast<std::size_t>(last - ends.begin())];
      const std::size_t from = channel.ends[flow.from].rank;
      const std::size_t to = channel.ends[flow.to].rank;
      const Seconds latency = static_cast<double>(flow.messages) * transfer_times(from, to, flow.size()).latency;
      parts.push_back({from, to, start + latency, *last - latency});
      latencies += start + latency;
      data += *last - latency;
      start = Seconds(0);
    }
    const double stretch = data > Seconds(0) ? (time - latencies) / data : 1;
    for (const RoundPart& part : parts) {
      add_transfer(part.from, part.to, at.stage, at.payload, PlayedPath::Kind::Data, stretch * part.data);
      add_transfer(part.from, part.to, at.stage, at.payload, PlayedPath::Kind::Latency, part.latency);
    }
  }

  void add_transfer(std::size_t from, std::size_t to, std::uint32_t stage, std::optional<Payload> collective,
                    PlayedPath::Kind kind, Seconds time)
  {
    add({kind, from, to, stage, collective, time});
  }

  void add(const PlayedPath::Part& part)
  {
    if (part.time > Seconds(0)) path_.parts.push_back(part);
  }

  const Program& program_;
  const PlayerRates& rates_;
  const EndNetwork network_ = network_between_ranks(rates_);
  std::vector<std::vector<std::vector<Played>>> played_;  // by rank, lane and position
  PlayedPath path_;
};

}  // namespace

PlayedPath played_path(const Program& program, const PlayerRates& rates)
{
  return PlayedPathFinder(program, rates).path();
}

}  // namespace isobar::results
