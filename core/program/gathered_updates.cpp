#include "core/program/gathered_updates.hpp"

#include <algorithm>

namespace isobar {

bool gathers_updates(const Program& program, std::size_t rank)
{
  const auto is_for_update = [&](const Wait& wait) {
    return wait.lane == compute_lane && wait.periods_back == 0 &&
           program.at(rank, compute_lane, wait.count - 1).opcode == Opcode::Update;
  };
  const auto lanes = static_cast<LaneId>(program.lanes(rank).size());
  for (LaneId lane = 0; lane < lanes; ++lane) {
    const std::uint64_t length = program.length(rank, lane);
    if (lane == compute_lane || length == 0) continue;
    const Instruction last = program.at(rank, lane, length - 1);
    if (is_collective(last.opcode) && std::any_of(last.waits.begin(), last.waits.end(), is_for_update)) return true;
  }
  return false;
}

}  // namespace isobar
