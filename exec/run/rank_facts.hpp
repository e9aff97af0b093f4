#pragma once

#include "exec/launch/preflight.hpp"

#include <cstddef>
#include <string>

namespace isobar::exec {

/// What this process's device is and can do, and LibTorch's version; the other facts are for the caller to say. A
/// processor is called by the `threads` of it that compute.
/// @throws EnvironmentError as open_device does.
RankFacts facts_of_device(const std::string& device, std::size_t threads);

}  // namespace isobar::exec
