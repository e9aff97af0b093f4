#pragma once

#include "core/errors.hpp"
#include "sim/play/simulation_state.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::sim {

/// A fault of the platform: its name, then `what`.
InputError platform_fault(const Platform& platform, const std::string& what);

/// A fault of a host or link, such as "link up", that is off when an instruction needs it.
InputError off_fault(const SimulationState& state, const std::string& what, const LaneState& lane,
                     const Instruction& instruction);

/// @throws InputError when the rank's host is off.
void require_host(const SimulationState& state, const RankState& rank, const LaneState& lane,
                  const Instruction& instruction);

/// @throws InputError when a host or a link that a message uses is off.
void require_route(const SimulationState& state, const LaneState& send, const Instruction& instruction,
                   const Channel& channel);

/// Throws the fault of an activity of the lane that failed in SimGrid: an InputError that names what is off, or a
/// std::logic_error when nothing is off.
[[noreturn]] void throw_fault_of_failed_activity(const SimulationState& state, const LaneState& lane);

/// "Forward of micro-batch 1 (rank 0, step 0)".
std::string description(const LaneState& lane, const Instruction& instruction, std::uint64_t step);

/// One line for each of the first 20 lanes that have not reached their end, with what they wait for.
std::string waiting_instructions(const std::vector<RankState>& ranks, std::uint64_t step);

}  // namespace isobar::sim
