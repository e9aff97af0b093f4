#pragma once

#include "core/program/program.hpp"

#include <cstddef>

namespace isobar {

/// Whether a collective follows the updates of a rank within the same period: devices that divide the optimizer's state
/// gather what each of them has updated, and the next forward passes wait for it. O(lanes).
bool gathers_updates(const Program& program, std::size_t rank);

}  // namespace isobar
