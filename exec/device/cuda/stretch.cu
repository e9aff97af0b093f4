#include "core/errors.hpp"
#include "exec/device/gpu.hpp"

#include <cuda_runtime.h>

namespace isobar::exec::gpu {

namespace {

/// In nanoseconds, the same on all of the device's processors.
__device__ std::uint64_t device_time()
{
  std::uint64_t time = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void keep_time_kernel(std::uint64_t* begin)
{
  *begin = device_time();
}

__global__ void stretch_kernel(const std::uint64_t* begin, double slowdown)
{
  const auto worked = static_cast<double>(device_time() - *begin);
  const auto end = *begin + static_cast<std::uint64_t>(slowdown * worked);
  while (device_time() < end) __nanosleep(500);
}

void check_launch()
{
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) throw EnvironmentError(std::string("--emulate: ") + cudaGetErrorString(status));
}

}  // namespace

void keep_time(std::uint64_t* begin, void* stream)
{
  keep_time_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(begin);
  check_launch();
}

void stretch(const std::uint64_t* begin, double slowdown, void* stream)
{
  stretch_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(begin, slowdown);
  check_launch();
}

}  // namespace isobar::exec::gpu
