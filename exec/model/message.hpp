#pragma once

#include "exec/model/layer_module.hpp"
#include "exec/model/stream.hpp"

#include <vector>

namespace isobar::exec {

/// The first stage's decisions about a step, made when the step begins. Messages carry them to all ranks.
struct StepControl {
  bool checkpoint = false;  ///< write one after the step
  bool end = false;         ///< this is the last step
};

/// Tensors that pass between two stages, with a flag for each whether a gradient returns for it (BERT's attention mask
/// has none). Gradients are a message too: those of the differentiable tensors, in order. Tensors on a GPU have their
/// values once `ready` has passed.
struct Message {
  Tensors tensors;
  std::vector<bool> differentiable;
  Event ready;
  /// With activations: the control of their step. With gradients: the later stages' request to stop, in `end` only.
  StepControl control;
};

}  // namespace isobar::exec
