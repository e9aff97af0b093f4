#pragma once

#include "core/compute/device_profile.hpp"
#include "core/compute/operator_table.hpp"
#include "core/model/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace isobar::exec {

struct ProfileOptions {
  std::uint64_t seed = 1;
  std::string device = "cpu";
  std::size_t threads = 1;
  std::size_t warm_up = 3;                ///< passes that do not count, for each kind of layer
  std::size_t repetitions = 15;           ///< passes that count, for each kind of layer
  std::function<void()> on_pass = [] {};  ///< called after each pass
};

/// For each layer, the first layer of its kind: layers with equal names, apart from digits, and equal sizes are one
/// kind.
std::vector<std::size_t> first_of_kind(const Workload& workload);

/// Times every layer of the workload on a device.
///
/// Each kind of layer is timed once. On a CPU the duration of a pass is the processor time of the computing thread, so
/// other processes hardly affect it. On a GPU it is the time by the device's clock while the host launches the next
/// pass, as in a run.
/// @throws EnvironmentError as open_device does, and when a layer does not fit in the GPU's memory; Interrupted after
/// the current pass.
DeviceProfile measure_profile(const Workload& workload, const ProfileOptions& options);

/// Number of passes that `measure_profile` makes.
std::size_t passes_of(const Workload& workload, const ProfileOptions& options);

/// Times operators of transformers on a device, as time_operators does; `warm_up` does not count there. Calls `on_pass`
/// `operator_parts` times.
/// @throws InputError when no generator of bert, gpt or llama made the layers; EnvironmentError as open_device does,
/// and when an operator does not fit in the GPU's memory; Interrupted.
compute::OperatorTable measure_operators(const Workload& workload, const ProfileOptions& options);

}  // namespace isobar::exec
