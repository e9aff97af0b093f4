#include "exec/spmd/operators.hpp"

#include "core/errors.hpp"
#include "exec/spmd/dropout.hpp"
#include "exec/spmd/gating.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <utility>

namespace isobar::exec {

namespace {

using Kind = spmd::OperatorKind;

/// Indices of a dimension of a slice in the whole tensor.
at::Tensor indices(const TensorBlock& slice, std::size_t dimension, const at::TensorOptions& options)
{
  return at::arange(slice.begin[dimension], slice.begin[dimension] + slice.size[dimension], options);
}

/// Adds minus infinity to the scores of later tokens.
at::Tensor masked(const at::Tensor& scores, const TensorBlock& slice)
{
  constexpr double never = -std::numeric_limits<double>::infinity();
  const auto options = scores.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor queries = at::arange(scores.size(2), options) + slice.begin[2];
  const at::Tensor keys = at::arange(scores.size(3), options) + slice.begin[3];
  return scores.masked_fill(keys > queries.unsqueeze(-1), never);
}

/// Sinusoids: Vaswani et al., Attention Is All You Need, 2017, section 3.5; the sine and the cosine of each wavelength
/// next to each other.
at::Tensor positions(const TensorBlock& slice, std::uint64_t width, const std::string& device)
{
  constexpr double longest = 10'000;
  const auto options = at::TensorOptions(at::Device(device)).dtype(at::kDouble);
  const at::Tensor columns = indices(slice, 2, options);
  const at::Tensor is_odd = columns.remainder(2);
  const at::Tensor rates = ((is_odd - columns) / static_cast<double>(width) * std::log(longest)).exp();
  const at::Tensor angles = indices(slice, 1, options).unsqueeze(-1) * rates;
  return at::where(is_odd > 0, angles.cos(), angles.sin()).expand(slice.size);
}

/// The weights of q, k and v are those of one product.
at::Tensor project(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias)
{
  return at::linear(input, weight.flatten(0, 1), bias.flatten()).unflatten(-1, {weight.size(0), weight.size(1)});
}

/// The product of each patch of the images with the kernels, whose stride is their size.
at::Tensor convolve(const at::Tensor& images, const at::Tensor& kernels, const at::Tensor& bias)
{
  const std::int64_t patch = kernels.size(2);
  const std::int64_t down = images.size(2) / patch;
  const std::int64_t across = images.size(3) / patch;
  const at::Tensor patches = images.unflatten(3, {across, patch}).unflatten(2, {down, patch});
  const at::Tensor rows = patches.permute({0, 2, 4, 1, 3, 5}).flatten(3);  // [samples, down, across, channels · patch²]
  return at::linear(rows, kernels.flatten(1), bias).permute({0, 3, 1, 2});
}

/// Three tensors [samples, heads, sequence, width] of [samples, sequence, 3, heads · width].
Tensors split_heads(const at::Tensor& projected, std::uint64_t of_head)
{
  const auto width = static_cast<std::int64_t>(of_head);
  return projected.unflatten(3, {projected.size(3) / width, width}).permute({2, 0, 3, 1, 4}).unbind(0);
}

/// The class token before the patches of each sample.
at::Tensor prepend(const at::Tensor& patches, const at::Tensor& token)
{
  return at::cat({token.expand({patches.size(0), 1, patches.size(2)}), patches}, 1);
}

at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias)
{
  constexpr double epsilon = 1e-5;  // torch's
  return at::layer_norm(input, input.size(-1), weight, bias, epsilon);
}

}  // namespace

Tensors compute(const spmd::OperatorGraph& graph, const spmd::Operator& node, const Tensors& inputs,
                const TensorBlock& output, const OperatorSettings& settings)
{
  const auto x = [&inputs](std::size_t i) -> const at::Tensor& { return inputs.at(i); };
  // Of a whole tensor: a constant of the model, not the size of what is computed here.
  const auto side = [&graph](std::size_t tensor, std::size_t dimension) {
    return graph.tensors.at(tensor).shape.at(dimension);
  };
  switch (node.kind) {
    case Kind::Data:
    case Kind::Parameter:
      ensure(false, "data and parameters are given, not computed");
      return {};
    case Kind::Positions:
      return {positions(output, side(node.outputs[0], 2), settings.device)};
    case Kind::Transpose:
      return {x(0).transpose(1, 2)};
    case Kind::Flatten:
      return {x(0).flatten(2)};
    case Kind::SplitHeads:
      return split_heads(x(0), side(node.outputs[0], 3));
    case Kind::MergeHeads:
      return {x(0).transpose(1, 2).flatten(2)};
    case Kind::PrependClass:
      return {prepend(x(0), x(1))};
    case Kind::TakeClass:
      return {x(0).select(1, 0)};
    case Kind::Scale:
      return {x(0) * std::sqrt(static_cast<double>(side(node.outputs[0], 2)))};
    case Kind::Mask:
      return {masked(x(0), output)};
    case Kind::Relu:
      return {at::relu(x(0))};
    case Kind::Dropout: {
      if (settings.dropout == 0) return {x(0)};
      std::vector<std::int64_t> begin = output.begin;
      begin[0] += static_cast<std::int64_t>(settings.first_sample);
      const std::uint64_t key = dropout_key(settings.seed, settings.step, node.name);
      return {dropped_out(x(0), begin, key, settings.dropout)};
    }
    case Kind::Add:
      return {x(0) + x(1)};
    case Kind::Softmax:
      // With an explicit dtype autocast keeps it.
      return {at::softmax(x(0), -1, x(0).scalar_type())};
    case Kind::LogSoftmax:
      return {at::log_softmax(x(0), -1)};
    case Kind::LayerNorm:
      return {normalise(x(0), x(1), x(2))};
    case Kind::Linear:
      return {at::linear(x(0), x(1), x(2))};
    case Kind::QkvLinear:
      return {project(x(0), x(1), x(2))};
    case Kind::Scores:
      return {at::matmul(x(0) * (1 / std::sqrt(static_cast<double>(side(node.inputs[0], 3)))), x(1).transpose(-2, -1))};
    case Kind::Context:
      return {at::matmul(x(0), x(1))};
    case Kind::Dispatch:
    case Kind::Expert:
    case Kind::Combine:
      return {at::einsum(node.dimensions, {x(0), x(1)})};
    case Kind::Convolution:
      return {convolve(x(0), x(1), x(2))};
    case Kind::Embedding:
      return {at::embedding(x(1), x(0))};
    case Kind::Gating:
      return gating(x(0), x(1), static_cast<std::int64_t>(side(node.outputs[0], 3)), settings.top_k);
    case Kind::NllSum:
      return {-x(0).gather(1, x(1).unsqueeze(1)).sum()};
    case Kind::Sum:
      return {x(0).sum()};
    case Kind::Output:
      return {};
    case Kind::CausalMask:
    case Kind::Attention:
      break;
  }
  throw InputError("operator " + node.name,
                   "belongs to the published graph, which is only searched; leave parity: true out to compute it");
}

}  // namespace isobar::exec
