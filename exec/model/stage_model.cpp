#include "exec/model/stage_model.hpp"

#include "core/errors.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/device.hpp"
#include "exec/model/memory_meter.hpp"
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

/// Matrix products in the workload's dtype while it lives, on this thread; float32 workloads are left alone.
class Autocast {
 public:
  Autocast(DType dtype, at::DeviceType device) : device_(device), on_(dtype != DType::Float32)
  {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, dtype == DType::BFloat16 ? at::kBFloat16 : at::kHalf);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast()
  {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }

 private:
  at::DeviceType device_;
  bool on_;
};

/// Layers that are one piece of autograd's graph: neighbours that keep their activations, or one that recomputes them.
struct Segment {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  // inclusive
  bool recomputed = false;
};

/// What a segment, or the loss behind the last one, keeps of a micro-batch until its backward pass.
struct Piece {
  Tensors inputs;   // leaves of the graph
  Tensors outputs;  // with the graph behind them; empty where it is made again
};

struct MicroBatch {
  RandomKey key;
  std::vector<Piece> pieces;
};

/// The message's tensors as leaves of a new graph.
Tensors leaves_of(const Message& message)
{
  Tensors leaves;
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    leaves.push_back(message.tensors[i].detach().set_requires_grad(message.differentiable[i]));
  }
  return leaves;
}

