#include "results/trace/overlap.hpp"

namespace isobar::results {

void OverlapMeter::record(const TraceEvent& event)
{
  const Instruction& instruction = event.instruction;
  const bool computes = is_on_device(instruction);
  const bool communicates = is_transfer(instruction.opcode) || is_collective(instruction.opcode);
  if ((!computes && !communicates) || event.begin >= event.end) return;
  (computes ? compute_ : communication_)[event.rank].push_back({event.begin, event.end});
}

std::vector<DeviceOverlap> OverlapMeter::overlaps(const std::vector<std::string>& devices, std::uint64_t steps) const
{
  const auto count = static_cast<double>(steps);
  std::vector<DeviceOverlap> overlaps;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const Intervals compute(compute_[rank]);
    const Intervals communication(communication_[rank]);
    overlaps.push_back({devices[rank], compute.length() / count, communication.length() / count,
                        (compute & communication).length() / count});
  }
  return overlaps;
}

}  // namespace isobar::results
