#pragma once

#include "core/errors.hpp"
#include "sim/play/simulation_state.hpp"

#include <string>

namespace isobar::sim {

/// A fault of the platform: its name, then `what`.
InputError platform_fault(const Platform& platform, const std::string& what);

/// A fault of a host or link, such as "link up", that is off when an instruction needs it.
InputError off_fault(const SimulationState& state, const std::string& what, const LaneState& lane, const Turn& turn);

/// @throws InputError when the host of the lane's rank is off.
void require_host(const SimulationState& state, const LaneState& lane, const Turn& turn);

/// @throws InputError when the device of the lane's rank is in no machine, and when that machine is off.
void require_machine(const SimulationState& state, const LaneState& lane, const Turn& turn);

/// @throws InputError when a host or a link of the hop is off.
void require_hop(const SimulationState& state, const LaneState& lane, const Turn& turn, const Hop& hop);

/// Throws the fault of an activity that failed in SimGrid: an InputError that names what is off, or a std::logic_error
/// when nothing is off.
[[noreturn]] void throw_fault_of_failed_activity(const SimulationState& state, const ActivityOwner& owner);

/// "Forward of micro-batch 1 (rank 0, step 0)", "Send activation of micro-batch 3 (rank 1, step 0)".
std::string description(const LaneState& lane, const Turn& turn);

/// One line for each of the first 20 lanes that have not reached their end, with what they wait for.
std::string waiting_instructions(const SimulationState& state);

}  // namespace isobar::sim
