#include "results/trace/timeline.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace isobar::results {

namespace {

/// One instruction of one step.
struct Place {
  std::size_t rank = 0;
  LaneId lane = compute_lane;
  std::uint64_t step = 0;
  std::uint64_t position = 0;
};

/// The channel of a lane; null for a lane that meets no other rank.
const Channel* channel_of(const Program& program, std::size_t rank, LaneId lane)
{
  const auto& channel = program.lanes(rank)[lane].channel;
  return channel ? &program.channels()[*channel] : nullptr;
}

/// Walks from instructions to their predecessors.
class PathFinder {
 public:
  explicit PathFinder(const Timeline& timeline) : timeline_(timeline), program_(timeline.program()) {}

  Instruction instruction(const Place& place) const { return program_.at(place.rank, place.lane, place.position); }
  Seconds end(const Place& place) const { return timeline_.at(place.rank, place.lane, place.step, place.position).end; }

  /// The instruction of the step that ended last.
  Place last_of(std::uint64_t step) const
  {
    std::optional<Place> last;
    for (std::size_t rank = 0; rank < program_.ranks(); ++rank) {
      for (std::size_t i = 0; i < program_.lanes(rank).size(); ++i) {
        const auto lane = static_cast<LaneId>(i);
        const std::uint64_t length = program_.length(rank, lane);
        if (length > 0) keep_later(last, {rank, lane, step, length - 1});
      }
    }
    ensure(last.has_value(), "a program has instructions");
    return *last;
  }

  /// The last to end of all that the instruction waited for; none for the first instructions.
  std::optional<Place> before(const Place& place) const
  {
    const auto places = ends_of(place);
    std::optional<Place> last;
    for (const Place& each : places) {
      if (instruction(each).opcode != Opcode::Recv) keep_lane(last, each);
    }
    for (const Place& each : places) keep_waits(last, each);
    return last;
  }

 private:
  /// The place, followed by those at the other ends of its channel.
  std::vector<Place> ends_of(const Place& place) const
  {
    const Channel* channel = channel_of(program_, place.rank, place.lane);
    if (channel == nullptr) return {place};
    std::vector<Place> places;
    for (const End& each : channel->ends) places.push_back({each.rank, each.lane, place.step, place.position});
    const auto self = std::find_if(places.begin(), places.end(), [&](const Place& each) {
      return each.rank == place.rank && each.lane == place.lane;
    });
    std::rotate(places.begin(), self, places.end());
    return places;
  }

  void keep_later(std::optional<Place>& last, const Place& place) const
  {
    if (!last || end(place) > end(*last)) last = place;
  }

  void keep_lane(std::optional<Place>& last, const Place& place) const
  {
    if (place.position > 0) {
      keep_later(last, {place.rank, place.lane, place.step, place.position - 1});
    } else if (place.step > 0) {
      keep_later(last, {place.rank, place.lane, place.step - 1, program_.length(place.rank, place.lane) - 1});
    }
  }

  void keep_waits(std::optional<Place>& last, const Place& place) const
  {
    const Waits waits = instruction(place).waits;
    for (const Wait& wait : waits) {
      if (wait.periods_back > place.step) continue;
      keep_later(last, {place.rank, wait.lane, place.step - wait.periods_back, wait.count - 1});
    }
  }

  const Timeline& timeline_;
  const Program& program_;
};

/// The lane of a rank with that name; none if the rank has no such lane.
std::optional<LaneId> lane_named(const Program& program, std::size_t rank, const std::string& name)
{
  const auto& lanes = program.lanes(rank);
  const auto found = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& lane) { return lane.name == name; });
  if (found == lanes.end()) return std::nullopt;
  return static_cast<LaneId>(found - lanes.begin());
}

/// The tracks of a trace as lanes of a program.
class TrackMap {
 public:
  /// @throws InputError when the trace has another number of instructions than `program`.
  TrackMap(const TraceFile& trace, const Program& program)
  {
    for (const auto& lanes : trace.lanes) counts_.emplace_back(lanes.size());
    for (const auto& event : trace.events) {
      if (event.rank >= program.ranks()) {
        throw InputError(fmt::format("an event of rank {}; the plan has {} ranks", event.rank, program.ranks()));
      }
      ++counts_[event.rank][event.instruction.lane];
      steps_ = std::max(steps_, event.step + 1);
    }
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) compare(trace, program, rank);
  }

  std::uint64_t steps() const { return steps_; }
  LaneId lane_of(const TraceEvent& event) const { return *lanes_[event.rank][event.instruction.lane]; }

 private:
  void compare(const TraceFile& trace, const Program& program, std::size_t rank)
  {
    const std::vector<Lane> none;
    const auto& tracks = rank < trace.lanes.size() ? trace.lanes[rank] : none;
    std::vector<std::uint64_t> found(program.lanes(rank).size());
    auto& lanes = lanes_.emplace_back();
    for (std::size_t track = 0; track < tracks.size(); ++track) {
      lanes.push_back(lane_named(program, rank, tracks[track].name));
      const std::uint64_t count = counts_[rank][track];
      if (lanes.back()) {
        found[*lanes.back()] = count;
      } else {
        require_equal(rank, tracks[track].name, count, 0);
      }
    }
    for (std::size_t lane = 0; lane < found.size(); ++lane) {
      const auto expected = steps_ * program.length(rank, static_cast<LaneId>(lane));
      require_equal(rank, program.lanes(rank)[lane].name, found[lane], expected);
    }
  }

  void require_equal(std::size_t rank, const std::string& lane, std::uint64_t found, std::uint64_t expected) const
  {
    if (found == expected) return;
    throw InputError(
        fmt::format("rank {}, {}: {} instructions in {} steps, and {} in the plan; the trace is of another plan", rank,
                    shown(lane), found, steps_, expected));
  }

  std::uint64_t steps_ = 0;
  std::vector<std::vector<std::uint64_t>> counts_;         // by rank and track
  std::vector<std::vector<std::optional<LaneId>>> lanes_;  // likewise
};

}  // namespace

