#pragma once

#include "core/compute/device_constants.hpp"
#include "core/model/framework.hpp"

#include <cstdint>
#include <string>

namespace isobar::compute {

/// What training runs of a device type under a training software say of their constants.
enum class PairSource : std::uint8_t {
  Fitted,    ///< constants are fitted to runs of the pair (tools/fit_compute.py)
  Compared,  ///< runs of the pair are compared with their predictions; nothing is fitted on them
  Other      ///< no run of the pair is known
};

/// The source of a pair. `device`: as DeviceConstants names it.
PairSource source_of_pair(const std::string& device, const Framework& framework);

}  // namespace isobar::compute
