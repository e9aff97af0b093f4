#include "core/compute/layer_time.hpp"

#include "core/compute/transformer.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <variant>

namespace isobar::compute {

namespace {

/// Least bytes per element of 16 bits that an operator moves, and the part of the nominal bandwidth that it reaches.
struct BoundCost {
  BoundOperator which;
  BytesPerElement bytes;
  double forward_fraction;
  double backward_fraction;
};

// Fractions: tools/fit_operators.py on results/fidelity/operators/memory_bound.csv, medians of four GPUs; of copies and
// additions, data sheets of STREAM-like kernels (0.8).
constexpr BoundCost norm_cost = {BoundOperator::Norm, {4, 6}, 0.53, 0.24};
constexpr BoundCost activation_cost = {BoundOperator::Activation, {4, 6}, 0.76, 0.60};
constexpr BoundCost gated_cost = {BoundOperator::Activation, {6, 10}, 0.76, 0.60};
constexpr BoundCost dropout_residual_cost = {BoundOperator::Residual, {7, 5}, 0.36, 0.46};
constexpr BoundCost residual_cost = {BoundOperator::Residual, {6, 6}, 0.8, 0.8};
constexpr BoundCost rotation_cost = {BoundOperator::Copy, {4, 4}, 0.8, 0.8};
constexpr BoundCost lookup_cost = {BoundOperator::Copy, {30, 30}, 0.8, 0.8};  // operators: embedding, per number
constexpr BoundCost table_cost = {BoundOperator::Copy, {0, 10}, 0.8, 0.8};    // and per parameter: its gradient
// Of 16-bit scores. Megatron's kernel of causal softmax reads half of them and writes all; backward, it reads half of
// the result and of its gradient. Elsewhere a mask and a softmax are kernels of their own.
constexpr BytesPerElement causal_softmax = {3, 4};
constexpr BytesPerElement masked_softmax = {8, 10};
constexpr BytesPerElement score_dropout = {5, 5};
constexpr double backward_attention = 2.5;  // of the FLOPs of fused attention; five products in place of two

// Operators that the host issues for a block, each of a kernel.
constexpr double operators_forward = 28;
constexpr double operators_backward = 40;

enum class Pass { Forward, Backward };

/// By number.
double part_of(BlockOperators operators, const BlockOperators& of_all)
{
  operators &= of_all;
  return static_cast<double>(operators.count()) / static_cast<double>(of_all.count());
}

BytesPerSecond memory_rate(const DeviceConstants& device, const Framework& framework)
{
  return device.memory_bandwidth * framework.memory_speed;
}

BytesPerSecond copy_rate(const DeviceConstants& device, const Framework& framework)
{
  return memory_rate(device, framework) * copy_fraction;
}

/// Of numbers in 16 bits, the copies that a recipe's products read.
Seconds copies_of(double numbers, const Workload& workload, const DeviceConstants& device, const Framework& framework)
{
  const RecipeCosts& costs = costs_of(workload.recipe);
  const double bytes = costs.reads * size_of(workload.dtype) + quantized_copies * costs.number;
  return Bytes(numbers * bytes) / copy_rate(device, framework);
}

/// Refuses a recipe whose products the device does not have.
void require_products(const Workload& workload, const DeviceConstants& device)
{
  if (workload.recipe == ProductRecipe::None || device.peak(workload.recipe)) return;
  const bool lacks_blocks = device.fp8 && costs_of(workload.recipe).has_blocks;
  throw InputError("workload " + workload.name,
                   fmt::format("matmul_dtype: {}: {} has no {}; {}", name_of(workload.recipe), device.type,
                               lacks_blocks ? "products with scales of a few numbers" : "products in 8 bits",
                               lacks_blocks ? "write fp8_delayed, fp8_cs or fp8_block" : "leave it out"));
}

class Pricing {
 public:
  Pricing(const Workload& workload, const TransformerLayer& layer, const DeviceConstants& device,
          const Framework& framework, const LayerDivision& division, const OperatorTable* table)
      : workload_(workload),
        layer_(layer),
        device_(device),
        framework_(framework),
        shards_(static_cast<double>(division.shards)),
        repeats_(division.divides_sequence ? shards_ : 1),
        table_(table),
        width_(size_of(workload.dtype) / 2)
  {
  }

