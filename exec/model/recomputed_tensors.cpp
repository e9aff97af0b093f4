#include "exec/model/recomputed_tensors.hpp"

#include "exec/device/tensor_slices.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace isobar::exec {

namespace {

using torch::autograd::variable_list;

thread_local RecomputedTensors* tensors_in_use = nullptr;

/// The backward pass of an operation, which computes it again to find the gradients of its input and its parameters.
class RecomputingNode : public torch::autograd::Node {
 public:
  RecomputingNode(torch::autograd::edge_list&& next, at::Tensor input, RecomputedTensors::Operation operation)
      : torch::autograd::Node(std::move(next)), input_(std::move(input)), operation_(std::move(operation))
  {
  }

  variable_list apply(variable_list&& gradients) override
  {
    const at::AutoGradMode with_graph(true);
    const at::Tensor input = input_.detach().requires_grad_();
    torch::autograd::backward({operation_(input)}, {gradients.at(0)});
    release_variables();
    return {input.grad()};
  }

  void release_variables() override
  {
    input_.reset();
    operation_ = {};
  }

 private:
  at::Tensor input_;
  RecomputedTensors::Operation operation_;
};

}  // namespace

RecomputedTensors::Scope::Scope(RecomputedTensors* tensors) : before_(std::exchange(tensors_in_use, tensors)) {}

RecomputedTensors::Scope::~Scope()
{
  tensors_in_use = before_;
}

void RecomputedTensors::add(const at::Tensor& tensor, std::function<at::Tensor()> make)
{
  if (tensors_in_use == nullptr) return;
  tensors_in_use->tensors_.push_back(tensor);
  tensors_in_use->makes_.push_back(std::move(make));
}

at::Tensor RecomputedTensors::result_of(const Operation& operation, const at::Tensor& input)
{
  if (tensors_in_use == nullptr) return operation(input);
  const at::Tensor values = input.detach();
  const auto make = [operation, values] {
    const at::NoGradGuard no_graph;
    return operation(values);
  };
  at::Tensor result = make();
  add(result.detach(), make);
  const auto node = std::make_shared<RecomputingNode>(torch::autograd::collect_next_edges(input), values, operation);
  torch::autograd::create_gradient_edge(result, node);
  return result;
}

void RecomputedTensors::free()
{
  for (const auto& tensor : tensors_) free_memory(tensor);
}

void RecomputedTensors::restore()
{
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    allocate_memory(tensors_[i]);
    alias_of(tensors_[i]).copy_(makes_[i]());
  }
  tensors_.clear();
  makes_.clear();
}

}  // namespace isobar::exec