Timeline Timeline::of(const TraceFile& trace, const Program& program)
{
  try {
    const TrackMap tracks(trace, program);
    Timeline timeline(program);
    timeline.steps_ = tracks.steps();
    constexpr Seconds missing(std::numeric_limits<double>::quiet_NaN());
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      auto& lanes = timeline.spans_.emplace_back(program.lanes(rank).size());
      for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        lanes[lane].resize(timeline.steps_ * program.length(rank, static_cast<LaneId>(lane)), {missing, missing});
      }
    }
    for (const auto& event : trace.events) timeline.add(event, tracks.lane_of(event));
    return timeline;
  } catch (const InputError& fault) {
    throw InputError(trace.name, fault.what());
  }
}

/// There are as many events as spans, so a lane is complete if no two are at the same position.
void Timeline::add(const TraceEvent& event, LaneId lane)
{
  const std::uint64_t length = program_->length(event.rank, lane);
  const auto fault = [&](const std::string& what) {
    return InputError(fmt::format("rank {}, {}: {} position {} of step {}; the trace is of another plan", event.rank,
                                  shown(program_->lanes(event.rank)[lane].name), what, event.position, event.step));
  };
  if (event.position >= length) throw fault(fmt::format("the plan has {} instructions, and the trace", length));
  Span& span = spans_[event.rank][lane][event.step * length + event.position];
  if (!std::isnan(span.begin.value)) throw fault("two instructions at");
  span = {event.begin, event.end};
}

const Timeline::Span& Timeline::at(std::size_t rank, LaneId lane, std::uint64_t step, std::uint64_t position) const
{
  return spans_[rank][lane][step * program_->length(rank, lane) + position];
}

Seconds Timeline::end_of(std::uint64_t step) const
{
  const PathFinder finder(*this);
  return finder.end(finder.last_of(step));
}

std::vector<Seconds> Timeline::step_times() const
{
  std::vector<Seconds> times;
  Seconds before;
  for (std::uint64_t step = 0; step < steps_; ++step) {
    const Seconds end = end_of(step);
    times.push_back(end - std::exchange(before, end));
  }
  return times;
}

Timeline::Span Timeline::work(std::size_t rank, LaneId lane, std::uint64_t step, std::uint64_t position) const
{
  const Span& here = at(rank, lane, step, position);
  const Channel* channel = channel_of(*program_, rank, lane);
  if (channel == nullptr) return here;
  if (is_collective(program_->at(rank, lane, position).opcode)) {
    Seconds last_begin = here.begin;
    for (const End& end : channel->ends)
      last_begin = std::max(last_begin, at(end.rank, end.lane, step, position).begin);
    return {last_begin, here.end};
  }
  const End& sender = channel->ends.front();
  const End& receiver = channel->ends.back();
  const Span& sent = at(sender.rank, sender.lane, step, position);
  const Span& received = at(receiver.rank, receiver.lane, step, position);
  const Seconds receiver_arrival = end_of_predecessors(receiver.rank, receiver.lane, step, position);
  return {std::max(sent.begin, receiver_arrival), std::max(sent.end, received.end)};
}

/// Latest end of the previous instruction of its lane and of those that it waits for.
Seconds Timeline::end_of_predecessors(std::size_t rank, LaneId lane, std::uint64_t step, std::uint64_t position) const
{
  Seconds end;
  if (position > 0) {
    end = at(rank, lane, step, position - 1).end;
  } else if (step > 0) {
    end = at(rank, lane, step - 1, program_->length(rank, lane) - 1).end;
  }
  const Waits waits = program_->at(rank, lane, position).waits;
  for (const Wait& wait : waits) {
    if (wait.periods_back > step) continue;
    end = std::max(end, at(rank, wait.lane, step - wait.periods_back, wait.count - 1).end);
  }
  return end;
}

std::vector<Seconds> steps_that_count(std::vector<Seconds> times)
{
  if (times.size() > 1) times.erase(times.begin());
  return times;
}

Seconds median_of(std::vector<Seconds> values)
{
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::uint64_t typical_step(const std::vector<Seconds>& times)
{
  const auto first = times.size() > 1 ? times.begin() + 1 : times.begin();
  return static_cast<std::uint64_t>(std::find(first, times.end(), median_of({first, times.end()})) - times.begin());
}

std::vector<PathShare> critical_path(const Timeline& timeline, std::uint64_t step)
{
  const PathFinder finder(timeline);
  std::map<std::tuple<std::size_t, Opcode, std::size_t>, Seconds> times;
  for (std::optional<Place> place = finder.last_of(step); place && place->step == step;) {
    const Instruction instruction = finder.instruction(*place);
    const auto before = finder.before(*place);
    const Seconds since =
        before ? finder.end(*before) : timeline.work(place->rank, place->lane, place->step, place->position).begin;
    std::tuple<std::size_t, Opcode, std::size_t> key{place->rank, instruction.opcode, 0};
    if (is_transfer(instruction.opcode)) {
      const auto& ends = channel_of(timeline.program(), place->rank, place->lane)->ends;
      key = {ends.front().rank, Opcode::Send, ends.back().rank};
    }
    times[key] += finder.end(*place) - since;
    place = before;
  }
  std::vector<PathShare> shares;
  for (const auto& [key, time] : times) {
    shares.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), time});
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const PathShare& a, const PathShare& b) { return a.time > b.time; });
  return shares;
}

}  // namespace isobar::results
