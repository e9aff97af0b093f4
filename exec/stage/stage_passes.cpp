#include "exec/stage/stage_passes.hpp"

#include "core/errors.hpp"
#include "exec/device/autocast.hpp"
#include "exec/device/device.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/model/deferred_products.hpp"
#include "exec/model/recomputed_tensors.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

namespace isobar::exec {

StagePasses::StagePasses(const Workload& workload, const StageOptions& options, const StageParameters& parameters,
                         const LossScale& loss_scale, StagePasses* matrix_owner)
    : workload_(workload),
      options_(options),
      parameters_(parameters),
      loss_scale_(loss_scale),
      matrix_owner_(matrix_owner),
      segments_(segments_of(options)),
      backward_place_(fmt::format("the backward pass of layers {} to {}", options.first_layer, options.last_layer)),
      weights_place_(
          fmt::format("the gradients of the weights of layers {} to {}", options.first_layer, options.last_layer))
{
}

std::vector<StagePasses::Segment> StagePasses::segments_of(const StageOptions& options)
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

/// `products`: records the matrix products, if not null.
Tensors StagePasses::run(const Segment& segment, const Tensors& inputs, const RandomKey& key,
                         const std::shared_ptr<DeferredProducts>& products)
{
  const Autocast autocast(workload_.dtype, options_.device);
  const DeferredProducts::Scope scope(products);
  Tensors passed = inputs;
  for (std::size_t layer = segment.first_layer; layer <= segment.last_layer; ++layer) {
    const MemoryPlace place(parameters_.name_of_layer(layer));
    passed = parameters_.module(layer).forward(passed, key);
  }
  return passed;
}

Message StagePasses::forward(std::uint64_t step, std::uint64_t microbatch, Message passed)
{
  MicroBatch& in_flight = in_flight_batches_[microbatch];
  in_flight = {{options_.seed, step, microbatch}, {}, nullptr, nullptr};
  if (options_.splits_backward) in_flight.products = std::make_shared<DeferredProducts>();
  if (options_.divides_sequence) in_flight.recomputed = std::make_shared<RecomputedTensors>();
  for (const auto& segment : segments_) {
    Piece piece{leaves_of(passed), {}};
    const RecomputedTensors::Scope scope(segment.recomputed ? nullptr : in_flight.recomputed.get());
    Tensors outputs = run(segment, piece.inputs, in_flight.key, in_flight.products);
    passed = message_of(outputs);
    if (!segment.recomputed) piece.outputs = std::move(outputs);
    in_flight.pieces.push_back(std::move(piece));
  }
  if (options_.divides_sequence) {
    in_flight.recomputed->free();
    const Tensors data = is_first() ? Tensors() : in_flight.pieces.front().inputs;
    for (const auto& input : data) free_memory(input);
  }
  if (is_last()) return forward_loss(in_flight, passed);
  return passed;
}

/// The last piece of a micro-batch. Returns the statistics of a shard.
Message StagePasses::forward_loss(MicroBatch& in_flight, const Message& outputs)
{
  Piece loss{leaves_of(outputs), {}};
  const at::Tensor labels = options_.batches->labels(in_flight.key, options_.device);
  if (is_shard()) {
    loss.outputs = {statistics_of(loss.inputs.front(), labels, first_word())};
    in_flight.pieces.push_back(loss);
    return message_of(loss.outputs);
  }
  loss.outputs = {loss_of(workload_, loss.inputs, labels)};
  losses_.push_back(loss.outputs.front().detach());
  loss.outputs.front() = loss.outputs.front() * factor_of_loss();
  in_flight.pieces.push_back(std::move(loss));
  return {};
}

void StagePasses::restore_inputs(std::uint64_t microbatch, const Message& inputs)
{
  const at::NoGradGuard no_graph;
  const Tensors& kept = in_flight_batches_.at(microbatch).pieces.front().inputs;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    allocate_memory(kept[i]);
    alias_of(kept[i]).copy_(inputs.tensors.at(i));
  }
}