/// The tensors without their graph.
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

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Workload& workload, const Tensors& parameters)
{
  const Training& training = workload.training;
  switch (workload.optimizer) {
    case Optimizer::Sgd:
      return std::make_unique<torch::optim::SGD>(
          parameters, torch::optim::SGDOptions(training.learning_rate).weight_decay(training.weight_decay));
    case Optimizer::Momentum:
      return std::make_unique<torch::optim::SGD>(
          parameters,
          torch::optim::SGDOptions(training.learning_rate).momentum(0.9).weight_decay(training.weight_decay));
    case Optimizer::Adam:
      return std::make_unique<torch::optim::Adam>(
          parameters, torch::optim::AdamOptions(training.learning_rate).weight_decay(training.weight_decay));
    case Optimizer::AdamW:
      return std::make_unique<torch::optim::AdamW>(
          parameters, torch::optim::AdamWOptions(training.learning_rate).weight_decay(training.weight_decay));
  }
  throw std::logic_error("an optimizer that nobody makes");
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

bool has(const TensorSource& source, const std::string& name)
{
  return source.find(name) != nullptr;
}

/// Looks before it reads: what a file says of a tensor may be more than there is memory, or than torch can count.
at::Tensor read_like(const TensorSource& source, const std::string& name, const at::Tensor& like)
{
  const TensorFacts& there = source.facts(name);
  const TensorFacts wanted = stored_facts(name, like);
  if (there.shape != wanted.shape || there.type != wanted.type) {
    throw InputError(source.where(),
                     fmt::format("tensor {} is {} {}; the workload's is {} {}", in_quotes(name), name_of(there.type),
                                 shape_in_words(there.shape), name_of(wanted.type), shape_in_words(wanted.shape)));
  }
  return read_tensor(source, name);
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
      const auto& of_layer = layers.back()->parameters();
      parameters.insert(parameters.end(), of_layer.begin(), of_layer.end());
      for (const auto& name : layers.back()->parameter_names()) names.push_back(checkpoint_name(layer, name));
    }
    backward_place = fmt::format("the backward pass of layers {} to {}", options.first_layer, options.last_layer);
    if (!parameters.empty()) optimizer = make_optimizer(workload, parameters);
    if (workload.dtype == DType::Float16) loss_scale = first_loss_scale;
  }

  bool is_last() const { return options.last_layer + 1 == workload.layers.size(); }

  Tensors run(const Segment& segment, const Tensors& inputs, const RandomKey& key)
  {
    const Autocast autocast(workload.dtype, device.type());
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
    in_flight = {{options.seed, step, microbatch}, {}};
    for (const auto& segment : segments) {
      Piece piece{leaves_of(passed), {}};
      Tensors outputs = run(segment, piece.inputs, in_flight.key);
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

  Message backward(std::uint64_t microbatch, const Message& gradients)
  {
    auto found = in_flight_batches.extract(microbatch);
    ensure(!found.empty(), "a backward pass comes after its forward pass");
    auto& [key, pieces] = found.mapped();
    Message passed = gradients;
    for (; !pieces.empty(); pieces.pop_back()) {
      Piece& piece = pieces.back();
      const std::size_t i = pieces.size() - 1;
      if (i < segments.size() && segments[i].recomputed) piece.outputs = run(segments[i], piece.inputs, key);
      Tensors differentiable;
      for (const auto& output : piece.outputs) {
        if (output.requires_grad()) differentiable.push_back(output);
      }
      const MemoryPlace place(backward_place);
      if (!differentiable.empty()) torch::autograd::backward(differentiable, passed.tensors);
      passed = gradients_of(piece.inputs);
    }
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

  void update(const GradientFacts& agreed)
  {
    if (optimizer && agreed.finite()) {
      double factor = 1 / loss_scale;
      if (const auto most = workload.training.clip_norm) {
        const double norm = std::sqrt(agreed.sum_of_squares);
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
    if (workload.dtype == DType::Float16) adapt_loss_scale(agreed.finite());
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
    for (const auto& segment : segments) passed = run(segment, passed, key);
    if (!is_last()) return message_of(passed);
    const auto labels = batches.labels(key, options.device).flatten();
    const auto scores = passed.front().to(at::kFloat).flatten(0, -2);
    const auto counts = labels >= 0;  // others are left out
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
      for (const auto& [kind, tensor] : optimizer_state(parameters[i]))
        all.push_back(stored(state_name(kind, i), tensor));
    }
    if (workload.dtype == DType::Float16 && options.first_layer == 0) {
      all.push_back(stored("loss_scale", at::tensor({loss_scale, static_cast<double>(good_steps)}, at::kDouble)));
    }
    return all;
  }

  /// What the optimizer keeps of a parameter, by kind; a count of steps as an int64 scalar.
  std::vector<std::pair<std::string, at::Tensor>> optimizer_state(const at::Tensor& parameter) const
  {
    const auto& states = optimizer->state();
    const auto found = states.find(parameter.unsafeGetTensorImpl());
    if (found == states.end()) return {};
    const auto of_adam = [](const auto& state) -> std::vector<std::pair<std::string, at::Tensor>> {
      return {{"step", at::scalar_tensor(state.step(), at::kLong)},
              {"exp_avg", state.exp_avg()},
              {"exp_avg_sq", state.exp_avg_sq()}};
    };
    switch (workload.optimizer) {
      case Optimizer::Sgd:
        return {};
      case Optimizer::Momentum: {
        const auto& state = static_cast<const torch::optim::SGDParamState&>(*found->second);
        if (!state.momentum_buffer().defined()) return {};
        return {{"momentum_buffer", state.momentum_buffer()}};
      }
      case Optimizer::Adam:
        return of_adam(static_cast<const torch::optim::AdamParamState&>(*found->second));
      case Optimizer::AdamW:
        return of_adam(static_cast<const torch::optim::AdamWParamState&>(*found->second));
    }
    throw std::logic_error("an optimizer that nobody makes");
  }

  std::string state_name(const std::string& kind, std::size_t parameter) const
  {
    return fmt::format("{}:{}", names[parameter], kind);
  }

  void restore(const TensorSource& source)
  {
    const torch::NoGradGuard no_graph;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].copy_(read_like(source, names[i], parameters[i]));
      restore_optimizer(source, i);
    }
    if (workload.dtype == DType::Float16 && has(source, "loss_scale")) {
      const auto scale = read_like(source, "loss_scale", at::zeros({2}, at::kDouble));
      loss_scale = scale[0].item<double>();
      good_steps = static_cast<std::uint64_t>(scale[1].item<double>());
    }
  }

  void restore_optimizer(const TensorSource& source, std::size_t i)
  {
    const auto read = [&](const char* kind) {
      return read_like(source, state_name(kind, i), parameters[i]).to(device, /*non_blocking=*/false, /*copy=*/true);
    };
    const auto restore_adam = [&](auto state) {
      if (!has(source, state_name("exp_avg", i))) return;
      state->step(read_like(source, state_name("step", i), at::zeros({}, at::kLong)).template item<std::int64_t>());
      state->exp_avg(read("exp_avg"));
      state->exp_avg_sq(read("exp_avg_sq"));
      optimizer->state()[parameters[i].unsafeGetTensorImpl()] = std::move(state);
    };
    switch (workload.optimizer) {
      case Optimizer::Sgd:
        return;
      case Optimizer::Momentum: {
        if (!has(source, state_name("momentum_buffer", i))) return;
        auto state = std::make_unique<torch::optim::SGDParamState>();
        state->momentum_buffer(read("momentum_buffer"));
        optimizer->state()[parameters[i].unsafeGetTensorImpl()] = std::move(state);
        return;
      }
      case Optimizer::Adam:
        return restore_adam(std::make_unique<torch::optim::AdamParamState>());
      case Optimizer::AdamW:
        return restore_adam(std::make_unique<torch::optim::AdamWParamState>());
    }
  }

  const Workload& workload;
  StageOptions options;
  torch::Device device;
  std::vector<Segment> segments;
  std::vector<std::string> places;  // of the layers, for messages
  std::string backward_place;
  std::vector<std::unique_ptr<LayerModule>> layers;
  Tensors parameters;
  std::vector<std::string> names;                      // of the parameters
  std::unique_ptr<torch::optim::Optimizer> optimizer;  // none where there is nothing to learn
  double loss_scale = 1;
  std::uint64_t good_steps = 0;
  std::map<std::uint64_t, MicroBatch> in_flight_batches;
  Tensors losses;       // since the last take_loss
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
GradientFacts StageModel::gradient_facts() const
{
  return state_->facts();
}
void StageModel::update(const GradientFacts& agreed)
{
  state_->update(agreed);
}

at::Tensor StageModel::take_loss()
{
  const Tensors losses = std::exchange(state_->losses, {});
  ensure(!losses.empty(), "the last stage has a loss after a step");
  return at::stack(losses).to(at::kDouble).mean();
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
