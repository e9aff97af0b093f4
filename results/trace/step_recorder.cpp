#include "results/trace/step_recorder.hpp"

#include "core/program/collective.hpp"

#include <algorithm>

namespace isobar::results {

namespace {

void forget_all_but_last(std::array<MemoryCurve, tier_count>& curves)
{
  for (auto& [times, bytes] : curves) {
    if (times.empty()) continue;
    times = {times.back()};
    bytes = {bytes.back()};
  }
}

/// The curve from `begin` to before `end`, relative to `origin`; its last value again at `end`.
MemoryCurve part_of(const MemoryCurve& curve, Seconds begin, Seconds end, Seconds origin)
{
  MemoryCurve part;
  const auto add = [&](Seconds time, Bytes bytes) {
    part.times.push_back(time - origin);
    part.bytes.push_back(bytes);
  };
  for (std::size_t i = 0; i < curve.times.size(); ++i) {
    if (curve.times[i] <= begin) {
      part = {};
    } else if (curve.times[i] >= end) {
      break;
    }
    add(std::max(begin, curve.times[i]), curve.bytes[i]);
  }
  if (!part.times.empty() && part.times.back() < end - origin) add(end, part.bytes.back());
  return part;
}

}  // namespace

StepRecorder::StepRecorder(const Program& program, std::size_t most, std::uint64_t step)
    : most_(most), number_(step), channels_(program.channels())
{
  step_.memory.resize(program.ranks());
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) step_.lanes.push_back(program.lanes(rank));
  for (std::size_t i = 0; i < program.grids().size(); ++i) {
    for (const std::size_t rank : program.grids()[i]) grid_of_[rank] = i;
  }
}

bool StepRecorder::is_of_shards(const TraceEvent& event) const
{
  const Instruction& instruction = event.instruction;
  if (!is_collective(instruction.opcode)) return false;
  if (instruction.payload == Payload::Activation || instruction.payload == Payload::Gradient) return true;
  const auto own = grid_of_.find(event.rank);
  const auto& ends = channels_[step_.lanes[event.rank][instruction.lane].channel.value()].ends;
  return own != grid_of_.end() && std::all_of(ends.begin(), ends.end(), [&](const End& end) {
           const auto other = grid_of_.find(end.rank);
           return other != grid_of_.end() && other->second == own->second;
         });
}

void StepRecorder::record(const TraceEvent& event)
{
  if (event.step + 1 == number_) before_ = std::max(before_, event.end);
  if (event.step + 1 < number_) forget_all_but_last(step_.memory[event.rank]);
  if (event.step == number_ + 1 && event.instruction.opcode != Opcode::Recv && step_.next.size() < most_) {
    step_.next.push_back(event);
  }
  if (event.step != number_) return;
  if (event.instruction.opcode != Opcode::Recv) {
    ++step_.instructions;
    if (step_.events.size() < most_) step_.events.push_back(event);
    count_traffic(event);
  }
  if (!is_cut()) end_ = std::max(end_, event.end);
}

void StepRecorder::memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory)
{
  if (is_cut()) return;
  MemoryCurve& curve = step_.memory[rank][static_cast<std::size_t>(tier)];
  if (curve.times.empty() || curve.times.back() < time) {
    curve.times.push_back(time);
    curve.bytes.push_back(memory);
  } else {
    curve.bytes.back() = memory;
  }
}

void StepRecorder::count_traffic(const TraceEvent& event)
{
  const Instruction& instruction = event.instruction;
  if (is_computation(instruction.opcode) || is_copy(instruction.opcode)) return;
  if (instruction.payload == Payload::GradientFacts) return;
  const Channel& channel = channels_[step_.lanes[event.rank][instruction.lane].channel.value()];
  if (instruction.opcode == Opcode::Send) {
    step_.sent[{event.rank, other_end(channel, event.rank, instruction.lane).rank}] += instruction.size;
    return;
  }
  if (channel.ends.front().rank != event.rank) return;
  auto& between_ranks = is_of_shards(event) ? step_.sent : step_.synced;
  const std::vector<Bytes> sizes(channel.ends.size(), instruction.size);
  for (const Round& round : rounds_of(instruction.opcode, sizes, channel.algorithm, channel.sites)) {
    for (const Flow& flow : round) {
      between_ranks[{channel.ends[flow.from].rank, channel.ends[flow.to].rank}] += flow.size();
    }
  }
}