  /// Products with parameters in one direction: forward, the gradient of inputs, or the gradient of parameters.
  Seconds products(ProductLayout layout) const
  {
    Seconds total;
    for (const auto& linear : layer_.linears) total += product(linear, layout);
    return total;
  }
  /// Gradients of the parameters of linears that sum up the gradients of their input over the shards.
  Seconds products_before_sums() const
  {
    Seconds total;
    for (const auto& linear : layer_.linears) {
      if (!linear.divides_inputs && linear.is_divided) total += product(linear, ProductLayout::NT);
    }
    return total;
  }

  /// Of the forward pass.
  Seconds last_product() const
  {
    const auto last = std::find_if(layer_.linears.rbegin(), layer_.linears.rend(),
                                   [](const auto& linear) { return linear.divides_inputs; });
    return last == layer_.linears.rend() ? Seconds(0) : product(*last, ProductLayout::TN);
  }

  Seconds attention(Pass pass) const
  {
    const Seconds rest = recurrence(pass);
    if (layer_.scores == 0) return rest;
    if (layer_.attention == Attention::Fused) return rest + fused(pass);
    const UnfusedTimes parts = unfused_times(pass);
    return rest + parts.products + parts.softmax + parts.dropout;
  }

  Seconds memory_bound(Pass pass) const
  {
    const double numbers = layer_.tokens * layer_.hidden;
    const double repeated = numbers / repeats_;
    Seconds total = layer_.norms * bound(norm_cost, repeated, pass);
    total += layer_.residuals * bound(residual(), repeated, pass);
    const double streams = repeated * layer_.streams * layer_.connections;  // normed, added up and mixed
    total += bound(norm_cost, streams, pass) + bound(residual(), streams, pass);
    total += bound(activation(), layer_.tokens * layer_.inner / shards_, pass);
    total += bound(rotation_cost, layer_.tokens * layer_.rotated / shards_, pass);
    total += bound(norm_cost, layer_.tokens * layer_.normed_heads / shards_, pass);
    total += bound(rotation_cost, layer_.tokens * layer_.routed, pass);
    if (layer_.looked_up > 0) {
      total += bound(lookup_cost, repeated, pass);
      total += bound(table_cost, layer_.looked_up - layer_.divided_table * (1 - 1 / shards_), pass);
    }
    total += quantization(pass);
    const double logits = layer_.tokens * layer_.vocabulary / shards_;
    total += Bytes(logits * of(framework_.logit, pass)) / copy_rate(device_, framework_);
    return total;
  }

  /// What some operators of the forward pass take, of the `of_all` that the layer has. Each is a kernel.
  PassTime forward_of(const BlockOperators& operators, const BlockOperators& of_all) const
  {
    using enum BlockOperator;
    const auto has = [&](BlockOperator which) { return operators.has(which) && of_all.has(which); };
    PassTime time;
    double quantized = 0;
    for (const auto& linear : layer_.linears) {
      if (!linear.of || !has(*linear.of)) continue;
      time.products += product(linear, ProductLayout::TN);
      quantized += quantized_numbers(linear, Pass::Forward);
    }
    if (quantized > 0) time.memory_bound += copies_of(quantized, workload_, device_, framework_);
    if (of_all.has(Scores) && layer_.attention != Attention::Fused) {
      const UnfusedTimes parts = unfused_times(Pass::Forward);
      if (has(Scores)) time.attention += 0.5 * parts.products;
      if (has(Softmax)) time.attention += parts.softmax;
      if (has(ScoreDropout)) time.attention += parts.dropout;
      if (has(Context)) time.attention += 0.5 * parts.products;
    } else if (has(Context)) {
      time.attention = attention(Pass::Forward);
    }
    const double repeated = layer_.tokens * layer_.hidden / repeats_;
    for (const auto which : {Norm1, Norm2}) {
      if (has(which)) time.memory_bound += bound(norm_cost, repeated, Pass::Forward);
    }
    for (const auto which : {Dropout1, Dropout2}) {
      if (has(which)) time.memory_bound += bound(residual(), repeated, Pass::Forward);
    }
    const auto divided = [&](const BoundCost& cost, double numbers) {
      return bound(cost, layer_.tokens * numbers / shards_, Pass::Forward);
    };
    const bool is_compressed = of_all.has(QkvUp);
    if (has(is_compressed ? QkvUp : Qkv)) time.memory_bound += divided(rotation_cost, layer_.rotated);
    const auto with_norms = is_compressed ? QkvUp : layer_.scores > 0 ? Qkv : Context;
    if (has(with_norms)) time.memory_bound += divided(norm_cost, layer_.normed_heads);
    if (has(Activation)) time.memory_bound += divided(activation(), layer_.inner - layer_.shared_inner);
    if (has(SharedExperts)) time.memory_bound += divided(activation(), layer_.shared_inner);
    time.starts = part_of(operators, of_all) * starts(Pass::Forward);
    return time;
  }

