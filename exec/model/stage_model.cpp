#include "exec/model/stage_model.hpp"

#include "core/errors.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/deferred_products.hpp"
#include "exec/model/device.hpp"
#include "exec/model/memory_meter.hpp"
#include "exec/model/stage_optimizer.hpp"
#include "exec/model/stored_tensors.hpp"
#include "exec/model/weights.hpp"

#include <fmt/format.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace isobar::exec {

namespace {

constexpr double first_loss_scale = 65536;
constexpr std::uint64_t good_steps_until_doubled = 2000;

/// Enables autocast to the workload's dtype on this thread while it lives; no effect for float32.
class Autocast {
 public:
  Autocast(DType dtype, at::DeviceType device) : device_(device), enabled_(dtype != DType::Float32)
  {
    if (!enabled_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, dtype == DType::BFloat16 ? at::kBFloat16 : at::kHalf);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast()
  {
    if (!enabled_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }

 private:
  at::DeviceType device_;
  bool enabled_;
};

/// Layers in one piece of autograd's graph: consecutive layers that keep their activations, or one that recomputes
/// them.
struct Segment {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  // inclusive
  bool recomputed = false;
};

/// What a segment, or the loss after the last one, keeps of a micro-batch until its backward pass.
struct Piece {
  Tensors inputs;   // leaves of the graph
  Tensors outputs;  // roots of the graph; empty if it is recomputed
};

struct MicroBatch {
  RandomKey key;
  std::vector<Piece> pieces;
  std::shared_ptr<DeferredProducts> products;  // null unless backward passes are split
};

/// A message's tensors as leaves of a new graph.
Tensors leaves_of(const Message& message)
{
  Tensors leaves;
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    leaves.push_back(message.tensors[i].detach().set_requires_grad(message.differentiable[i]));
  }
  return leaves;
}

/// Tensors without their graph, as a message.
Message message_of(const Tensors& tensors)
{
  Message message;
  for (const auto& tensor : tensors) {
    message.tensors.push_back(tensor.detach());
    message.differentiable.push_back(tensor.requires_grad());
  }
  return message;
}

/// Gradients of the leaves that have one, in their order.
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

std::vector<Segment> segments_of(const StageOptions& options)
{
  std::vector<Segment> segments;
  for (std::size_t layer = options.first_layer; layer <= options.last_layer; ++layer) {
    const bool recomputed = std::binary_search(options.recomputed.begin(), options.recomputed.end(), layer);
    if (!recomputed && !segments.empty() && !segments.back().recomputed) {
      segments.back().last_layer = layer;
    } else {
      segments.push_back({layer, layer, recomputed});
    }
  }
  return segments;
}

}  // namespace

struct StageModel::State {
  State(const Workload& stage_workload, StageOptions stage_options)
      : workload(stage_workload),
        options(std::move(stage_options)),
        device(options.device),
        segments(segments_of(options))
  {
    for (std::size_t layer = options.first_layer; layer <= options.last_layer; ++layer) {
      places.push_back(fmt::format("layer {} ({})", layer, shown(workload.layers[layer].name)));
      const MemoryPlace place(places.back());
      layers.push_back(make_layer_module(workload, layer, options.seed, options.device));
      const auto& layer_parameters = layers.back()->parameters();
      parameters.insert(parameters.end(), layer_parameters.begin(), layer_parameters.end());
      for (const auto& name : layers.back()->parameter_names()) names.push_back(checkpoint_name(layer, name));
    }
    backward_place = fmt::format("the backward pass of layers {} to {}", options.first_layer, options.last_layer);
    weights_place =
        fmt::format("the gradients of the weights of layers {} to {}", options.first_layer, options.last_layer);
    if (!parameters.empty()) optimizer = std::make_unique<StageOptimizer>(workload, parameters);
    if (workload.dtype == DType::Float16) loss_scale = first_loss_scale;
  }

  bool is_last() const { return options.last_layer + 1 == workload.layers.size(); }

  /// `products`: records the matrix products, if not null.
  Tensors run(const Segment& segment, const Tensors& inputs, const RandomKey& key,
              const std::shared_ptr<DeferredProducts>& products)
  {
    const Autocast autocast(workload.dtype, device.type());
    const DeferredProducts::Scope scope(products);
    Tensors passed = inputs;
    for (std::size_t layer = segment.first_layer; layer <= segment.last_layer; ++layer) {
      const MemoryPlace place(places[layer - options.first_layer]);
      passed = layers[layer - options.first_layer]->forward(passed, key);
    }
    return passed;
  }

