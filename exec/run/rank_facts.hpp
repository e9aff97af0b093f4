#pragma once

#include "exec/launch/preflight.hpp"

#include <cstddef>
#include <string>

namespace isobar::exec {

/// Opens the device and describes it: name, memory, dtypes, and LibTorch's version. The caller fills in the other
/// facts. A processor's name includes the number of computing `threads`.
/// @throws EnvironmentError as open_device does.
RankFacts facts_of_device(const std::string& device, std::size_t threads);

}  // namespace isobar::exec
