#include "exec/device/gpu.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <dlfcn.h>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace isobar::exec::gpu {

namespace {

using c10::cuda::CUDACachingAllocator::TraceEntry;

void check(cudaError_t status, const char* what)
{
  if (status == cudaSuccess) return;
  throw EnvironmentError(fmt::format("--device cuda: {}: {}", what, cudaGetErrorString(status)));
}

/// Assigns memory to ranks by the stream that it is allocated on: autograd uses threads of its own, but the streams of
/// the forward pass. Torch calls `record` with its allocator's lock held.
class Ledger {
 public:
  void count(const void* stream, std::shared_ptr<MemoryCount> count)
  {
    const std::lock_guard lock(mutex_);
    counts_[stream] = std::move(count);
  }

  void record(const TraceEntry& entry)
  {
    const std::lock_guard lock(mutex_);
    if (entry.action_ == TraceEntry::ALLOC) {
      const auto found = counts_.find(entry.stream_);
      if (found == counts_.end()) return;
      found->second->add(entry.size_);
      held_[entry.addr_] = {found->second, entry.size_};
    } else if (entry.action_ == TraceEntry::FREE_COMPLETED) {
      const auto held = held_.extract(entry.addr_);
      if (!held.empty()) held.mapped().count->remove(held.mapped().bytes);
    }
  }

 private:
  struct Held {
    std::shared_ptr<MemoryCount> count;
    std::size_t bytes;
  };

  std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<MemoryCount>> counts_;
  std::unordered_map<std::size_t, Held> held_;  // by address
};

/// Never destroyed, since torch frees memory until the process exits.
Ledger& ledger()
{
  static auto& ledger = *new Ledger;
  return ledger;
}

/// Loads the library with the GPU's operators, at run time so that runs on a CPU do not wait for it, and attaches the
/// ledger to the allocator.
bool load_torch()
{
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw EnvironmentError(fmt::format("--device cuda: libtorch_cuda.so does not load: {}", dlerror()));
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) { ledger().record(entry); });
  return true;
}

}  // namespace

void open(std::size_t index)
{
  // CUDA's largest number of hardware queues, since streams that share one wait for each other. Keeps the user's
  // setting.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int count = 0;
  check(cudaGetDeviceCount(&count), "no GPU");
  if (index >= static_cast<std::size_t>(count)) {
    throw EnvironmentError(fmt::format("--device cuda:{}: no such GPU; this machine has {}", index, count));
  }
  static const bool loaded = load_torch();
  static_cast<void>(loaded);
}

GpuFacts facts_of(std::size_t index)
{
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, static_cast<int>(index)), "the GPU's properties");
  const std::string place =
      fmt::format("{:04x}:{:02x}:{:02x}", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
  return {properties.name, Bytes(static_cast<double>(properties.totalGlobalMem)), place};
}

void* handle_of(const c10::Stream& stream)
{
  return c10::cuda::CUDAStream(stream).stream();
}

void count_memory(const void* stream, std::shared_ptr<MemoryCount> count)
{
  ledger().count(stream, std::move(count));
}

void pin(void* memory, std::size_t bytes)
{
  check(cudaHostRegister(memory, bytes, cudaHostRegisterDefault), "cannot pin memory");
}

void unpin(void* memory) noexcept
{
  cudaHostUnregister(memory);
}

void forbid_host_sync(bool forbidden)
{
  c10::cuda::warning_state().set_sync_debug_mode(forbidden ? c10::cuda::SyncDebugMode::L_ERROR
                                                           : c10::cuda::SyncDebugMode::L_DISABLED);
}

bool has_failed()
{
  const cudaError_t state = cudaStreamQuery(cudaStreamLegacy);
  cudaGetLastError();  // clears "not ready", which a later call would report
  return state != cudaSuccess && state != cudaErrorNotReady;
}

NamedRange::NamedRange(const std::string& name)
{
  nvtxRangePushA(name.c_str());
}

NamedRange::~NamedRange()
{
  nvtxRangePop();
}

}  // namespace isobar::exec::gpu