  Message forward(std::uint64_t step, std::uint64_t microbatch, Message passed)
  {
    MicroBatch& in_flight = in_flight_batches[microbatch];
    in_flight = {{options.seed, step, microbatch}, {}, nullptr};
    if (options.splits_backward) in_flight.products = std::make_shared<DeferredProducts>();
    for (const auto& segment : segments) {
      Piece piece{leaves_of(passed), {}};
      Tensors outputs = run(segment, piece.inputs, in_flight.key, in_flight.products);
      passed = message_of(outputs);
      if (!segment.recomputed) piece.outputs = std::move(outputs);
      in_flight.pieces.push_back(std::move(piece));
    }
    if (!is_last()) return passed;

    Piece loss{leaves_of(passed), {}};
    loss.outputs = {loss_of(loss.inputs, options.batches->labels(in_flight.key, options.device))};
    losses.push_back(loss.outputs.front().detach());
    loss.outputs.front() = loss.outputs.front() * (loss_scale / static_cast<double>(options.microbatches));
    in_flight.pieces.push_back(std::move(loss));
    return {};
  }

  /// The backward pass, apart from what the products of the micro-batch defer.
  Message backward_input(std::uint64_t microbatch, const Message& gradients)
  {
    auto found = in_flight_batches.extract(microbatch);
    ensure(!found.empty(), "a backward pass comes after its forward pass");
    auto& [key, pieces, products] = found.mapped();
    Message passed = gradients;
    for (; !pieces.empty(); pieces.pop_back()) {
      Piece& piece = pieces.back();
      const std::size_t i = pieces.size() - 1;
      if (i < segments.size() && segments[i].recomputed) piece.outputs = run(segments[i], piece.inputs, key, products);
      Tensors differentiable;
      for (const auto& output : piece.outputs) {
        if (output.requires_grad()) differentiable.push_back(output);
      }
      const MemoryPlace place(backward_place);
      if (!differentiable.empty()) torch::autograd::backward(differentiable, passed.tensors);
      passed = gradients_of(piece.inputs);
    }
    if (products) deferred[microbatch] = std::move(products);
    return passed;
  }

  void backward_weight(std::uint64_t microbatch)
  {
    const auto found = deferred.extract(microbatch);
    ensure(!found.empty(), "the gradients of weights come after those of the inputs");
    const MemoryPlace place(weights_place);
    found.mapped()->add_gradients();
  }

  Message backward(std::uint64_t microbatch, const Message& gradients)
  {
    Message passed = backward_input(microbatch, gradients);
    if (options.splits_backward) backward_weight(microbatch);
    return passed;
  }

  GradientFacts facts() const
  {
    auto sum = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
    auto not_finite = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
    for (const auto& parameter : parameters) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      sum += gradient.to(at::kDouble).square().sum();
      not_finite += at::isfinite(gradient).all().logical_not();
    }
    const Tensors both = on_cpu({sum, not_finite});
    return {both[0].item<double>() / (loss_scale * loss_scale), both[1].item<double>()};
  }

  void update(const GradientFacts& reduced)
  {
    if (optimizer && reduced.finite()) {
      double factor = 1 / loss_scale;
      if (const auto most = workload.training.clip_norm) {
        const double norm = std::sqrt(reduced.sum_of_squares);
        if (norm > *most) factor *= *most / norm;
      }
      if (factor != 1) {
        const torch::NoGradGuard no_graph;
        for (auto& parameter : parameters) {
          if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
        }
      }
      optimizer->step();
    }
    if (optimizer) optimizer->zero_grad();
    if (workload.dtype == DType::Float16) adapt_loss_scale(reduced.finite());
  }

  void adapt_loss_scale(bool finite)
  {
    good_steps = finite ? good_steps + 1 : 0;
    if (!finite) loss_scale = std::max(1.0, loss_scale / 2);
    if (good_steps == good_steps_until_doubled) {
      loss_scale *= 2;
      good_steps = 0;
    }
  }

