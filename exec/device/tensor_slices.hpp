#pragma once

#include "core/program/collective.hpp"
#include "core/program/program.hpp"
#include "exec/device/tensors.hpp"
#include "exec/files/tensor_part.hpp"

#include <cstddef>
#include <vector>

namespace isobar::exec {

/// Values of one tensor of several.
struct TensorSlice {
  std::size_t tensor = 0;  ///< index
  std::size_t begin = 0;   ///< of the tensor's own values
  std::size_t end = 0;
};

/// The number of values of all tensors.
std::size_t size_of(const Tensors& tensors);

/// Where the values of a range lie, counted through all tensors.
std::vector<TensorSlice> slices_of(const Tensors& tensors, ValueRange range);

/// A slice as a tensor of one dimension that shares the memory of `tensor`, which is contiguous.
at::Tensor view_of(const at::Tensor& tensor, const TensorSlice& slice);

/// The same values without autograd's history and version, which writing does not change.
at::Tensor alias_of(const at::Tensor& tensor);

/// Frees the memory of a tensor, which has all of its storage to itself, and gives it some again, not initialised. What
/// autograd has saved of the tensor shares that memory. On a GPU it stays until the work is done that the calling
/// thread's stream has queued.
void free_memory(const at::Tensor& tensor);
void allocate_memory(const at::Tensor& tensor);

/// Gives such a tensor, and what autograd has saved of it, the memory of `other`, which has its size and outlives the
/// use. Work that a GPU's stream has queued before uses the former memory.
void use_memory(const at::Tensor& tensor, const at::Tensor& other);

/// The values of a part of a tensor, in one dimension.
at::Tensor values_of(const TensorPart& part, const at::Tensor& whole);

/// A copy of tokens [batch, sequence, …] in equal parts of the sequence, [parts, batch, sequence / parts, …], and back;
/// contiguous.
at::Tensor in_parts_of_sequence(const at::Tensor& tokens, std::size_t parts);
at::Tensor joined_sequence(const at::Tensor& parts);

/// What belongs to an end of a channel (part_of_end), as views of the tensors of a collective.
Tensors part_of(const Channel& channel, std::size_t end, const Tensors& tensors);

}  // namespace isobar::exec