  Seconds starts(Pass pass) const
  {
    if (table_ != nullptr && table_->launch) return {};  // a table of all operators has their starts
    const double operators = pass == Pass::Forward ? operators_forward : operators_backward;
    return (operators * layer_.host_share + quantizing_kernels()) * framework_.kernel_start;
  }

  Seconds host(Pass pass) const
  {
    const bool forward = pass == Pass::Forward;
    Seconds block = forward ? framework_.host_forward : framework_.host_backward;
    // The framework may add its own time, of Python, to what it takes to issue operators.
    if (table_ != nullptr && table_->launch)
      block = std::max(block, *table_->launch * (forward ? operators_forward : operators_backward));
    if (shards_ > 1) block += framework_.host_shards;
    const double operators = forward ? operators_forward : operators_backward;
    return block * (layer_.host_share + quantizing_kernels() / operators);
  }

 private:
  bool has_recipe() const { return workload_.recipe != ProductRecipe::None; }

  /// Of the inputs of a layer's linears, or of the gradients of their outputs. Those of each expert are quantized by
  /// themselves, but by delayed scaling, which has a kernel for all (Transformer Engine, fused_multi_quantize in
  /// pytorch/csrc/extensions).
  double quantizing_kernels() const
  {
    if (!has_recipe()) return 0;
    double tensors = 0;
    for (const auto& linear : layer_.linears) {
      if (!linear.is_quantized) continue;
      const bool is_apart = linear.is_grouped && workload_.recipe != ProductRecipe::Fp8Delayed;
      tensors += is_apart ? linear.products : 1;
    }
    return tensors * costs_of(workload_.recipe).kernels;
  }

  /// Inputs of linears in the forward pass, gradients of their outputs in the backward pass.
  Seconds quantization(Pass pass) const
  {
    double numbers = 0;
    for (const auto& linear : layer_.linears) numbers += quantized_numbers(linear, pass);
    return numbers > 0 ? copies_of(numbers, workload_, device_, framework_) : Seconds(0);
  }
  double quantized_numbers(const TransformerLayer::Linear& linear, Pass pass) const
  {
    if (!has_recipe() || !linear.is_quantized) return 0;
    const bool is_shared = linear.is_divided && (pass == Pass::Forward) == linear.divides_inputs;
    const double all = linear.rows * linear.products * (pass == Pass::Forward ? linear.inputs : linear.outputs);
    return all / (is_shared ? shards_ : repeats_);
  }

  static double of(const BytesPerElement& bytes, Pass pass)
  {
    return pass == Pass::Forward ? bytes.forward : bytes.backward;
  }

  Seconds product(const TransformerLayer::Linear& linear, ProductLayout layout) const
  {
    const double shards = linear.is_divided ? shards_ : 1;
    const double m = linear.rows;
    const double n = linear.outputs / (linear.divides_inputs ? 1 : shards);
    const double k = linear.inputs / (linear.divides_inputs ? shards : 1);
    Seconds one;
    switch (layout) {
      case ProductLayout::TN:
        one = product_of(linear, m, n, k, layout);
        break;
      case ProductLayout::NN:
        one = product_of(linear, m, k, n, layout);
        break;
      case ProductLayout::NT:
        one = product_of(linear, n, k, m, layout);
        break;
    }
    if (linear.is_grouped) {
      const bool reads_copy = has_recipe() && linear.is_quantized && layout != ProductLayout::NT;
      const Bytes matrix = reads_copy ? Bytes(n * k * costs_of(workload_.recipe).number)
                                      : bytes_of_matrix(n * k, layout, workload_.dtype);
      one += matrix / copy_rate(device_, framework_);
    }
    return linear.products * one;
  }

