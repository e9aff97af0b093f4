#include "exec/model/layers/model_layer.hpp"

#include "core/errors.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/model/deferred_products.hpp"
#include "exec/model/random.hpp"
#include "exec/model/recomputed_tensors.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>

namespace isobar::exec {

namespace {

std::vector<std::int64_t> in_torch(const std::vector<std::uint64_t>& shape)
{
  return {shape.begin(), shape.end()};
}

constexpr std::int64_t unfused = 0;  // at::SDPBackend::math: plain matrix products, which store the scores

at::Tensor by_fused_kernel(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                           const std::optional<at::Tensor>& mask, bool causal, std::optional<double> scale)
{
  const bool shares = keys.size(1) != query.size(1);
  if (shares && at::_fused_sdp_choice(query, keys, values, mask, 0, causal, scale, shares) == unfused) {
    const auto heads = static_cast<std::uint64_t>(query.size(1));
    return by_fused_kernel(query, for_each_head(keys, heads), for_each_head(values, heads), mask, causal, scale);
  }
  if (!shares) require_fused_kernel(query, keys, values, mask, causal, scale);
  return at::scaled_dot_product_attention(query, keys, values, mask, 0, causal, scale, shares);
}

/// The part of a whole tensor that a shard with these units has.
TensorPart part_of(TensorPart whole, const Cut& cut, const UnitRange& units)
{
  if (cut.kind == Cut::Kind::None || units.is_whole()) return whole;
  whole.period /= cut.kind == Cut::Kind::Columns ? whole.shape.front() : cut.blocks;
  whole.begin = whole.period / units.all * units.begin;
  whole.end = whole.period / units.all * units.end;
  return whole;
}

}  // namespace

JoinedLayers::JoinedLayers(const LayerModule& first, const LayerModule& second) : first_(first), second_(second)
{
  for (const auto* layer : {&first_, &second_}) {
    parameters_.insert(parameters_.end(), layer->parameters().begin(), layer->parameters().end());
    names_.insert(names_.end(), layer->parameter_names().begin(), layer->parameter_names().end());
    parts_.insert(parts_.end(), layer->parameter_parts().begin(), layer->parameter_parts().end());
  }
}

std::vector<TensorPart> JoinedLayers::parts_of(const UnitRange& units) const
{
  auto parts = first_.parts_of(units);
  for (auto& part : second_.parts_of(units)) parts.push_back(std::move(part));
  return parts;
}

at::Tensor cast(const at::Tensor& tensor, DType dtype)
{
  switch (dtype) {
    case DType::BFloat16:
      return tensor.to(at::kBFloat16);
    case DType::Float16:
      return tensor.to(at::kHalf);
    default:
      return tensor.to(at::kFloat);
  }
}

at::Tensor split_heads(const at::Tensor& tokens, std::uint64_t heads)
{
  return tokens.unflatten(-1, {static_cast<std::int64_t>(heads), -1}).transpose(1, 2);
}

at::Tensor join_heads(const at::Tensor& heads)
{
  return heads.transpose(1, 2).flatten(2);
}

at::Tensor causal_mask(const at::Tensor& query)
{
  const auto length = query.size(2);
  constexpr auto never = -std::numeric_limits<double>::infinity();
  return at::full({length, length}, never, query.options()).triu(1);
}

at::Tensor for_each_head(const at::Tensor& shared, std::uint64_t heads)
{
  return shared.repeat_interleave(static_cast<std::int64_t>(heads) / shared.size(1), 1);
}

void require_fused_kernel(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                          const std::optional<at::Tensor>& mask, bool causal, std::optional<double> scale)
{
  if (at::_fused_sdp_choice(query, keys, values, mask, 0, causal, scale, false) != unfused) return;
  throw EnvironmentError(
      "attention: fused: LibTorch has no fused kernel for these heads in this dtype on this device; "
      "write attention: unfused");
}

at::Tensor attend_fused(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                        const std::optional<at::Tensor>& mask, std::optional<double> scale)
{
  return by_fused_kernel(query, keys, values, mask, false, scale);
}

at::Tensor attend_fused_causally(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                                 std::optional<double> scale)
{
  return by_fused_kernel(query, keys, values, std::nullopt, true, scale);
}

ModelLayer::ModelLayer(const LayerSetup& setup)
    : units_(setup.units),
      expert_range_(setup.experts),
      sequence_(setup.sequence),
      layer_(setup.layer),
      first_parameter_(setup.first_parameter),
      seed_(setup.seed),
      device_(setup.device),
      dtype_(setup.workload.dtype),
      dropout_(setup.workload.training.dropout)
{
}

ModelLayer::~ModelLayer() = default;

std::size_t ModelLayer::add(const std::string& name, const at::Tensor& whole, Cut cut)
{
  at::Tensor values = whole;
  std::optional<TensorPart> of_experts;
  if (cut.is_of_experts && !expert_range_.is_whole()) {
    auto shape = whole.sizes().vec();
    const auto all = static_cast<std::uint64_t>(whole.numel());
    const std::uint64_t begin = all / expert_range_.all * expert_range_.begin;
    of_experts = TensorPart::range(begin, begin + expert_range_.part_of(all), {shape.begin(), shape.end()});
    shape.front() = static_cast<std::int64_t>(expert_range_.part_of(static_cast<std::uint64_t>(shape.front())));
    values = values_of(*of_experts, whole).view(shape).clone();
  }
  TensorPart part = part_of(TensorPart::whole({values.sizes().begin(), values.sizes().end()}), cut, units_);
  if (!part.is_whole()) {
    auto shape = part.shape;
    auto& extent = cut.kind == Cut::Kind::Columns ? shape.back() : shape.front();
    extent = units_.part_of(extent);
    values = values_of(part, values).view(in_torch(shape)).clone();
  }
  parameters_.push_back(values.to(at::Device(device_)).requires_grad_());
  names_.push_back(name);
  parts_.push_back(std::move(part));
  of_experts_.push_back(std::move(of_experts));
  cuts_.push_back(cut);
  return parameters_.size() - 1;
}

const TensorPart* ModelLayer::part_of_experts(std::size_t parameter) const
{
  const auto& part = of_experts_[parameter];
  return part ? &*part : nullptr;
}

std::vector<TensorPart> ModelLayer::parts_of(const UnitRange& units) const
{
  std::vector<TensorPart> parts;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts.push_back(part_of(TensorPart::whole(parts_[i].shape), cuts_[i], units));
  }
  return parts;
}

