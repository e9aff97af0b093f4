#include "exec/device/tensor_slices.hpp"

#include "core/errors.hpp"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>

namespace isobar::exec {

std::size_t size_of(const Tensors& tensors)
{
  std::size_t size = 0;
  for (const auto& tensor : tensors) size += static_cast<std::size_t>(tensor.numel());
  return size;
}

std::vector<TensorSlice> slices_of(const Tensors& tensors, ValueRange range)
{
  std::vector<TensorSlice> slices;
  std::size_t first = 0;  // of the tensor
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto size = static_cast<std::size_t>(tensors[i].numel());
    const std::size_t from = std::max(range.begin, first);
    const std::size_t to = std::min(range.end, first + size);
    if (from < to) slices.push_back({i, from - first, to - first});
    first += size;
  }
  return slices;
}

at::Tensor view_of(const at::Tensor& tensor, const TensorSlice& slice)
{
  ensure(tensor.is_contiguous(), "only contiguous tensors have slices");
  return tensor.detach().view(-1).narrow(0, static_cast<std::int64_t>(slice.begin),
                                         static_cast<std::int64_t>(slice.end - slice.begin));
}

at::Tensor alias_of(const at::Tensor& tensor)
{
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

void free_memory(const at::Tensor& tensor)
{
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  ensure(tensor.storage_offset() == 0 && (storage->nbytes() == tensor.nbytes() || storage->nbytes() == 0),
         "a tensor whose memory comes and goes has all of its storage");
  if (storage->nbytes() > 0 && !tensor.is_cpu()) {
    tensor.record_stream(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  }
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

void allocate_memory(const at::Tensor& tensor)
{
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() > 0) return;
  storage->set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(tensor.nbytes()));
  storage->set_nbytes(tensor.nbytes());
}

void use_memory(const at::Tensor& tensor, const at::Tensor& other)
{
  ensure(tensor.storage_offset() == 0 && tensor.is_contiguous() && tensor.nbytes() == other.nbytes(),
         "a tensor takes memory of its own size");
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(other.mutable_data_ptr(), tensor.device()));
  storage->set_nbytes(tensor.nbytes());
}

at::Tensor values_of(const TensorPart& part, const at::Tensor& whole)
{
  const auto begin = static_cast<std::int64_t>(part.begin);
  const auto length = static_cast<std::int64_t>(part.end - part.begin);
  return whole.reshape({-1, static_cast<std::int64_t>(part.period)}).narrow(1, begin, length).flatten();
}

at::Tensor in_parts_of_sequence(const at::Tensor& tokens, std::size_t parts)
{
  return tokens.unflatten(1, {static_cast<std::int64_t>(parts), -1})
      .transpose(0, 1)
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor joined_sequence(const at::Tensor& parts)
{
  return parts.transpose(0, 1).flatten(1, 2).contiguous();
}

Tensors part_of(const Channel& channel, std::size_t end, const Tensors& tensors)
{
  const ValueRange range = part_of_end(end, channel.ends.size(), size_of(tensors), channel.algorithm, channel.sites);
  Tensors part;
  for (const auto& slice : slices_of(tensors, range)) part.push_back(view_of(tensors[slice.tensor], slice));
  return part;
}

}  // namespace isobar::exec