  Message evaluate(const BatchSource& batches, const RandomKey& key, const Message& inputs)
  {
    const torch::NoGradGuard no_graph;
    Tensors passed = inputs.tensors;
    for (const auto& segment : segments) passed = run(segment, passed, key, nullptr);
    if (!is_last()) return message_of(passed);
    const auto labels = batches.labels(key, options.device).flatten();
    const auto scores = passed.front().to(at::kFloat).flatten(0, -2);
    const auto counts = labels >= 0;  // others are ignored
    const auto loss = at::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum);
    const auto correct = (scores.argmax(-1) == labels).logical_and(counts).sum();
    evaluations.push_back(at::stack({loss.to(at::kDouble), counts.sum().to(at::kDouble), correct.to(at::kDouble)}));
    return {};
  }

  std::vector<StoredTensor> state() const
  {
    std::vector<StoredTensor> all;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      all.push_back(stored(names[i], parameters[i]));
      for (auto& tensor : optimizer->state(names[i], parameters[i])) all.push_back(std::move(tensor));
    }
    if (workload.dtype == DType::Float16 && options.first_layer == 0) {
      all.push_back(stored("loss_scale", at::tensor({loss_scale, static_cast<double>(good_steps)}, at::kDouble)));
    }
    return all;
  }

  void restore(const TensorSource& source)
  {
    const torch::NoGradGuard no_graph;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].copy_(read_tensor_like(source, names[i], parameters[i]));
      optimizer->restore(source, names[i], parameters[i]);
    }
    if (workload.dtype == DType::Float16 && source.find("loss_scale") != nullptr) {
      const auto scale = read_tensor_like(source, "loss_scale", at::zeros({2}, at::kDouble));
      loss_scale = scale[0].item<double>();
      good_steps = static_cast<std::uint64_t>(scale[1].item<double>());
    }
  }

  const Workload& workload;
  StageOptions options;
  torch::Device device;
  std::vector<Segment> segments;
  std::vector<std::string> places;  // what failures call the layers
  std::string backward_place;
  std::string weights_place;
  std::vector<std::unique_ptr<LayerModule>> layers;
  Tensors parameters;
  std::vector<std::string> names;             // of the parameters
  std::unique_ptr<StageOptimizer> optimizer;  // null if there are no parameters
  double loss_scale = 1;
  std::uint64_t good_steps = 0;
  std::map<std::uint64_t, MicroBatch> in_flight_batches;
  std::map<std::uint64_t, std::shared_ptr<DeferredProducts>> deferred;  // between the parts of a split backward pass
  Tensors losses;                                                       // since the last take_loss
  Tensors evaluations;  // since the last take_evaluation: float64 [3], as EvaluationSums
};

StageModel::StageModel(const Workload& workload, const StageOptions& options)
    : state_(std::make_unique<State>(workload, options))
{
}
StageModel::~StageModel() = default;

Message StageModel::forward(std::uint64_t step, std::uint64_t microbatch, Message inputs)
{
  return state_->forward(step, microbatch, std::move(inputs));
}
Message StageModel::backward(std::uint64_t microbatch, const Message& gradients)
{
  return state_->backward(microbatch, gradients);
}
Message StageModel::backward_input(std::uint64_t microbatch, const Message& gradients)
{
  ensure(state_->options.splits_backward, "a split backward pass was recorded as such");
  return state_->backward_input(microbatch, gradients);
}
void StageModel::backward_weight(std::uint64_t microbatch)
{
  state_->backward_weight(microbatch);
}
Tensors StageModel::gradients()
{
  Tensors gradients;
  for (auto& parameter : state_->parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    gradient = gradient.contiguous();
    gradients.push_back(gradient);
  }
  return gradients;
}
GradientFacts StageModel::gradient_facts() const
{
  return state_->facts();
}
void StageModel::update(const GradientFacts& reduced)
{
  state_->update(reduced);
}

at::Tensor StageModel::take_loss()
{
  const Tensors losses = std::exchange(state_->losses, {});
  ensure(!losses.empty(), "the last stage has a loss after a step");
  return at::stack(losses).to(at::kDouble).sum() / static_cast<double>(state_->options.microbatches);
}

Message StageModel::evaluate(const BatchSource& batches, std::uint64_t step, std::uint64_t microbatch,
                             const Message& inputs)
{
  return state_->evaluate(batches, {state_->options.seed, step, microbatch, /*drops=*/false}, inputs);
}

EvaluationSums StageModel::take_evaluation()
{
  const Tensors sums = std::exchange(state_->evaluations, {});
  if (sums.empty()) return {};
  const auto sum = on_cpu({at::stack(sums).sum(0)}).front();
  return {sum[0].item<double>(), sum[1].item<double>(), sum[2].item<double>()};
}

std::string StageModel::not_finite() const
{
  const torch::NoGradGuard no_graph;
  for (std::size_t i = 0; i < state_->parameters.size(); ++i) {
    if (!at::isfinite(state_->parameters[i]).all().item<bool>()) return state_->names[i];
  }
  return "";
}

std::vector<StoredTensor> StageModel::state() const
{
  return state_->state();
}
void StageModel::restore(const TensorSource& source)
{
  state_->restore(source);
}

std::vector<std::string> StageModel::load(const TensorSource& weights)
{
  std::vector<std::string> missing;
  for (std::size_t layer = state_->options.first_layer; layer <= state_->options.last_layer; ++layer) {
    auto& module = *state_->layers[layer - state_->options.first_layer];
    for (const auto& name : load_weights(state_->workload, layer, weights, module)) {
      missing.push_back(checkpoint_name(layer, name));
    }
  }
  return missing;
}

}  // namespace isobar::exec