/// The backward pass, apart from what the products of the micro-batch defer.
Message StagePasses::backward_input(std::uint64_t microbatch, const Message& gradients)
{
  auto found = in_flight_batches_.extract(microbatch);
  ensure(!found.empty(), "a backward pass comes after its forward pass");
  auto& [key, pieces, products, recomputed] = found.mapped();
  if (recomputed) recomputed->restore();
  Message passed = is_last() && is_shard() ? gradient_of_statistics(gradients.tensors.at(0)) : gradients;
  // Of a micro-batch, both gradients of a tied matrix are added up first, as autograd does in one graph.
  const at::Tensor* const tied_matrix = parameters_.tied_matrix();
  at::Tensor earlier;
  if (tied_matrix != nullptr) {
    std::swap(earlier, tied_matrix->mutable_grad());
    if (auto other = other_gradients_.extract(microbatch)) {
      tied_matrix->mutable_grad() = std::move(other.mapped().front());
    }
  }
  for (; !pieces.empty(); pieces.pop_back()) {
    Piece& piece = pieces.back();
    const std::size_t i = pieces.size() - 1;
    if (i < segments_.size() && segments_[i].recomputed) piece.outputs = run(segments_[i], piece.inputs, key, products);
    Tensors differentiable;
    for (const auto& output : piece.outputs) {
      if (output.requires_grad()) differentiable.push_back(output);
    }
    const MemoryPlace place(backward_place_);
    if (!differentiable.empty()) torch::autograd::backward(differentiable, passed.tensors);
    passed = gradients_of(piece.inputs);
  }
  if (matrix_owner_ != nullptr) {
    matrix_owner_->other_gradients_[microbatch] = {std::exchange(tied_matrix->mutable_grad(), std::move(earlier))};
  } else if (earlier.defined()) {
    const at::NoGradGuard no_graph;
    tied_matrix->mutable_grad() = earlier.add_(tied_matrix->grad());
  }
  if (products) deferred_[microbatch] = std::move(products);
  return passed;
}

/// Keeps the loss in the shards from which take_loss takes it.
Message StagePasses::gradient_of_statistics(const at::Tensor& gathered)
{
  const at::NoGradGuard no_graph;
  const auto [loss, gradient] = loss_of_parts(gathered, options_.shard);
  const bool adds_by_shard = options_.sites.size() > 1 && options_.is_divided_alike;
  if (parameters_.is_first_shard() || adds_by_shard) losses_.push_back(loss);
  Message message;
  message.tensors = {gradient * factor_of_loss()};
  return message;
}

void StagePasses::backward_weight(std::uint64_t microbatch)
{
  const auto found = deferred_.extract(microbatch);
  ensure(!found.empty(), "the gradients of weights come after those of the inputs");
  const MemoryPlace place(weights_place_);
  found.mapped()->add_gradients();
}

Message StagePasses::backward(std::uint64_t microbatch, const Message& gradients)
{
  Message passed = backward_input(microbatch, gradients);
  if (options_.splits_backward) backward_weight(microbatch);
  return passed;
}

Message StagePasses::take_kept(std::uint64_t microbatch)
{
  Message kept;
  auto& pieces = in_flight_batches_.at(microbatch).pieces;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    for (auto& input : pieces[i].inputs) {
      kept.differentiable.push_back(input.requires_grad());
      kept.tensors.push_back(std::exchange(input, {}).detach());
    }
  }
  return kept;
}

void StagePasses::give_kept(std::uint64_t microbatch, const Message& kept)
{
  Tensors leaves = leaves_of(kept);
  auto next = leaves.begin();
  auto& pieces = in_flight_batches_.at(microbatch).pieces;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    for (auto& input : pieces[i].inputs) input = std::move(*next++);
  }
}

at::Tensor StagePasses::take_loss()
{
  const Tensors losses = std::exchange(losses_, {});
  ensure(!losses.empty(), "the last stage has a loss after a step");
  return at::stack(losses).to(at::kDouble).sum() / static_cast<double>(options_.microbatches);
}

Message StagePasses::evaluate(const BatchSource& batches, std::uint64_t step, std::uint64_t microbatch,
                              const Message& inputs)
{
  const at::NoGradGuard no_graph;
  const RandomKey key{options_.seed, step, microbatch, /*drops=*/false};
  Tensors passed = inputs.tensors;
  for (const auto& segment : segments_) passed = run(segment, passed, key, nullptr);
  if (!is_last()) return message_of(passed);
  const auto labels = batches.labels(key, options_.device);
  if (is_shard()) return message_of({evaluated_statistics_of(passed.front(), labels, first_word())});
  evaluations_.push_back(evaluation_of(passed.front(), labels));
  return {};
}

void StagePasses::count(const Message& statistics)
{
  const at::NoGradGuard no_graph;
  if (parameters_.is_first_shard()) evaluations_.push_back(evaluation_of(statistics.tensors.at(0)));
}

EvaluationSums StagePasses::take_evaluation()
{
  const Tensors sums = std::exchange(evaluations_, {});
  if (sums.empty()) return {};
  const auto sum = on_cpu({at::stack(sums).sum(0)}).front();
  return {sum[0].item<double>(), sum[1].item<double>(), sum[2].item<double>()};
}

}  // namespace isobar::exec
