#pragma once

#include "exec/files/tensor_source.hpp"
#include "exec/model/layer_module.hpp"

#include <string>

namespace isobar::exec {

/// What files say of a tensor. On a GPU no thread waits.
TensorFacts stored_facts(std::string name, const at::Tensor& tensor);
/// A copy of a tensor as files hold it, whole when it returns. On a GPU the thread waits for its own queue.
StoredTensor stored(std::string name, const at::Tensor& tensor);
/// A tensor on the CPU, as it was stored. @throws as `source.read`; InputError for a type that torch has not got.
at::Tensor read_tensor(const TensorSource& source, const std::string& name);

}  // namespace isobar::exec
