#pragma once

#include "core/model/workload.hpp"

#include <cstdint>

namespace isobar {

/// The workload as a profile with errors shows it: the work of each layer, forward and backward alike, times a factor
/// of its own, drawn evenly from 1 - `most` to 1 + `most`, 0 <= most < 1.
Workload with_noise(Workload workload, double most, std::uint64_t seed);

}  // namespace isobar
