#include "core/errors.hpp"
#include "exec/model/layers/model_layer.hpp"
#include "exec/model/recomputed_tensors.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>

/// Llama 3's decoder: Grattafiori et al. 2024 (arXiv 2407.21783), section 3.2.
namespace isobar::exec {

namespace {

/// Rotary positions (Su et al. 2021, arXiv 2104.09864, section 3.2.2): rotates elements i and i + width/2 of a head by
/// position · base^(-2i/width). In float32, since bf16 cannot distinguish distant positions.
class Rotation {
 public:
  Rotation(double base, std::int64_t length, std::int64_t width, const at::TensorOptions& like)
  {
    const auto options = like.dtype(at::kFloat);
    const auto speeds = at::pow(base, at::arange(0, width, 2, options) * (-1.0 / static_cast<double>(width)));
    const auto angles = at::outer(at::arange(length, options), speeds);
    cosine_ = angles.cos();
    sine_ = angles.sin();
  }

  at::Tensor apply(const at::Tensor& heads) const
  {
    const auto halves = heads.to(at::kFloat).chunk(2, -1);
    const auto rotated =
        at::cat({halves[0] * cosine_ - halves[1] * sine_, halves[1] * cosine_ + halves[0] * sine_}, -1);
    return rotated.to(heads.scalar_type());
  }

 private:
  at::Tensor cosine_, sine_;
};

/// A layer with root mean square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467).
class LlamaLayer : public ModelLayer {
 protected:
  LlamaLayer(const LayerSetup& setup, const LlamaSizes& sizes) : ModelLayer(setup), norm_epsilon_(sizes.norm_epsilon) {}

  at::Tensor normalise(std::size_t weight, const at::Tensor& input) const
  {
    const auto rms_norm = [this, weight](const at::Tensor& whole) {
      return in_dtype(at::rms_norm(whole.to(at::kFloat), whole.sizes().back(), parameter(weight), norm_epsilon_));
    };
    return RecomputedTensors::result_of(rms_norm, input);
  }

 private:
  double norm_epsilon_;
};

class LlamaEmbedding final : public ModelLayer {
 public:
  LlamaEmbedding(const LayerSetup& setup, const LlamaSizes& sizes)
      : ModelLayer(setup), words_(add_normal("words", {sizes.vocabulary, sizes.hidden}, usual_deviation, by_rows))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    return {in_dtype(look_up(words_, inputs.at(0)))};
  }

 private:
  std::size_t words_;
};

class LlamaAttention final : public LlamaLayer {
 public:
  LlamaAttention(const LayerSetup& setup, const LlamaSizes& sizes)
      : LlamaLayer(setup, sizes),
        rope_theta_(sizes.rope_theta),
        heads_(own_of(sizes.heads)),
        kv_heads_(own_of(sizes.kv_heads)),
        attention_(sizes.attention),
        norm_(add_constant("attention_norm", {sizes.hidden}, 1)),
        query_(add_linear_without_bias("query", sizes.hidden, sizes.hidden, by_rows)),
        key_(add_linear_without_bias("key", sizes.hidden, sizes.hidden / sizes.heads * sizes.kv_heads, by_rows)),
        value_(add_linear_without_bias("value", sizes.hidden, sizes.hidden / sizes.heads * sizes.kv_heads, by_rows)),
        output_(add_linear_without_bias("output", sizes.hidden, sizes.hidden, by_columns))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& hidden = inputs.at(0);
    const auto normalised = normalise(norm_, hidden);
    const auto query = split_heads(apply(query_, normalised), heads_);
    const auto keys = split_heads(apply(key_, normalised), kv_heads_);
    const auto values = split_heads(apply(value_, normalised), kv_heads_);
    const Rotation rotation(rope_theta_, query.size(2), query.size(3), query.options());
    const auto rotated = rotation.apply(query);
    const auto rotated_keys = rotation.apply(keys);
    const auto attended = attention_ == Attention::Fused
                              ? attend_fused_causally(rotated, rotated_keys, values)
                              : attend(rotated, for_each_head(rotated_keys, heads_), for_each_head(values, heads_),
                                       causal_mask(rotated), key);
    return {in_dtype(add_residual(hidden, apply(output_, join_heads(attended))))};
  }

 private:
  double rope_theta_;
  std::uint64_t heads_, kv_heads_;
  Attention attention_;
  std::size_t norm_;
  Linear query_, key_, value_, output_;
};

class LlamaFeedForward final : public LlamaLayer {
 public:
  LlamaFeedForward(const LayerSetup& setup, const LlamaSizes& sizes)
      : LlamaLayer(setup, sizes),
        norm_(add_constant("feed_forward_norm", {sizes.hidden}, 1)),
        gate_(add_linear_without_bias("gate", sizes.hidden, sizes.intermediate, by_rows)),
        up_(add_linear_without_bias("up", sizes.hidden, sizes.intermediate, by_rows)),
        down_(add_linear_without_bias("down", sizes.intermediate, sizes.hidden, by_columns))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    const auto& hidden = inputs.at(0);
    const auto normalised = normalise(norm_, hidden);
    const auto gated = at::silu(apply(gate_, normalised)) * apply(up_, normalised);
    return {in_dtype(add_residual(hidden, apply(down_, gated)))};
  }

 private:
  std::size_t norm_;
  Linear gate_, up_, down_;
};

class LlamaHead final : public LlamaLayer {
 public:
  LlamaHead(const LayerSetup& setup, const LlamaSizes& sizes)
      : LlamaLayer(setup, sizes),
        norm_(add_constant("norm", {sizes.hidden}, 1)),
        words_(add_linear_without_bias("words", sizes.hidden, sizes.vocabulary, by_rows))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    return {in_dtype(apply(words_, normalise(norm_, inputs.at(0))))};
  }

 private:
  std::size_t norm_;
  Linear words_;
};

struct Llama {
  using Embedding = LlamaEmbedding;
  using AttentionLayer = LlamaAttention;
  using FeedForward = LlamaFeedForward;
  using Head = LlamaHead;
  static constexpr std::size_t parameters_of_attention = 5;
};

}  // namespace

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const LlamaSizes& sizes)
{
  const auto width = sizes.hidden / sizes.heads;
  if (width % 2 != 0) {
    throw InputError(
        fmt::format("workload {}", shown(setup.workload.name)),
        fmt::format("hidden {} over heads {} makes heads {} wide; rotary positions rotate pairs, so the width of a "
                    "head must be even",
                    sizes.hidden, sizes.heads, width));
  }
  return make_decoder_layer<Llama>(setup, sizes);
}

}  // namespace isobar::exec
