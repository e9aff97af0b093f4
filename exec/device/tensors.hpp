#pragma once

#include <vector>

namespace at {
class Tensor;
}

namespace isobar::exec {

using Tensors = std::vector<at::Tensor>;

}  // namespace isobar::exec