std::size_t ModelLayer::add_constant(const std::string& name, const std::vector<std::uint64_t>& shape, float value,
                                     Cut cut)
{
  return add(name, at::full(in_torch(shape), value, at::kFloat), cut);
}

std::size_t ModelLayer::add_normal(const std::string& name, const std::vector<std::uint64_t>& shape, double deviation,
                                   Cut cut)
{
  const auto generator =
      generator_for(RandomStream::Parameters, {seed_, layer_, first_parameter_ + parameters_.size()}, "cpu");
  return add(name, at::empty(in_torch(shape), at::kFloat).normal_(0, deviation, generator), cut);
}

std::size_t ModelLayer::add_with(FirstValues values, const std::string& name, const std::vector<std::uint64_t>& shape)
{
  return values == FirstValues::Drawn ? add_normal(name, shape)
                                      : add_constant(name, shape, values == FirstValues::Ones ? 1 : 0);
}

ModelLayer::Linear ModelLayer::add_linear(const std::string& name, std::uint64_t from, std::uint64_t to, Cut cut)
{
  Linear linear = add_linear_without_bias(name, from, to, cut);
  linear.bias = add(name + ".bias", at::zeros(in_torch({to}), at::kFloat), linear.makes_addends ? Cut() : cut);
  return linear;
}

ModelLayer::Linear ModelLayer::add_linear_without_bias(const std::string& name, std::uint64_t from, std::uint64_t to,
                                                       Cut cut)
{
  return {add_normal(name + ".weight", {to, from}, usual_deviation, cut), std::nullopt, cut.kind == Cut::Kind::Columns};
}

ModelLayer::LayerNorm ModelLayer::add_layer_norm(const std::string& name, std::uint64_t width, double epsilon)
{
  const auto weight = add_constant(name + ".weight", {width}, 1);
  return {weight, add_constant(name + ".bias", {width}, 0), epsilon};
}

void ModelLayer::keep(std::size_t index, const TensorBlock& slice)
{
  const at::NoGradGuard no_graph;
  at::Tensor& parameter = parameters_[index];
  TensorPart& part = parts_[index];
  for (std::size_t i = 0; i < slice.size.size(); ++i) {
    const auto dimension = static_cast<std::int64_t>(i);
    if (slice.size[i] == parameter.size(dimension)) continue;
    ensure(part.is_whole(), "a slice has all indices of all dimensions but one");
    const std::uint64_t of_index = TensorPart::whole({part.shape.begin() + dimension + 1, part.shape.end()}).period;
    part.period = of_index * part.shape[i];
    part.begin = of_index * static_cast<std::uint64_t>(slice.begin[i]);
    part.end = part.begin + of_index * static_cast<std::uint64_t>(slice.size[i]);
    parameter = parameter.narrow(dimension, slice.begin[i], slice.size[i]).clone().requires_grad_();
  }
}

const at::Tensor& ModelLayer::parameter(std::size_t index) const
{
  return parameters_[index];
}

at::Tensor ModelLayer::positions(std::int64_t tokens, const at::Tensor& like) const
{
  if (sequence_.is_whole()) return at::arange(tokens, like.options().dtype(at::kLong));
  return sequence_.positions(sequence_.whole_length(tokens)).to(like.device());
}

at::Tensor ModelLayer::in_dtype(const at::Tensor& tensor) const
{
  return cast(tensor, dtype_);
}

at::Tensor ModelLayer::add_residual(const at::Tensor& residual, const at::Tensor& addend) const
{
  return is_first_shard() ? residual + addend : addend;
}

