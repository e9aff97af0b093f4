#include "results/trace/step_recorder.hpp"

#include "core/program/collective.hpp"

#include <algorithm>

namespace isobar::results {

StepRecorder::StepRecorder(const Program& program, std::size_t most) : most_(most), channels_(program.channels())
{
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) recorded_.lanes.push_back(program.lanes(rank));
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
  const auto& ends = channels_[recorded_.lanes[event.rank][instruction.lane].channel.value()].ends;
  return own != grid_of_.end() && std::all_of(ends.begin(), ends.end(), [&](const End& end) {
           const auto other = grid_of_.find(end.rank);
           return other != grid_of_.end() && other->second == own->second;
         });
}

void StepRecorder::record(const TraceEvent& event)
{
  const Instruction& instruction = event.instruction;
  if (event.step > 0 || instruction.opcode == Opcode::Recv) return;
  ++recorded_.instructions;
  if (recorded_.events.size() < most_) recorded_.events.push_back(event);
  if (is_computation(instruction.opcode) || is_copy(instruction.opcode)) return;
  if (instruction.payload == Payload::GradientFacts) return;
  const Channel& channel = channels_[recorded_.lanes[event.rank][instruction.lane].channel.value()];
  if (instruction.opcode == Opcode::Send) {
    recorded_.sent[{event.rank, other_end(channel, event.rank, instruction.lane).rank}] += instruction.size;
    return;
  }
  if (channel.ends.front().rank != event.rank) return;
  auto& between_ranks = is_of_shards(event) ? recorded_.sent : recorded_.synced;
  const std::vector<Bytes> sizes(channel.ends.size(), instruction.size);
  for (const Round& round : rounds_of(instruction.opcode, sizes, channel.algorithm, channel.sites)) {
    for (const Flow& flow : round) {
      between_ranks[{channel.ends[flow.from].rank, channel.ends[flow.to].rank}] += flow.size();
    }
  }
}

void record_step(const Timeline& timeline, std::uint64_t step, TraceSink& sink)
{
  const Program& program = timeline.program();
  const Seconds begin = step == 0 ? Seconds(0) : timeline.end_of(step - 1);
  std::vector<TraceEvent> events;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (std::size_t i = 0; i < program.lanes(rank).size(); ++i) {
      const auto lane = static_cast<LaneId>(i);
      for (std::uint64_t position = 0; position < program.length(rank, lane); ++position) {
        const auto span = timeline.work(rank, lane, step, position);
        events.push_back(
            {0, rank, position, program.at(rank, lane, position), span.begin - begin, span.end - begin, Bytes(0)});
      }
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.end < b.end; });
  for (const auto& event : events) sink.record(event);
}

}  // namespace isobar::results
