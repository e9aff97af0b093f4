#pragma once

#include "core/units.hpp"
#include "exec/model/device.hpp"
#include "exec/model/memory_meter.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace c10 {
class Stream;
}  // namespace c10

/// What of a GPU CUDA's own headers alone give: exec/cuda where LibTorch and the toolkit have CUDA, else
/// exec/model/no_gpu.cpp, which opens none. Of these `open` comes first. A `stream` is CUDA's own handle; nothing here
/// waits for a stream.
namespace isobar::exec::gpu {

/// @throws EnvironmentError as open_device does.
void open(std::size_t index);
GpuFacts facts_of(std::size_t index);

/// CUDA's own handle of one of LibTorch's streams on a GPU.
void* handle_of(const c10::Stream& stream);

/// From now on tensors made on `stream` count there until they are given back, as bytes that were asked for.
void count_memory(const void* stream, std::shared_ptr<MemoryCount> count);

void forbid_host_sync(bool forbidden);

/// Whether the calling thread's GPU has failed, as after a fault in a kernel: all that is asked of it fails from then
/// on.
bool has_failed();

/// While it lives, profilers (Nsight Systems) show what the calling thread does under this name. NVTX: next to nothing
/// where no profiler looks on.
class NamedRange {
 public:
  explicit NamedRange(const std::string& name);
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;
  ~NamedRange();
};

/// Queues a kernel that keeps the device's time in the 8 bytes at `begin`, device memory.
void keep_time(std::uint64_t* begin, void* stream);
/// Queues a kernel that ends once `slowdown` times as long has passed since `begin` as had when the kernel began.
void stretch(const std::uint64_t* begin, double slowdown, void* stream);

}  // namespace isobar::exec::gpu
