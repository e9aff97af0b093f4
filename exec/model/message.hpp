#pragma once

#include "exec/model/layer_module.hpp"
#include "exec/model/stream.hpp"

#include <vector>

namespace isobar::exec {

/// What the first stage decides of a step when it begins it; all ranks learn it with what they receive.
struct StepControl {
  bool checkpoint = false;  ///< once the step is done
  bool end = false;         ///< it is the last step
};

/// What passes between two stages: tensors, and for each whether a gradient comes back for it (the attention mask of
/// BERT has none). Gradients travel as a message too, those of the differentiable tensors in their order. Tensors on a
/// GPU have their values once `ready` has passed.
struct Message {
  Tensors tensors;
  std::vector<bool> differentiable;
  Event ready;
  /// With activations: of their step. With gradients: what stages behind wish for, `end` alone.
  StepControl control;
};

}  // namespace isobar::exec
