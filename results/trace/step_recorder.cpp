#include "results/trace/step_recorder.hpp"

#include <algorithm>
#include <numeric>

namespace isobar::results {

void StepRecorder::record(const TraceEvent& event)
{
  if (event.step > 0 || event.instruction.opcode == Opcode::Recv) return;
  ++recorded_.instructions;
  if (recorded_.events.size() < most_) recorded_.events.push_back(event);
  const Instruction& instruction = event.instruction;
  if (instruction.opcode == Opcode::Send) recorded_.sent[{event.rank, instruction.peer}] += instruction.size;
}

void record_step(const Timeline& timeline, std::uint64_t step, TraceSink& sink)
{
  const Program& program = timeline.program();
  const auto times = timeline.step_times();
  const Seconds begin = std::accumulate(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(step), Seconds(0));
  std::vector<TraceEvent> events;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (const Lane lane : all_lanes) {
      for (std::uint64_t position = 0; position < program.length(rank, lane); ++position) {
        const auto span = timeline.work(rank, lane, step, position);
        events.push_back({0, rank, program.at(rank, lane, position), span.begin - begin, span.end - begin, Bytes(0)});
      }
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.end < b.end; });
  for (const auto& event : events) sink.record(event);
}

}  // namespace isobar::results
