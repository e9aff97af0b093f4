#include "exec/device/message.hpp"

#include <ATen/ATen.h>

namespace isobar::exec {

Tensors leaves_of(const Message& message)
{
  Tensors leaves;
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    leaves.push_back(message.tensors[i].detach().set_requires_grad(message.differentiable[i]));
  }
  return leaves;
}

Message message_of(const Tensors& tensors)
{
  Message message;
  for (const auto& tensor : tensors) {
    message.tensors.push_back(tensor.detach());
    message.differentiable.push_back(tensor.requires_grad());
  }
  return message;
}

Message gradients_of(const Tensors& leaves)
{
  Message gradients;
  for (const auto& leaf : leaves) {
    if (!leaf.requires_grad()) continue;
    gradients.tensors.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
    gradients.differentiable.push_back(false);
  }
  return gradients;
}

}  // namespace isobar::exec
