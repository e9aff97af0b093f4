#include "exec/device/place.hpp"

#include "core/errors.hpp"
#include "exec/device/device.hpp"
#include "exec/device/gpu.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace isobar::exec {

namespace {

constexpr std::size_t page = 4096;

std::size_t rounded_up(std::size_t size, std::size_t unit)
{
  return (size + unit - 1) / unit * unit;
}

}  // namespace

PlaceSize PlaceSize::with(const PlaceSize& other) const
{
  return {std::max(bytes, other.bytes), std::max(extent, other.extent)};
}

Layout::Layout(const Tensors& tensors)
{
  constexpr std::size_t alignment = 64;
  for (const auto& tensor : tensors) {
    begins.push_back(rounded_up(size.extent, alignment));
    size.extent = begins.back() + tensor.nbytes();
    size.bytes += tensor.nbytes();
  }
}

Place::Place(const std::string& device, const PlaceSize& size, MemoryMeter& meter, bool copied_by_gpu)
    : bytes_(size.bytes), is_pinned_(copied_by_gpu)
{
  const auto extent = static_cast<std::int64_t>(size.extent);
  if (is_gpu(device)) {
    memory_ = {at::empty({extent}, at::TensorOptions(at::kByte).device(at::Device(device)))};
    return;
  }
  count_ = meter.take(bytes_);
  const std::size_t whole_pages = std::max(page, rounded_up(size.extent, page));
  void* const memory = std::aligned_alloc(page, whole_pages);
  if (memory == nullptr) {
    count_->remove(bytes_);
    meter.refuse(bytes_);
  }
  memory_ = {at::from_blob(memory, {extent}, &std::free, at::TensorOptions(at::kByte))};
  if (is_pinned_) gpu::pin(memory, whole_pages);
}

Place::~Place()
{
  if (count_) count_->remove(bytes_);
  if (is_pinned_) gpu::unpin(data());
}

const at::Tensor& Place::memory() const
{
  return memory_.front();
}

std::byte* Place::data() const
{
  return static_cast<std::byte*>(memory().mutable_data_ptr());
}

Tensors Place::tensors(const Tensors& like) const
{
  const Layout layout(like);
  ensure(layout.size.extent <= memory().nbytes(), "tensors fit into their place");
  Tensors tensors;
  for (std::size_t i = 0; i < like.size(); ++i) {
    const auto options = at::TensorOptions(like[i].scalar_type()).device(memory().device());
    tensors.push_back(at::from_blob(data() + layout.begins[i], like[i].sizes(), options));
  }
  return tensors;
}

void Place::fill(std::uint8_t byte) const
{
  if (memory().is_cpu()) {
    std::memset(data(), byte, memory().nbytes());
  } else {
    at::Tensor(memory()).fill_(byte);
  }
}

void copy_memory(const Place& from, const Place& to, std::size_t extent)
{
  const auto length = static_cast<std::int64_t>(extent);
  copy_memory(from.memory().narrow(0, 0, length), to.memory().narrow(0, 0, length));
}

void copy_memory(const at::Tensor& from, const at::Tensor& to)
{
  ensure(from.nbytes() == to.nbytes(), "a copy has the size of the original");
  if (from.is_cpu() && to.is_cpu()) {
    if (from.nbytes() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  } else {
    at::Tensor(to).copy_(from, /*non_blocking=*/true);
  }
}

}  // namespace isobar::exec
