#pragma once

#include "core/model/device_profile.hpp"
#include "core/model/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace isobar::exec {

struct ProfileOptions {
  std::uint64_t seed = 1;
  std::string device = "cpu";
  std::size_t threads = 1;
  std::size_t warm_up = 3;       ///< passes that do not count
  std::size_t repetitions = 15;  ///< passes that do
  /// Called after each pass with the number of passes so far.
  std::function<void(std::size_t)> on_pass = [](std::size_t) {};
};

/// Times every layer of the workload on a device, each kind once: layers with the same name but for its numbers, and
/// the same sizes, are one kind. On a CPU a pass takes what the computing thread works, so that others at work there
/// hardly count; on a GPU what the device's clock says while the host launches the next ones, as in a run.
/// @throws EnvironmentError as open_device does, and when a layer does not fit in the GPU; Interrupted after the pass
/// that is under way.
DeviceProfile measure_profile(const Workload& workload, const ProfileOptions& options);

/// The number of passes that `measure_profile` makes.
std::size_t passes_of(const Workload& workload, const ProfileOptions& options);

}  // namespace isobar::exec
