#include "exec/model/layers/decoder_layer.hpp"

#include "exec/model/recomputed_tensors.hpp"

#include <ATen/ATen.h>

#include <utility>

namespace isobar::exec {

DecoderLayerModule::DecoderLayerModule(const LayerSetup& setup, const DecoderSizes& sizes)
    : ModelLayer(setup),
      norm_(sizes.norm),
      norm_epsilon_(sizes.norm_epsilon),
      is_zero_centered_(sizes.has_zero_centered_gamma)
{
}

DecoderLayerModule::NormParameters DecoderLayerModule::add_norm(const std::string& name, std::uint64_t width)
{
  switch (norm_) {
    case Norm::Rms:
      return {add_rms_norm(name, width)};
    case Norm::Layer: {
      const LayerNorm norm = add_layer_norm(name, width, norm_epsilon_);
      return {norm.weight, norm.bias};
    }
    case Norm::LayerWithoutBias:
      return {add_constant(name + ".weight", {width}, 1)};
    default:
      return {};
  }
}

std::size_t DecoderLayerModule::add_rms_norm(const std::string& name, std::uint64_t width, Cut cut)
{
  return add_constant(name, {width}, is_zero_centered_ ? 0 : 1, cut);
}

at::Tensor DecoderLayerModule::factors(std::size_t weight) const
{
  return is_zero_centered_ ? parameter(weight) + 1 : parameter(weight);
}

at::Tensor DecoderLayerModule::normalise(const NormParameters& norm, const at::Tensor& input) const
{
  if (norm_ == Norm::Rms) return normalise_rms(norm.weight.value(), input);
  const auto layer_norm = [this, norm](const at::Tensor& whole) {
    const auto weight = norm.weight ? parameter(*norm.weight) : at::Tensor();
    const auto bias = norm.bias ? parameter(*norm.bias) : at::Tensor();
    return in_dtype(at::layer_norm(whole.to(at::kFloat), whole.sizes().back(), weight, bias, norm_epsilon_));
  };
  return RecomputedTensors::result_of(layer_norm, input);
}

at::Tensor DecoderLayerModule::normalise_rms(std::size_t weight, const at::Tensor& input) const
{
  const auto rms_norm = [this, weight](const at::Tensor& whole) {
    return in_dtype(at::rms_norm(whole.to(at::kFloat), whole.sizes().back(), factors(weight), norm_epsilon_));
  };
  return RecomputedTensors::result_of(rms_norm, input);
}

Sublayer::Sublayer(const LayerSetup& setup, const DecoderSizes& sizes, std::string name)
    : DecoderLayerModule(setup, sizes), name_(std::move(name)), hidden_(sizes.hidden), place_(sizes.norm_place)
{
}

void Sublayer::add_input_norm()
{
  if (place_ != NormPlace::After) input_norm_ = add_norm(name_ + "_norm", hidden_);
}

void Sublayer::add_output_norm()
{
  const bool has_norm = place_ == NormPlace::After || place_ == NormPlace::Both;
  if (has_norm) output_norm_ = add_norm(name_ + "_output_norm", hidden_);
}

Tensors Sublayer::forward(const Tensors& inputs, const RandomKey& key)
{
  const auto& residual = inputs.at(0);
  return {in_dtype(add_residual(residual, addend(input_of(residual), key)))};
}

at::Tensor Sublayer::input_of(const at::Tensor& residual) const
{
  return input_norm_ ? normalise(*input_norm_, residual) : residual;
}

at::Tensor Sublayer::addend(const at::Tensor& input, const RandomKey& key) const
{
  const auto output = compute(input, key);
  return output_norm_ ? normalise(*output_norm_, output) : output;
}

at::Tensor Sublayer::output_of(const at::Tensor& residual, const at::Tensor& computed) const
{
  return in_dtype(add_residual(residual, output_norm_ ? normalise(*output_norm_, computed) : computed));
}

}  // namespace isobar::exec
