#include "exec/run/rank_facts.hpp"

#include "exec/device/device.hpp"
#include "exec/device/stream.hpp"
#include "exec/launch/device_name.hpp"

#include <ATen/ATen.h>
#include <torch/version.h>

#include <array>
#include <utility>

namespace isobar::exec {

namespace {

/// Whether the device multiplies matrices of a type.
bool computes_in(const std::string& device, at::ScalarType type)
{
  constexpr std::int64_t size = 8;
  try {
    const at::Tensor ones = at::ones({size, size}, at::TensorOptions(at::Device(device)).dtype(type));
    at::matmul(ones, ones);
    event_of_this_thread(device).wait();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

RankFacts facts_of_device(const std::string& device, std::size_t threads)
{
  open_device(device);
  RankFacts facts;
  facts.device = device;
  facts.torch_version = TORCH_VERSION;
  if (is_gpu(device)) {
    const GpuFacts gpu = facts_of_gpu(device);
    facts.device_name = gpu.name;
    facts.memory = gpu.memory;
  } else {
    facts.device_name = processor_name(threads);
    facts.memory = machine_memory().available;
  }
  const std::array types = {std::pair(DType::Float32, at::kFloat), std::pair(DType::BFloat16, at::kBFloat16),
                            std::pair(DType::Float16, at::kHalf)};
  for (const auto& [dtype, type] : types) {
    if (computes_in(device, type)) facts.dtypes.emplace_back(name_of(dtype));
  }
  return facts;
}

}  // namespace isobar::exec