  /// By the recipe of the workload. A table has products in 16 bits, which the device's constants relate to the
  /// recipe's.
  Seconds product_of(const TransformerLayer::Linear& linear, double m, double n, double k, ProductLayout layout) const
  {
    if (!has_recipe() || !linear.is_quantized) return product(m, n, k, layout);
    const bool of_gradients = layout != ProductLayout::TN;
    return product(m, n, k, layout) * (device_.product_time(workload_.recipe, m, n, k, of_gradients) /
                                       device_.product_time(workload_.dtype, false, m, n, k, of_gradients));
  }

  Seconds product(double m, double n, double k, ProductLayout layout) const
  {
    if (table_ == nullptr) {
      const Seconds time =
          device_.product_time(workload_.dtype, workload_.has_tf32_products, m, n, k, layout != ProductLayout::TN);
      const double in_training =
          device_.are_products_alone ? framework_.speed_in_training : framework_.fitted_product_speed;
      return time / (framework_.product_speed * in_training);
    }
    const auto whole = [](double extent) { return static_cast<std::uint64_t>(std::max(1.0, std::round(extent))); };
    return table_->time_of({1, whole(m), whole(n), whole(k), layout}) / framework_.speed_in_training;
  }

  /// Bandwidth that an operator reaches.
  BytesPerSecond bandwidth(BoundOperator which, double fraction, Pass pass) const
  {
    if (table_ != nullptr) {
      if (const auto found = table_->memory_bound.find(which); found != table_->memory_bound.end()) {
        return pass == Pass::Forward ? found->second.forward : found->second.backward;
      }
    }
    const bool is_fused = which == BoundOperator::Norm || (which == BoundOperator::Residual && drops());
    return memory_rate(device_, framework_) * std::min(fraction * (is_fused ? framework_.norm_speed : 1), 1.0);
  }

  const BoundCost& residual() const { return drops() ? dropout_residual_cost : residual_cost; }
  const BoundCost& activation() const { return layer_.is_gated ? gated_cost : activation_cost; }

  bool drops() const { return workload_.training.dropout > 0; }

  Seconds bound(const BoundCost& cost, double elements, Pass pass) const
  {
    const double fraction = pass == Pass::Forward ? cost.forward_fraction : cost.backward_fraction;
    return Bytes(elements * of(cost.bytes, pass) * width_) / bandwidth(cost.which, fraction, pass);
  }

  /// Scores x width, of those that a token sees.
  Seconds fused(Pass pass) const
  {
    const Flops forward(4 * layer_.scores * layer_.width * layer_.seen / shards_);
    if (table_ != nullptr && !table_->attention.empty()) return measured_attention(forward, pass);
    return forward * (pass == Pass::Forward ? 1 : backward_attention) / attention_rate();
  }

  FlopsPerSecond attention_rate() const
  {
    return device_.peak(workload_.dtype, workload_.has_tf32_products) *
           (device_.fused_attention * framework_.attention_speed);
  }

  Seconds recurrence(Pass pass) const
  {
    if (layer_.recurrence == Flops(0)) return {};
    return layer_.recurrence / shards_ * (pass == Pass::Forward ? 1 : 2) / attention_rate();
  }

