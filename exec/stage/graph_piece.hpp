#pragma once

#include "exec/device/tensors.hpp"

/// Parts of autograd's graph that are computed backward one by one. Internal to exec/stage.
namespace isobar::exec {

/// One of them.
struct GraphPiece {
  Tensors inputs;   ///< leaves; undefined ones are none
  Tensors outputs;  ///< roots
};

/// The same values as a leaf of a new graph; undefined of an undefined tensor.
at::Tensor leaf_of(const at::Tensor& tensor);
/// Adds the gradients of a piece's leaves and parameters, by those of its outputs, of which some may be undefined.
void go_backward(const GraphPiece& piece, const Tensors& gradients);
/// The gradient of a leaf, zeros if it has none; undefined of an undefined leaf.
at::Tensor gradient_of(const at::Tensor& leaf);

}  // namespace isobar::exec
