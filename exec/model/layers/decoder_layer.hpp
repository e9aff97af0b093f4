#pragma once

#include "core/model/decoder/decoder_sizes.hpp"
#include "exec/model/layers/model_layer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

/// What the layers of decoders have in common. Internal to exec/model/layers.
namespace isobar::exec {

/// A layer with the normalizations of its decoder. Those of root mean squares: Zhang and Sennrich 2019, arXiv
/// 1910.07467.
class DecoderLayerModule : public ModelLayer {
 protected:
  DecoderLayerModule(const LayerSetup& setup, const DecoderSizes& sizes);

  /// Indices of the parameters of a normalization; those that it lacks are none.
  struct NormParameters {
    std::optional<std::size_t> weight = {};
    std::optional<std::size_t> bias = {};
  };
  /// The decoder's normalization of `width` numbers.
  NormParameters add_norm(const std::string& name, std::uint64_t width);
  /// One that divides by the root of the mean square, whatever the decoder's kind is.
  std::size_t add_rms_norm(const std::string& name, std::uint64_t width, Cut cut = {});

  /// Computes in float32, with or without autocast.
  at::Tensor normalise(const NormParameters& norm, const at::Tensor& input) const;
  at::Tensor normalise_rms(std::size_t weight, const at::Tensor& input) const;
  /// The factors of the values of an RMS normalization.
  at::Tensor factors(std::size_t weight) const;
  double norm_epsilon() const { return norm_epsilon_; }

 private:
  Norm norm_;
  double norm_epsilon_;
  bool is_zero_centered_;
};

/// Attention or feed-forward network of a block, with its normalizations. Its output is its input plus its addend.
class Sublayer : public DecoderLayerModule {
 public:
  Tensors forward(const Tensors& inputs, const RandomKey& key) final;

  /// What the sublayer computes of: the residual, normalized if the decoder normalizes inputs.
  at::Tensor input_of(const at::Tensor& residual) const;
  /// The addend, of such an input.
  at::Tensor addend(const at::Tensor& input, const RandomKey& key) const;
  /// The output of the layer, of what `compute` gives.
  at::Tensor output_of(const at::Tensor& residual, const at::Tensor& computed) const;

 protected:
  /// `name` is of the normalizations.
  Sublayer(const LayerSetup& setup, const DecoderSizes& sizes, std::string name);

  /// Adds the normalization of the inputs, if there is one; before all other parameters.
  void add_input_norm();
  /// Adds the normalization of the addend, if there is one; after all other parameters.
  void add_output_norm();

  /// [samples, tokens, hidden] to the same.
  virtual at::Tensor compute(const at::Tensor& input, const RandomKey& key) const = 0;

 private:
  std::string name_;
  std::uint64_t hidden_;
  NormPlace place_;
  std::optional<NormParameters> input_norm_;
  std::optional<NormParameters> output_norm_;
};

/// The part of a block that a DecoderBlock names. @returns null if it has none.
std::unique_ptr<Sublayer> make_mixer(const LayerSetup& setup, const DecoderSizes& sizes, const DecoderBlock& block);
std::unique_ptr<Sublayer> make_feed_forward(const LayerSetup& setup, const DecoderSizes& sizes,
                                            const DecoderBlock& block);
/// How many tensors of parameters the mixer of a block has.
std::size_t parameters_of_mixer(const DecoderSizes& sizes, const DecoderBlock& block);

}  // namespace isobar::exec
