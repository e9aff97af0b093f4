#pragma once

#include "core/compute/device_profile.hpp"
#include "core/model/workload.hpp"
#include "exec/files/scratch_file.hpp"
#include "exec/run/profile.hpp"

#include <cstddef>
#include <cstdint>

namespace isobar::exec {

/// Size of the file on which a disk is measured, bytes.
inline constexpr std::uint64_t disk_probe_size = std::uint64_t{256} << 20;

/// Measures the machine that the device is in: its memory, copies between it and the device, updates by its processor,
/// and with `scratch`, a file of `disk_probe_size`, the disk.
///
/// Copies are one at a time, to and from pinned memory of a GPU and between two buffers on a CPU. Updates are those of
/// one layer, of the kind with the most parameters of the workload, by `threads` threads: for half a second and
/// `repetitions` times while the device is idle, and again while it computes forward passes of each kind of layer in
/// turn. Calls `on_pass` after each of its `machine_parts`. Takes about as long as 40 updates of that layer, but at
/// least a second.
/// @throws EnvironmentError as open_device does, and when memory or the disk fails; Interrupted.
MachineProfile measure_machine(const Workload& workload, const ProfileOptions& options, ScratchFile* scratch);

/// How often `measure_machine` calls `on_pass`.
inline constexpr std::size_t machine_parts = 4;

}  // namespace isobar::exec
