#pragma once

#include "exec/device/stream.hpp"
#include "exec/device/tensors.hpp"

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

/// A message's tensors as leaves of a new graph.
Tensors leaves_of(const Message& message);
/// Tensors without their graph, as a message.
Message message_of(const Tensors& tensors);
/// Gradients of the leaves that have one, in their order.
Message gradients_of(const Tensors& leaves);

}  // namespace isobar::exec
