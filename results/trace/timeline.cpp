#include "results/trace/timeline.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace isobar::results {

namespace {

/// One instruction of one step.
struct Place {
  std::size_t rank = 0;
  Lane lane = Lane::Compute;
  std::uint64_t step = 0;
  std::uint64_t position = 0;
};

/// Position of a rank's only AllReduce in a step.
std::uint64_t position_of_all_reduce(const Program& program, std::size_t rank)
{
  std::uint64_t position = program.length(rank, Lane::Compute);
  while (position > 0) {
    if (program.at(rank, Lane::Compute, --position).opcode == Opcode::AllReduce) return position;
  }
  throw std::logic_error("every rank of the ring has an AllReduce");
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
      for (const Lane lane : all_lanes) {
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
    std::optional<Place> last;
    const Instruction at_place = instruction(place);
    if (is_transfer(at_place)) {
      const Place other{at_place.peer, other_end(place.lane), place.step, at_place.peer_position};
      const bool sends = at_place.opcode == Opcode::Send;
      keep_lane(last, sends ? place : other);
      keep_wait(last, place, at_place);
      keep_wait(last, other, instruction(other));
      return last;
    }
    keep_lane(last, place);
    keep_wait(last, place, at_place);
    if (at_place.opcode == Opcode::AllReduce) {
      for (std::size_t rank = at_place.peer; rank != place.rank;) {
        const Place other{rank, place.lane, place.step, position_of_all_reduce(program_, rank)};
        const Instruction there = instruction(other);
        keep_lane(last, other);
        keep_wait(last, other, there);
        rank = there.peer;
      }
    }
    return last;
  }

 private:
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

  void keep_wait(std::optional<Place>& last, const Place& place, const Instruction& at_place) const
  {
    if (at_place.wait.count == 0) return;
    keep_later(last, {place.rank, at_place.wait.lane, place.step, at_place.wait.count - 1});
  }

  const Timeline& timeline_;
  const Program& program_;
};

}  // namespace

Timeline Timeline::of(const TraceFile& trace, const Program& program)
{
  const auto fault = [&](const std::string& what) { return InputError(trace.name, what); };
  Timeline timeline(program);
  for (const auto& event : trace.events) {
    if (event.rank >= program.ranks()) {
      throw fault(fmt::format("an event of rank {}; the plan has {} ranks", event.rank, program.ranks()));
    }
    timeline.spans_[event.rank][static_cast<std::size_t>(event.instruction.lane)].push_back({event.begin, event.end});
    timeline.steps_ = std::max(timeline.steps_, event.step + 1);
  }
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (const Lane lane : all_lanes) {
      auto& spans = timeline.spans_[rank][static_cast<std::size_t>(lane)];
      const std::uint64_t expected = timeline.steps_ * program.length(rank, lane);
      if (spans.size() != expected) {
        throw fault(
            fmt::format("rank {}, {}: {} instructions in {} steps, and {} in the plan; the trace is of another plan",
                        rank, name_of(lane), spans.size(), timeline.steps_, expected));
      }
      std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
    }
  }
  return timeline;
}

const Timeline::Span& Timeline::at(std::size_t rank, Lane lane, std::uint64_t step, std::uint64_t position) const
{
  return spans_[rank][static_cast<std::size_t>(lane)][step * program_->length(rank, lane) + position];
}

std::vector<Seconds> Timeline::step_times() const
{
  const PathFinder finder(*this);
  std::vector<Seconds> times;
  Seconds before;
  for (std::uint64_t step = 0; step < steps_; ++step) {
    const Seconds end = finder.end(finder.last_of(step));
    times.push_back(end - std::exchange(before, end));
  }
  return times;
}

Timeline::Span Timeline::work(std::size_t rank, Lane lane, std::uint64_t step, std::uint64_t position) const
{
  const Span& here = at(rank, lane, step, position);
  const Instruction instruction = program_->at(rank, lane, position);
  if (instruction.opcode == Opcode::AllReduce) {
    Seconds last_begin = here.begin;
    for (std::size_t other = instruction.peer; other != rank;) {
      const std::uint64_t there = position_of_all_reduce(*program_, other);
      last_begin = std::max(last_begin, at(other, lane, step, there).begin);
      other = program_->at(other, lane, there).peer;
    }
    return {last_begin, here.end};
  }
  if (!is_transfer(instruction)) return here;
  const Lane other = other_end(lane);
  const Span& there = at(instruction.peer, other, step, instruction.peer_position);
  const bool sends = instruction.opcode == Opcode::Send;
  const Seconds receiver_arrival = sends ? end_of_predecessors(instruction.peer, other, step, instruction.peer_position)
                                         : end_of_predecessors(rank, lane, step, position);
  return {std::max((sends ? here : there).begin, receiver_arrival), std::max(here.end, there.end)};
}

/// Later end of two: the previous instruction of its lane, and the one that it waits for.
Seconds Timeline::end_of_predecessors(std::size_t rank, Lane lane, std::uint64_t step, std::uint64_t position) const
{
  Seconds end;
  if (position > 0) {
    end = at(rank, lane, step, position - 1).end;
  } else if (step > 0) {
    end = at(rank, lane, step - 1, program_->length(rank, lane) - 1).end;
  }
  const Wait wait = program_->at(rank, lane, position).wait;
  if (wait.count > 0) end = std::max(end, at(rank, wait.lane, step, wait.count - 1).end);
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
    const bool receives = instruction.opcode == Opcode::Recv;
    const bool sends = instruction.opcode == Opcode::Send;
    times[{receives ? instruction.peer : place->rank, receives ? Opcode::Send : instruction.opcode,
           receives ? place->rank
           : sends  ? instruction.peer
                    : 0}] += finder.end(*place) - since;
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
