#include "exec/stage/graph_piece.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstddef>

namespace isobar::exec {

at::Tensor leaf_of(const at::Tensor& tensor)
{
  return tensor.defined() ? tensor.detach().requires_grad_() : tensor;
}

void go_backward(const GraphPiece& piece, const Tensors& gradients)
{
  Tensors roots, of_roots;
  for (std::size_t i = 0; i < piece.outputs.size(); ++i) {
    const at::Tensor& output = piece.outputs[i];
    if (!output.defined() || !output.requires_grad() || !gradients[i].defined()) continue;
    roots.push_back(output);
    of_roots.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, of_roots);
}

at::Tensor gradient_of(const at::Tensor& leaf)
{
  if (!leaf.defined()) return leaf;
  return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
}

}  // namespace isobar::exec
