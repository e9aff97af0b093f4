#pragma once

#include "sim/play/simulation_state.hpp"

namespace isobar::sim {

// Hosts and links whose profile falls to 0. SimGrid 3.32 ignores a speed or bandwidth of 0 (measured: an Exec continued
// as before). A resource that stands still therefore keeps a rate of 1e-4 FLOP/s or B/s: just above SimGrid's precision
// of 1e-5, and of no effect within a week.

/// Limits a host whose available speed is 0 to that rate.
void hold_at_standstill(const sg4::Host& host);
/// Limits a link whose bandwidth is 0 to that rate. Returns whether it was 0.
bool hold_at_standstill(const sg4::Link& link);

/// The longest time without progress that is not a standstill, unless what is under way takes longer.
inline constexpr Seconds week{7 * 24 * 3600.0};

/// Throws when nothing has completed for a week and for 1000 times the nominal duration of the work under way.
/// @throws InputError that names a host that computes or the slowest link of a message, the instruction that waits for
/// it, and since when.
void give_up_at_standstill(const SimulationState& state);

}  // namespace isobar::sim
