#include "exec/device/device.hpp"

#include "core/errors.hpp"
#include "exec/device/gpu.hpp"
#include "exec/device/stream.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <charconv>
#include <mutex>

namespace isobar::exec {

namespace {

std::size_t index_of(const std::string& device)
{
  return static_cast<std::size_t>(at::Device(device).index());
}

}  // namespace

std::string device_from_text(const std::string& text)
{
  if (text == "cpu") return text;
  if (text == "cuda") return "cuda:0";
  constexpr std::string_view prefix = "cuda:";
  constexpr unsigned highest = 127;  // torch's own limit
  if (text.starts_with(prefix)) {
    unsigned index = 0;
    const auto [end, error] = std::from_chars(text.data() + prefix.size(), text.data() + text.size(), index);
    if (error == std::errc() && end == text.data() + text.size() && index <= highest) {
      return fmt::format("cuda:{}", index);
    }
  }
  throw InputError("--device", in_quotes(text) + " is not a device; write cpu, cuda, or cuda:N such as cuda:1");
}

bool is_gpu(const std::string& device)
{
  return device != "cpu";
}

void open_device(const std::string& device)
{
  if (is_gpu(device)) gpu::open(index_of(device));
}

GpuFacts facts_of_gpu(const std::string& device)
{
  return gpu::facts_of(index_of(device));
}

at::Tensor on_device(const at::Tensor& tensor, const std::string& device)
{
  if (!is_gpu(device) || !tensor.is_cpu()) return tensor;
  return tensor.pin_memory().to(at::Device(device), /*non_blocking=*/true);
}

at::Tensor begin_copy(const at::Tensor& tensor)
{
  if (tensor.is_cpu()) return tensor;
  const auto copy = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true));
  return copy.copy_(tensor, /*non_blocking=*/true);
}

Tensors on_cpu(const Tensors& tensors)
{
  Tensors copies;
  for (const auto& tensor : tensors) copies.push_back(begin_copy(tensor).contiguous());
  for (const auto& tensor : tensors) {
    if (tensor.is_cpu()) continue;
    event_of_this_thread(tensor.device().str()).wait();
    break;
  }
  return copies;
}

void set_computing_threads(std::size_t threads)
{
  static std::mutex mutex;  // torch's function is not thread-safe in a forked process
  const std::lock_guard lock(mutex);
  at::set_num_threads(static_cast<int>(threads));
}

NoHostSync::NoHostSync(const std::string& device) : on_gpu_(is_gpu(device))
{
  if (on_gpu_) gpu::forbid_host_sync(true);
}

NoHostSync::~NoHostSync()
{
  if (on_gpu_) gpu::forbid_host_sync(false);
}

}  // namespace isobar::exec