at::Tensor ModelLayer::look_up(std::size_t table, const at::Tensor& indices) const
{
  const at::Tensor& rows = parameter(table);
  if (parts_[table].is_whole()) return at::embedding(rows, indices);
  const auto from_first = indices - static_cast<std::int64_t>(parts_[table].shape.front() / units_.all * units_.begin);
  const auto is_own = (from_first >= 0).logical_and(from_first < rows.size(0));
  return at::embedding(rows, from_first * is_own) * is_own.unsqueeze(-1);
}

at::Tensor ModelLayer::apply(const Linear& linear, const at::Tensor& input) const
{
  const bool adds_bias = linear.bias && (is_first_shard() || !linear.makes_addends);
  const at::Tensor bias = adds_bias ? parameter(*linear.bias) : at::Tensor();
  // Cast here, so that a deferred product keeps its input in the workload's dtype, as autocast would.
  return DeferredProducts::are_recorded() ? DeferredProducts::linear(in_dtype(input), parameter(linear.weight), bias)
                                          : at::linear(input, parameter(linear.weight), bias);
}

at::Tensor ModelLayer::apply(const LayerNorm& norm, const at::Tensor& input) const
{
  const auto normalise = [this, norm](const at::Tensor& whole) {
    return in_dtype(at::layer_norm(whole.to(at::kFloat), whole.sizes().back(), parameter(norm.weight),
                                   parameter(norm.bias), norm.epsilon));
  };
  return RecomputedTensors::result_of(normalise, input);
}

at::Tensor ModelLayer::kept(const std::vector<std::int64_t>& shape, const RandomKey& key, std::uint64_t which) const
{
  // Of whole sequences, of which a micro-batch has one part.
  const std::uint64_t microbatch = key.microbatch / sequence_.parts;
  const auto generator = generator_for(RandomStream::Dropout, {key.seed, key.step, microbatch, layer_, which}, device_);
  // A boolean mask, since it is kept until the backward pass: one byte per element, as core/model/models.hpp counts.
  const auto options = at::TensorOptions(at::Device(device_)).dtype(at::kBool);
  return at::empty(shape, options).bernoulli_(1 - dropout_, generator);
}

at::Tensor ModelLayer::drop_out(const at::Tensor& input, const RandomKey& key, std::uint64_t which) const
{
  if (!drops(key)) return input;
  const auto mask = [this, own = input.sizes().vec(), key, which] {
    if (sequence_.is_whole()) return kept(own, key, which);
    constexpr std::size_t tokens = 1;
    auto shape = own;
    shape[tokens] = sequence_.whole_length(own[tokens]);
    const auto whole = kept(shape, key, which);
    return whole.index_select(tokens, positions(own[tokens], whole));
  };
  const auto drawn = mask();
  RecomputedTensors::add(drawn, mask);
  return input * drawn * (1 / (1 - dropout_));
}

at::Tensor ModelLayer::kept_of_heads(std::vector<std::int64_t> shape, const UnitRange& heads, const RandomKey& key,
                                     std::uint64_t which) const
{
  if (!drops(key)) return {};
  constexpr std::size_t dimension = 1;
  const std::int64_t own = shape[dimension];
  const auto of_part = own / static_cast<std::int64_t>(heads.end - heads.begin);
  const auto of_shard = of_part * static_cast<std::int64_t>(heads.all);
  const auto of_unit = of_shard / static_cast<std::int64_t>(units_.end - units_.begin);
  shape[dimension] = of_unit * static_cast<std::int64_t>(units_.all);
  const auto begin =
      of_unit * static_cast<std::int64_t>(units_.begin) + of_part * static_cast<std::int64_t>(heads.begin);
  return kept(shape, key, which).narrow(dimension, begin, own).contiguous();
}

at::Tensor ModelLayer::drop_out_of_heads(const at::Tensor& input, const UnitRange& heads, const RandomKey& key,
                                         std::uint64_t which) const
{
  if (!drops(key)) return input;
  if (units_.is_whole() && heads.is_whole()) {
    const auto mask = [this, shape = input.sizes().vec(), key, which] { return kept(shape, key, which); };
    const auto drawn = mask();
    RecomputedTensors::add(drawn, mask);
    return input * drawn * (1 / (1 - dropout_));
  }
  return input * kept_of_heads(input.sizes().vec(), heads, key, which) * (1 / (1 - dropout_));
}

at::Tensor ModelLayer::attend(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                              const at::Tensor& mask, const RandomKey& key, const ScoreRules& rules) const
{
  const auto scale = rules.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  auto scores = at::matmul(query * scale, keys.transpose(-2, -1));
  if (rules.cap > 0) scores = at::tanh(scores / rules.cap) * rules.cap;
  scores = scores + mask;
  const auto tokens = scores.size(-1);
  if (rules.sinks != nullptr) {
    const auto sinks = rules.sinks->to(scores.scalar_type()).view({1, -1, 1, 1});
    scores = at::cat({scores, sinks.expand({scores.size(0), -1, scores.size(2), 1})}, -1);
  }
  // With an explicit dtype autocast keeps it, so no second copy of the probabilities is kept in float32.
  const auto probabilities = at::softmax(scores, -1, scores.scalar_type()).narrow(-1, 0, tokens);
  return at::matmul(drop_out_of_heads(probabilities, rules.heads, key, 0), values);
}

}  // namespace isobar::exec