  /// By the rate of the measured attention whose sequence, width and number of heads are the nearest.
  Seconds measured_attention(Flops forward, Pass pass) const
  {
    const auto tokens = static_cast<double>(workload_.sequence);
    const double heads = layer_.scores / (tokens * tokens) / shards_;  // of all samples
    const auto distance = [&](const MeasuredAttention& measured) {
      return std::abs(std::log(static_cast<double>(measured.sequence) / tokens)) +
             std::abs(std::log(static_cast<double>(measured.width) / layer_.width)) +
             std::abs(std::log(static_cast<double>(measured.batch) * static_cast<double>(measured.heads) / heads));
    };
    const auto nearest =
        std::min_element(table_->attention.begin(), table_->attention.end(),
                         [&](const auto& one, const auto& other) { return distance(one) < distance(other); });
    const double sequence = static_cast<double>(nearest->sequence);
    const Flops work(2 * static_cast<double>(nearest->batch) * static_cast<double>(nearest->heads) *
                     static_cast<double>(nearest->width) * sequence * sequence);
    return (pass == Pass::Forward ? nearest->forward : nearest->backward) * (forward / work);
  }

  /// Two batched products forward and four backward, each by its work or the scores that it moves, and the operators on
  /// the scores.
  struct UnfusedTimes {
    Seconds products;
    Seconds softmax;  ///< with the mask
    Seconds dropout;
  };
  UnfusedTimes unfused_times(Pass pass) const
  {
    const double scores = layer_.scores / shards_;
    const double passes = pass == Pass::Forward ? 1 : 2;
    const auto reached = bandwidth(BoundOperator::Softmax, device_.core_bandwidth, pass);
    const auto rate = device_.peak(workload_.dtype, workload_.has_tf32_products) * device_.products.efficiency;
    const Seconds computed = Flops(4 * scores * layer_.width) / rate;
    const Seconds moved = Bytes(2 * size_of(workload_.dtype) * scores) / reached;
    const bool has_kernel = framework_.has_causal_softmax && layer_.is_causal && size_of(workload_.dtype) == 2;
    const auto over_scores = [&](const BytesPerElement& bytes) {
      return Bytes(of(bytes, pass) * scores * width_) / reached;
    };
    return {std::max(computed, moved) * passes, over_scores(has_kernel ? causal_softmax : masked_softmax),
            drops() ? over_scores(score_dropout) : Seconds(0)};
  }

  const Workload& workload_;
  const TransformerLayer& layer_;
  const DeviceConstants& device_;
  const Framework& framework_;
  double shards_;
  double repeats_;  ///< what divides that which shards would repeat
  const OperatorTable* table_;
  double width_;  ///< of an element, in units of 16 bits
};

/// What the device and the host take for a layer, each alone.
struct LayerResources {
  LayerTime time;  ///< without waiting for the host
  Seconds forward_host;
  Seconds backward_host;
  Seconds collectives;  ///< among shards and parts of a sequence, that nothing hides

