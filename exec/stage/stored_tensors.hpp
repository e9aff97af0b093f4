#pragma once

#include "exec/files/tensor_part.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/model/layer_module.hpp"

#include <string>

namespace isobar::exec {

/// Name, type and shape of a tensor as files store them. Does not wait for a GPU.
TensorFacts stored_facts(std::string name, const at::Tensor& tensor);
/// Copies a tensor into the form that files store, complete on return. The thread waits for its own stream of a GPU.
StoredTensor stored(std::string name, const at::Tensor& tensor);
/// Reads a tensor to the CPU. @throws as `source.read` does; InputError for a type that torch does not have.
at::Tensor read_tensor(const TensorSource& source, const std::string& name);
/// Reads a tensor that must have this shape and type. Checks them before it allocates: a file may claim more than fits
/// in memory. @throws InputError also for another shape or type.
at::Tensor read_tensor(const TensorSource& source, const TensorFacts& expected);
/// Reads such a part of a float32 tensor, in one dimension: `part` of the whole, or of what `of_experts` is of it, if
/// that is not null. @throws InputError also for another shape or type.
at::Tensor read_part(const TensorSource& source, const std::string& name, const TensorPart* of_experts,
                     const TensorPart& part);

}  // namespace isobar::exec