RecordedStep StepRecorder::recorded() const
{
  RecordedStep step = step_;
  std::erase_if(step.next, [&](const TraceEvent& event) { return event.begin >= end_; });
  step.next.resize(is_cut() ? 0 : std::min(step.next.size(), most_ - step.events.size()));
  Seconds first = before_;
  for (auto* events : {&step.events, &step.next}) {
    for (auto& event : *events) {
      first = std::min(first, event.begin);
      event.step -= number_;
      event.begin -= before_;
      event.end -= before_;
    }
  }
  for (auto& of_rank : step.memory) {
    for (auto& curve : of_rank) curve = part_of(curve, first, end_, before_);
  }
  return step;
}

namespace {

/// Reports what each rank holds during the step. Instructions of the steps next to it may lie beside its own.
void record_memory(const Timeline& timeline, std::uint64_t step, Seconds begin, TraceSink& sink)
{
  struct Change {
    Seconds time;
    Tier tier;
    Bytes size;  // negative where it is released
  };
  const Program& program = timeline.program();
  const std::uint64_t first = step == 0 ? 0 : step - 1;
  const std::uint64_t last = std::min(step + 1, timeline.steps() - 1);
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    std::vector<Change> changes;
    for (std::size_t i = 0; i < program.lanes(rank).size(); ++i) {
      const auto lane = static_cast<LaneId>(i);
      for (std::uint64_t each = first; each <= last; ++each) {
        Seconds end;  // of the instruction before
        for (std::uint64_t position = 0; position < program.length(rank, lane); ++position) {
          const Instruction instruction = program.at(rank, lane, position);
          const auto span = timeline.at(rank, lane, each, position);
          // Times are rounded, but a device computes one after another.
          const Seconds starts = lane == compute_lane ? std::max(span.begin, end) : span.begin;
          end = std::max(span.end, starts);
          changes.push_back({starts, instruction.acquires.tier, instruction.acquires.size});
          changes.push_back({end, instruction.releases.tier, -1.0 * instruction.releases.size});
        }
      }
    }
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.time < b.time; });
    std::array<Bytes, tier_count> held;
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      held[tier] = program.resident(rank, static_cast<Tier>(tier));
      sink.memory_changed(rank, static_cast<Tier>(tier), Seconds(0) - begin, held[tier]);
    }
    for (const auto& [time, tier, size] : changes) {
      if (size.value == 0) continue;
      held[static_cast<std::size_t>(tier)] += size;
      sink.memory_changed(rank, tier, time - begin, held[static_cast<std::size_t>(tier)]);
    }
  }
}

}  // namespace

void record_step(const Timeline& timeline, std::uint64_t step, TraceSink& sink)
{
  const Program& program = timeline.program();
  const Seconds begin = step == 0 ? Seconds(0) : timeline.end_of(step - 1);
  record_memory(timeline, step, begin, sink);
  std::vector<TraceEvent> events;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (std::size_t i = 0; i < program.lanes(rank).size(); ++i) {
      const auto lane = static_cast<LaneId>(i);
      for (std::uint64_t position = 0; position < program.length(rank, lane); ++position) {
        for (std::uint64_t each = step; each < std::min(step + 2, timeline.steps()); ++each) {
          const auto span = timeline.work(rank, lane, each, position);
          events.push_back({each - step, rank, position, program.at(rank, lane, position), span.begin - begin,
                            span.end - begin, Bytes(0)});
        }
      }
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.end < b.end; });
  for (const auto& event : events) sink.record(event);
}

}  // namespace isobar::results
