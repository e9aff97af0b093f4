#pragma once

#include "exec/model/layer_module.hpp"
#include "exec/model/stream.hpp"

#include <vector>

namespace isobar::exec {

/// Tensors that pass between two stages, with a flag for each whether a gradient returns for it (BERT's attention mask
/// has none). Gradients are a message too: those of the differentiable tensors, in order. Tensors on a GPU have their
/// values once `ready` has passed.
struct Message {
  Tensors tensors;
  std::vector<bool> differentiable;
  Event ready;
};

}  // namespace isobar::exec
