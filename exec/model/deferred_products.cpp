#include "exec/model/deferred_products.hpp"

#include "core/errors.hpp"

#include <ATen/ATen.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <utility>

namespace isobar::exec {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;

thread_local const std::shared_ptr<DeferredProducts>* recording = nullptr;

}  // namespace

/// What the gradients of a product's parameters are computed from.
struct DeferredProducts::Kept {
  Edge output;  // of a graph of the product alone, which holds its input
  at::Tensor gradient;
  edge_list parameters;
};

/// The backward pass of a product, in the graph of its layer. The product itself is a graph of its own, from which
/// first the gradient of the input is computed and later those of the parameters. Holds only edges: the graph needs the
/// input and the weight, but not the output.
class DeferredProducts::Node : public torch::autograd::Node {
 public:
  Node(edge_list&& next, Edge output, Edge input, edge_list parameters, std::shared_ptr<DeferredProducts> products)
      : torch::autograd::Node(std::move(next)),
        output_(std::move(output)),
        input_(std::move(input)),
        parameters_(std::move(parameters)),
        products_(std::move(products))
  {
  }

  variable_list apply(variable_list&& gradients) override
  {
    at::Tensor gradient = std::move(gradients.at(0));
    if (!gradient.defined()) return {at::Tensor()};
    ensure(output_.is_valid(), "a product has one backward pass");
    at::Tensor of_input;
    if (input_.is_valid()) {
      of_input = torch::autograd::Engine::get_default_engine()
                     .execute({output_}, {gradient}, /*keep_graph=*/true, /*create_graph=*/false,
                              /*accumulate_grad=*/false, {input_})
                     .at(0);
    }
    products_->kept_.push_back({std::move(output_), std::move(gradient), std::move(parameters_)});
    release_variables();
    return {of_input};
  }

  void release_variables() override
  {
    output_ = {};
    input_ = {};
    parameters_.clear();
  }

 private:
  Edge output_;
  Edge input_;
  edge_list parameters_;
  std::shared_ptr<DeferredProducts> products_;
};

DeferredProducts::DeferredProducts() = default;
DeferredProducts::~DeferredProducts() = default;

DeferredProducts::Scope::Scope(const std::shared_ptr<DeferredProducts>& products)
    : before_(std::exchange(recording, products ? &products : nullptr))
{
}

DeferredProducts::Scope::~Scope()
{
  recording = before_;
}

bool DeferredProducts::are_recorded()
{
  return recording != nullptr;
}

at::Tensor DeferredProducts::linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias)
{
  ensure(are_recorded(), "a product is recorded within a scope");
  const at::Tensor leaf = input.detach().set_requires_grad(input.requires_grad());
  const at::Tensor product = at::linear(leaf, weight, bias);
  edge_list parameters = {gradient_edge(weight)};
  if (bias.defined()) parameters.push_back(gradient_edge(bias));
  const std::shared_ptr<Node> backward(new Node(torch::autograd::collect_next_edges(input), gradient_edge(product),
                                                gradient_edge(leaf), std::move(parameters), *recording),
                                       torch::autograd::deleteNode);  // without recursion, however long the graph
  at::Tensor output = product.detach();
  torch::autograd::create_gradient_edge(output, backward);
  return output;
}

void DeferredProducts::add_gradients()
{
  while (!kept_.empty()) {
    Kept product = std::move(kept_.front());
    kept_.pop_front();
    torch::autograd::Engine::get_default_engine().execute({product.output}, {product.gradient}, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true,
                                                          product.parameters);
  }
}

}  // namespace isobar::exec