  Seconds device() const { return time.forward.device() + time.backward.device(); }
  Seconds host() const { return forward_host + backward_host; }
};

/// A ring exchanges beside attention: each of its steps takes the longer of the two. So recomputed ones do.
void add_hidden_exchange(const Workload& workload, std::size_t layer, const LayerDivision& division, LayerTime& time)
{
  const HiddenAttention most = most_hidden_attention(workload, time);
  const bool repeats = is_recomputed(workload, layer);
  const Seconds repeated = repeats ? division.forward_exchange : Seconds(0);
  const Seconds hidden = std::min(most.forward, division.forward_exchange);
  time.hidden_forward += hidden;
  time.hidden_backward +=
      std::min(most.backward - (repeats ? most.forward : Seconds(0)), division.backward_exchange - repeated);
  if (repeats) time.hidden_backward += hidden;
}

LayerResources resources_of(const Workload& workload, std::size_t layer, const DeviceConstants& device,
                            const Framework& framework, const LayerDivision& division, const OperatorTable* table)
{
  const auto of_layer = transformer_layer(workload, layer, division.shards, framework);
  const Pricing price(workload, of_layer, device, framework, division, table);
  LayerResources needs;
  LayerTime& time = needs.time;
  time.forward.products = price.products(ProductLayout::TN);
  time.forward.attention = price.attention(Pass::Forward);
  time.forward.memory_bound = price.memory_bound(Pass::Forward);
  time.forward.starts = price.starts(Pass::Forward);
  time.backward_weight = price.products(ProductLayout::NT);
  time.backward.products = price.products(ProductLayout::NN) + time.backward_weight;
  time.backward.attention = price.attention(Pass::Backward);
  time.backward.memory_bound = price.memory_bound(Pass::Backward);
  time.backward.starts = price.starts(Pass::Backward);
  needs.forward_host = price.host(Pass::Forward);
  needs.backward_host = price.host(Pass::Backward);
  if (is_recomputed(workload, layer)) {
    time.backward.products += time.forward.products;
    if (framework.stops_recomputation && of_layer.inner > 0) time.backward.products -= price.last_product();
    time.backward.attention += time.forward.attention;
    time.backward.memory_bound += time.forward.memory_bound;
    time.backward.starts += time.forward.starts;
    needs.backward_host += needs.forward_host;
  } else if (const auto again = recomputed_operators(workload, layer); again.any()) {
    const BlockOperators of_all = operators_of(workload, layer);
    const PassTime repeated = price.forward_of(again, of_all);
    time.backward.products += repeated.products;
    time.backward.attention += repeated.attention;
    time.backward.memory_bound += repeated.memory_bound;
    time.backward.starts += repeated.starts;
    needs.backward_host += part_of(again, of_all) * needs.forward_host;
  } else if (of_layer.attention == Attention::Recomputed) {
    time.backward.attention += time.forward.attention;
  }
  if (framework.hides_shard_sums && !division.divides_sequence) {
    // As many collectives as forward ones; beside them the products of the linears whose outputs are divided.
    time.hidden_backward = hidden_part * std::min(division.forward_collectives, price.products_before_sums());
  }
  if (framework.hides_shard_collectives) {
    time.hidden_forward = hidden_part * std::min(division.forward_collectives, time.forward.products);
    time.hidden_backward = hidden_part * std::min(division.backward_collectives, time.backward.products);
  }
  needs.collectives = division.forward_collectives + division.backward_collectives;
  if (of_layer.scores > 0) {
    needs.collectives += division.forward_exchange + division.backward_exchange;
    add_hidden_exchange(workload, layer, division, time);
  }
  needs.collectives -= time.hidden_forward + time.hidden_backward;
  if (framework.hides_dispatches) {
    const auto beside = [](Seconds dispatch, Seconds pass, Seconds hidden) {
      return hidden_part * std::min(dispatch, std::max(pass - hidden, Seconds(0)));
    };
    time.hidden_forward += beside(division.forward_dispatch, time.forward.device(), time.hidden_forward);
    time.hidden_backward += beside(division.backward_dispatch, time.backward.device(), time.hidden_backward);
  }
  return needs;
}

}  // namespace

LayerTime layer_time(const Workload& workload, std::size_t layer, const DeviceConstants& device,
                     const Framework& framework, const LayerDivision& division, const OperatorTable* table)
{
  ensure(division.shards >= 1, "a layer has a shard");
  require_products(workload, device);
  if (table != nullptr && (table->dtype != workload.dtype || table->tf32 != workload.has_tf32_products)) {
    throw InputError("operators of " + table->device,
                     fmt::format("are measured in {}{}, and the workload computes in {}{}; measure them again",
                                 name_of(table->dtype), table->tf32 ? " with TF32" : "", name_of(workload.dtype),
                                 workload.has_tf32_products ? " with TF32" : ""));
  }
  LayerResources own;
  Seconds wait;  // of the block
  Seconds host;
  const auto [first, last] = block_of(workload, layer);
  for (std::size_t each = first; each <= last; ++each) {
    const LayerResources needs = resources_of(workload, each, device, framework, division, table);
    wait += needs.host() - needs.device() - needs.collectives;
    host += needs.host();
    if (each == layer) own = needs;
  }
  if (wait > Seconds(0)) {
    own.time.forward.launch = wait * (own.forward_host / host);
    own.time.backward.launch = wait * (own.backward_host / host);
  }
  return own.time;
}

HiddenAttention most_hidden_attention(const Workload& workload, const LayerTime& time)
{
  if (!workload.context.divides() || workload.context.exchange != ContextExchange::Ring) return {};
  // Nothing comes while the last of the equal parts is computed.
  const auto parts = static_cast<double>(workload.context.degree);
  const double beside = (parts - 1) / parts;
  return {beside * time.forward.attention, beside * time.backward.attention};
}

Seconds update_time(double parameters_of_device, const DeviceConstants& device, const Framework& framework)
{
  return Bytes(parameters_of_device * framework.update) / copy_rate(device, framework);
}

Seconds gradient_time(double parameters_of_device, const DeviceConstants& device, const Framework& framework)
{
  return Bytes(parameters_of_device * framework.gradients) / copy_rate(device, framework);
}

Seconds weight_copy_time(const Workload& workload, std::size_t layer, std::size_t shards, const DeviceConstants& device,
                         const Framework& framework)
{
  if (workload.recipe == ProductRecipe::None) return {};
  const auto of_layer = transformer_layer(workload, layer, shards, framework);
  double weights = 0;
  for (const auto& linear : of_layer.linears) {
    if (!linear.is_quantized) continue;
    weights += linear.inputs * linear.outputs * linear.products / (linear.is_divided ? static_cast<double>(shards) : 1);
  }
  return copies_of(weights, workload, device, framework);
}

namespace {

double parameters_of_norm(const Workload& workload)
{
  if (const auto* sizes = std::get_if<DecoderSizes>(&workload.model)) {
    return static_cast<double>(parameters_of(sizes->norm));
  }
  return std::holds_alternative<LlamaSizes>(workload.model) ? 1 : 2;
}

bool is_gated(const Workload& workload)
{
  if (const auto* sizes = std::get_if<DecoderSizes>(&workload.model)) return sizes->is_gated;
  return std::holds_alternative<LlamaSizes>(workload.model);
}

}  // namespace

BytesPerElement least_bytes(BoundOperator which, const Workload& workload)
{
  const bool drops = workload.training.dropout > 0;
  switch (which) {
    case BoundOperator::Norm:
      return norm_cost.bytes;
    case BoundOperator::Activation:
      return is_gated(workload) ? gated_cost.bytes : activation_cost.bytes;
    case BoundOperator::Residual:
      return drops ? dropout_residual_cost.bytes : residual_cost.bytes;
    case BoundOperator::Softmax:
      if (!drops) return masked_softmax;
      return {masked_softmax.forward + score_dropout.forward, masked_softmax.backward + score_dropout.backward};
    case BoundOperator::Copy:
      break;
  }
  return rotation_cost.bytes;
}

Bytes bytes_of_matrix(double parameters, ProductLayout layout, DType dtype)
{
  constexpr double float32 = 4;
  return Bytes(parameters * (layout == ProductLayout::NT ? float32 : size_of(dtype)));
}

std::uint64_t padded_vocabulary(std::uint64_t vocabulary, std::size_t shards)
{
  const std::uint64_t step = 128 * shards;
  return (vocabulary + step - 1) / step * step;
}

double parameters_of_shard(const Workload& workload, std::size_t layer, std::size_t shards, const Framework& framework)
{
  const auto of_layer = transformer_layer(workload, layer, shards, framework);
  const auto t = static_cast<double>(shards);
  if (const auto* decoder = std::get_if<DecoderSizes>(&workload.model)) {
    const Layer& own = workload.layers[layer];
    auto divided = static_cast<double>(own.split ? own.split->parameters : 0);
    const double table = std::max(of_layer.divided_table, of_layer.vocabulary * of_layer.hidden);
    double padding = 0;
    if (table > 0 && !of_layer.has_tied_head) {
      padding = table - static_cast<double>(decoder->vocabulary * decoder->hidden);
      divided = table;
    }
    return static_cast<double>(own.parameters) + padding - divided * (1 - 1 / t);
  }
  double count = of_layer.looked_up - of_layer.divided_table * (1 - 1 / t);
  for (const auto& linear : of_layer.linears) {
    if (of_layer.has_tied_head && !workload.layers[layer].has_tied_copy) continue;
    count += linear.inputs * linear.outputs / t;
    if (linear.has_bias) count += linear.outputs / (linear.divides_inputs ? 1 : t);
  }
  return count + parameters_of_norm(workload) * of_layer.norms * of_layer.hidden;
}

}  // namespace isobar::compute
