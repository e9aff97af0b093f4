#pragma once

#include "core/units.hpp"
#include "exec/device/device.hpp"
#include "exec/device/memory_meter.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace c10 {
class Stream;
}  // namespace c10

/// GPU functions that need CUDA's own headers: exec/model/cuda where LibTorch and the toolkit have CUDA, otherwise
/// exec/device/no_gpu.cpp, which refuses to open a GPU. Call `open` first. A `void* stream` is CUDA's own handle;
/// nothing here waits for a stream.
namespace isobar::exec::gpu {

/// Opens GPU `index` in this process. @throws EnvironmentError as open_device does.
void open(std::size_t index);
GpuFacts facts_of(std::size_t index);

/// CUDA's handle of one of LibTorch's streams on a GPU.
void* handle_of(const c10::Stream& stream);

/// Adds tensors that are allocated on `stream` from now on to `count` until they are freed, by requested bytes.
void count_memory(const void* stream, std::shared_ptr<MemoryCount> count);

/// Pins memory of this machine, so that copies between it and a GPU go beside other work, and lets it go.
void pin(void* memory, std::size_t bytes);
void unpin(void* memory) noexcept;

/// Makes torch's calls that wait for a GPU throw, in the whole process.
void forbid_host_sync(bool forbidden);

/// Whether the calling thread's GPU has failed, for example by a fault in a kernel. All later calls to it fail.
bool has_failed();

/// For its lifetime, profilers such as Nsight Systems show the calling thread's work under this name. By NVTX, whose
/// cost is negligible when no profiler is attached.
class NamedRange {
 public:
  explicit NamedRange(const std::string& name);
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;
  ~NamedRange();
};

/// Queues a kernel that stores the device's time in the 8 bytes of device memory at `begin`.
void keep_time(std::uint64_t* begin, void* stream);
/// Queues a kernel that stretches the work since `begin`: it ends when `slowdown` times as much time has passed since
/// `begin` as when the kernel started.
void stretch(const std::uint64_t* begin, double slowdown, void* stream);

}  // namespace isobar::exec::gpu
