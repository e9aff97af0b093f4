#include "core/errors.hpp"
#include "exec/model/divided_attention.hpp"
#include "exec/model/layers/decoder_layer.hpp"
#include "exec/model/layers/rotation.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

namespace isobar::exec {

namespace {

/// Whether one product computes queries, keys and values, as GPT-2's does.
bool has_joint_product(const DecoderSizes& sizes, const DecoderBlock& block)
{
  return !block.rotates && sizes.biases.qkv && sizes.kv_heads == sizes.heads && sizes.head_norm == HeadNorm::None &&
         !sizes.has_output_gate;
}

std::int64_t in_torch(std::uint64_t count)
{
  return static_cast<std::int64_t>(count);
}

/// Which tokens a token sees.
struct Reach {
  explicit Reach(const DecoderSizes& sizes, Mixer mixer)
      : window(mixer == Mixer::Window ? in_torch(sizes.window) : 0),
        chunk(mixer == Mixer::Chunk ? in_torch(sizes.chunk) : 0)
  {
  }

  /// Whether a token sees all tokens up to the own one.
  bool is_whole(std::int64_t length) const
  {
    return (window == 0 || window >= length) && (chunk == 0 || chunk >= length);
  }

  /// [sequence, sequence], added to the scores.
  at::Tensor mask(const at::Tensor& query) const
  {
    const auto causal = causal_mask(query);
    const std::int64_t length = query.size(2);
    if (is_whole(length)) return causal;
    const auto places = at::arange(length, query.options().dtype(at::kLong));
    const auto rows = places.unsqueeze(1);
    const auto is_far =
        window > 0 ? rows - places >= window : at::div(rows, chunk, "floor") != at::div(places, chunk, "floor");
    return causal.masked_fill(is_far, -std::numeric_limits<double>::infinity());
  }

  std::int64_t window;
  std::int64_t chunk;
};

/// The attention of a decoder between its first and its last product.
class AttentionCore {
 public:
  AttentionCore(const DecoderSizes& sizes, const DecoderBlock& block)
      : reach_(sizes, block.mixer), is_fused_(sizes.attention == Attention::Fused), cap_(sizes.score_cap)
  {
    if (sizes.query_scale > 0 && block.mixer != Mixer::Latent) scale_ = 1 / std::sqrt(sizes.query_scale);
    if (!block.rotates) return;
    base_ = block.mixer == Mixer::Window ? sizes.window_rope_theta : sizes.rope_theta;
    scaling_ = sizes.rope_scaling;
    const bool is_latent = block.mixer == Mixer::Latent;
    rotated_ = in_torch(is_latent ? sizes.latent.rope : sizes.rotated > 0 ? sizes.rotated : sizes.head_width);
  }

  bool is_fused() const { return is_fused_; }
  const Reach& reach() const { return reach_; }
  const std::optional<double>& scale() const { return scale_; }
  double cap() const { return cap_; }

  /// `positions`: of the tokens.
  std::optional<Rotation> rotation(const at::Tensor& query, const at::Tensor& positions) const
  {
    if (rotated_ == 0) return std::nullopt;
    return Rotation(base_, scaling_, positions, rotated_, query);
  }

  /// `width`: of queries and keys.
  BlockRules rules(std::int64_t width, double dropout) const
  {
    const double scale = scale_.value_or(1 / std::sqrt(static_cast<double>(width)));
    return {scale, cap_, reach_.window, reach_.chunk, is_fused_, dropout};
  }

  /// By a fused kernel. Pads the narrower ones of keys and values, since such kernels have one width.
  at::Tensor attend_fused(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values) const
  {
    const std::int64_t width = std::max(query.size(-1), values.size(-1));
    if (query.size(-1) == values.size(-1)) return attend(query, keys, values, scale_);
    const auto padded = [width](const at::Tensor& heads) {
      return at::constant_pad_nd(heads, {0, width - heads.size(-1)});
    };
    const double scale = scale_.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
    return attend(padded(query), padded(keys), padded(values), scale).narrow(-1, 0, values.size(-1));
  }

 private:
  at::Tensor attend(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                    const std::optional<double>& scale) const
  {
    if (reach_.is_whole(query.size(2))) return attend_fused_causally(query, keys, values, scale);
    const bool has_mask = mask_.defined() && mask_.size(0) == query.size(2) && mask_.dtype() == query.dtype() &&
                          mask_.device() == query.device();
    if (!has_mask) mask_ = reach_.mask(query);
    return exec::attend_fused(query, keys, values, mask_, scale);
  }

  Reach reach_;
  bool is_fused_;
  double cap_;
  std::optional<double> scale_;
  double base_ = 1;
  RopeScaling scaling_;
  std::int64_t rotated_ = 0;
  mutable at::Tensor mask_;  // the same for all micro-batches
};

/// What attention with heads of one width and latent attention have in common.
class AnyAttention : public Sublayer, public DividedAttention {
 public:
  const DividedAttention* attention() const final { return this; }

  ProjectedTokens project(const at::Tensor& residual) const final { return projected(input_of(residual)); }
  BlockRules rules() const final { return core_.rules(width_, dropout()); }
  at::Tensor attend(const ProjectedTokens& tokens, const UnitRange& heads, const RandomKey& key) const final
  {
    return attended(tokens, heads, key);
  }
  at::Tensor kept(const at::Tensor& query, const RandomKey& key) const final
  {
    const std::int64_t length = sequence_part().whole_length(query.size(2));
    return kept_of_heads({query.size(0), query.size(1), length, length}, {}, key, 0);
  }
  at::Tensor finish(const at::Tensor& heads, const at::Tensor& gate, const at::Tensor& residual,
                    const RandomKey& key) const final
  {
    return output_of(residual, output(heads, gate, key));
  }

 protected:
  /// `width`: of the queries of a head.
  AnyAttention(const LayerSetup& setup, const DecoderSizes& sizes, const DecoderBlock& block, std::uint64_t width)
      : Sublayer(setup, sizes, "attention"), core_(sizes, block), width_(in_torch(width))
  {
    add_input_norm();
  }

  const AttentionCore& core() const { return core_; }
  std::optional<Rotation> rotation(const at::Tensor& query) const
  {
    return core_.rotation(query, positions(query.size(2), query));
  }

  virtual ProjectedTokens projected(const at::Tensor& input) const = 0;
  /// The addend, of what all heads give.
  virtual at::Tensor output(const at::Tensor& heads, const at::Tensor& gate, const RandomKey& key) const = 0;

  at::Tensor compute(const at::Tensor& input, const RandomKey& key) const final
  {
    const ProjectedTokens tokens = projected(input);
    return output(attended(tokens, {}, key), tokens.tensors[ProjectedTokens::Gate], key);
  }

 private:
  /// [samples, heads, tokens, width], by `own` of the heads.
  at::Tensor attended(const ProjectedTokens& tokens, const UnitRange& own, const RandomKey& key) const
  {
    const at::Tensor& query = tokens.tensors[ProjectedTokens::Query];
    const at::Tensor& keys = tokens.tensors[ProjectedTokens::Keys];
    const at::Tensor& values = tokens.tensors[ProjectedTokens::Values];
    if (core_.is_fused()) return core_.attend_fused(query, keys, values);
    at::Tensor of_heads = sinks();
    if (of_heads.defined()) of_heads = of_heads.chunk(in_torch(own.all))[own.begin];
    const ScoreRules rules = {core_.scale(), core_.cap(), of_heads.defined() ? &of_heads : nullptr, own};
    const auto mask = core_.reach().mask(query);
    if (keys.size(1) == query.size(1)) return ModelLayer::attend(query, keys, values, mask, key, rules);
    const auto heads = static_cast<std::uint64_t>(query.size(1));
    return ModelLayer::attend(query, for_each_head(keys, heads), for_each_head(values, heads), mask, key, rules);
  }

  AttentionCore core_;
  std::int64_t width_;
};

/// Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245).
class DecoderAttention final : public AnyAttention {
 public:
  DecoderAttention(const LayerSetup& setup, const DecoderSizes& sizes, const DecoderBlock& block)
      : AnyAttention(setup, sizes, block, sizes.head_width),
        heads_(own_of(sizes.heads)),
        kv_heads_(own_of(sizes.kv_heads)),
        width_(sizes.head_width),
        head_norm_(sizes.head_norm),
        is_rms_(sizes.norm == Norm::Rms),
        has_gate_(sizes.has_output_gate)
  {
    const std::uint64_t queries = sizes.heads * sizes.head_width;
    const std::uint64_t keys = sizes.kv_heads * sizes.head_width;
    const auto product = [&](const std::string& name, std::uint64_t to, Cut cut = by_rows) {
      return sizes.biases.qkv ? add_linear(name, sizes.hidden, to, cut)
                              : add_linear_without_bias(name, sizes.hidden, to, cut);
    };
    if (has_joint_product(sizes, block)) {
      query_key_value_ = product("query_key_value", 3 * queries, {Cut::Kind::Rows, 3});
    } else {
      query_ = product("query", (has_gate_ ? 2 : 1) * queries);
      key_ = product("key", keys);
      value_ = product("value", keys);
    }
    output_ = sizes.biases.output ? add_linear("output", queries, sizes.hidden, by_columns)
                                  : add_linear_without_bias("output", queries, sizes.hidden, by_columns);
    add_head_norms(sizes);
    if (sizes.has_sinks) sinks_ = add_normal("sinks", {sizes.heads}, usual_deviation, by_rows);
    add_output_norm();
  }

  at::Tensor sinks() const override { return sinks_ ? parameter(*sinks_) : at::Tensor(); }

 protected:
  ProjectedTokens projected(const at::Tensor& input) const override
  {
    at::Tensor query, keys, values, gate;
    if (query_key_value_) {
      const auto parts = apply(*query_key_value_, input).chunk(3, -1);
      query = split_heads(parts[0], heads_);
      keys = split_heads(parts[1], heads_);
      values = split_heads(parts[2], heads_);
    } else {
      query = split_heads(of_all_heads(apply(*query_, input), query_norm_), heads_);
      keys = split_heads(of_all_heads(apply(*key_, input), key_norm_), kv_heads_);
      values = split_heads(apply(*value_, input), kv_heads_);
    }
    if (has_gate_) {
      const auto halves = query.chunk(2, -1);
      query = halves[0];
      gate = join_heads(halves[1]);
    }
    query = of_each_head(query, query_norm_);
    keys = of_each_head(keys, key_norm_);
    if (const auto turns = rotation(query)) {
      query = turns->apply(query);
      keys = turns->apply(keys);
    }
    return {{query, keys, values, gate}};
  }

  at::Tensor output(const at::Tensor& heads, const at::Tensor& gate, const RandomKey& key) const override
  {
    const auto context = has_gate_ ? join_heads(heads) * at::sigmoid(gate) : join_heads(heads);
    return drop_out(apply(*output_, context), key, 1);
  }

 private:
  void add_head_norms(const DecoderSizes& sizes)
  {
    const std::uint64_t queries = sizes.heads * sizes.head_width;
    const std::uint64_t keys = sizes.kv_heads * sizes.head_width;
    switch (head_norm_) {
      case HeadNorm::Head:
        query_norm_ = add_rms_norm("query_norm", sizes.head_width);
        key_norm_ = add_rms_norm("key_norm", sizes.head_width);
        break;
      case HeadNorm::EachHead:
      case HeadNorm::AllHeads:
        query_norm_ = add_rms_norm("query_norm", queries, by_rows);
        key_norm_ = add_rms_norm("key_norm", keys, by_rows);
        break;
      default:
        break;
    }
  }

  /// Normalizes [samples, tokens, heads · width] if one norm is of all heads.
  at::Tensor of_all_heads(const at::Tensor& heads, const std::optional<std::size_t>& weight) const
  {
    return head_norm_ == HeadNorm::AllHeads ? of_width(heads, factors(weight.value())) : heads;
  }

  /// Normalizes [samples, heads, tokens, width] if norms are of each head.
  at::Tensor of_each_head(const at::Tensor& heads, const std::optional<std::size_t>& weight) const
  {
    switch (head_norm_) {
      case HeadNorm::Head:
        return of_width(heads, factors(weight.value()));
      case HeadNorm::EachHead:
        return in_dtype(of_width(heads, {}) * factors(weight.value()).view({-1, 1, in_torch(width_)}));
      case HeadNorm::Unweighted:
        return of_width(heads, {});
      default:
        return heads;
    }
  }

  /// Normalizes the last dimension in float32, by the decoder's kind of norm without a bias.
  at::Tensor of_width(const at::Tensor& input, const at::Tensor& weight) const
  {
    const auto whole = input.to(at::kFloat);
    const auto width = whole.sizes().back();
    const std::optional<at::Tensor> weights = weight.defined() ? std::optional(weight) : std::nullopt;
    return in_dtype(is_rms_ ? at::rms_norm(whole, width, weights, norm_epsilon())
                            : at::layer_norm(whole, width, weights, {}, norm_epsilon()));
  }

  std::uint64_t heads_, kv_heads_, width_;
  HeadNorm head_norm_;
  bool is_rms_;
  bool has_gate_;
  std::optional<Linear> query_key_value_;
  std::optional<Linear> query_, key_, value_;  // if there is no joint product
  std::optional<Linear> output_;
  std::optional<std::size_t> query_norm_, key_norm_;
  std::optional<std::size_t> sinks_;
};

/// Multi-head latent attention: DeepSeek-V2, arXiv 2405.04434, section 2.1.
class LatentAttention final : public AnyAttention {
 public:
  LatentAttention(const LayerSetup& setup, const DecoderSizes& sizes, const DecoderBlock& block)
      : AnyAttention(setup, sizes, block, sizes.latent.nope + sizes.latent.rope),
        heads_(own_of(sizes.heads)),
        sizes_(sizes.latent)
  {
    const auto& [kv_rank, nope, rope, value] = sizes.latent;
    const std::uint64_t q_rank = sizes.q_rank;
    const std::uint64_t queries = sizes.heads * (nope + rope);
    const auto compressing = [&](const std::string& name, std::uint64_t to) {
      return sizes.biases.qkv ? add_linear(name, sizes.hidden, to) : add_linear_without_bias(name, sizes.hidden, to);
    };
    if (q_rank > 0) {
      query_down_ = compressing("query_down", q_rank);
      query_norm_ = add_rms_norm("query_norm", q_rank);
    }
    query_ = add_linear_without_bias(q_rank > 0 ? "query_up" : "query", q_rank > 0 ? q_rank : sizes.hidden, queries,
                                     by_rows);
    key_value_down_ = compressing("key_value_down", kv_rank + rope);
    key_value_norm_ = add_rms_norm("key_value_norm", kv_rank);
    key_value_ = add_linear_without_bias("key_value_up", kv_rank, sizes.heads * (nope + value), by_rows);
    output_ = sizes.biases.output ? add_linear("output", sizes.heads * value, sizes.hidden, by_columns)
                                  : add_linear_without_bias("output", sizes.heads * value, sizes.hidden, by_columns);
    add_output_norm();
  }

  at::Tensor sinks() const override { return {}; }

 protected:
  ProjectedTokens projected(const at::Tensor& input) const override
  {
    const std::int64_t nope = in_torch(sizes_.nope);
    const std::int64_t rope = in_torch(sizes_.rope);
    const auto of_queries = query_down_ ? normalise_rms(*query_norm_, apply(*query_down_, input)) : input;
    auto query = split_heads(apply(*query_, of_queries), heads_);
    const auto compressed = apply(*key_value_down_, input).split_with_sizes({in_torch(sizes_.kv_rank), rope}, -1);
    const auto expanded = split_heads(apply(*key_value_, normalise_rms(key_value_norm_, compressed[0])), heads_)
                              .split_with_sizes({nope, in_torch(sizes_.value)}, -1);
    auto shared = compressed[1].unsqueeze(1);  // of the keys of all heads
    if (const auto turns = rotation(query)) {
      const auto parts = query.split_with_sizes({nope, rope}, -1);
      query = at::cat({parts[0], turns->apply(parts[1])}, -1);
      shared = turns->apply(shared);
    }
    const auto keys = at::cat({expanded[0], shared.expand({-1, in_torch(heads_), -1, -1})}, -1);
    return {{query, keys, expanded[1], at::Tensor()}};
  }

  at::Tensor output(const at::Tensor& heads, const at::Tensor& /*gate*/, const RandomKey& /*key*/) const override
  {
    return apply(*output_, join_heads(heads));
  }

 private:
  std::uint64_t heads_;
  LatentSizes sizes_;
  std::optional<Linear> query_down_;
  std::optional<std::size_t> query_norm_;
  std::optional<Linear> query_, key_value_down_, key_value_, output_;
  std::size_t key_value_norm_ = 0;
};

std::size_t tensors_of(Norm norm)
{
  return norm == Norm::LayerWithoutWeights ? 0 : norm == Norm::Layer ? 2 : 1;
}

}  // namespace

std::unique_ptr<Sublayer> make_mixer(const LayerSetup& setup, const DecoderSizes& sizes, const DecoderBlock& block)
{
  switch (block.mixer) {
    case Mixer::None:
      return nullptr;
    case Mixer::Full:
    case Mixer::Window:
    case Mixer::Chunk:
      return std::make_unique<DecoderAttention>(setup, sizes, block);
    case Mixer::Latent:
      return std::make_unique<LatentAttention>(setup, sizes, block);
    default:
      ensure(false, "a mixer that has a module");
      return nullptr;
  }
}

std::size_t parameters_of_mixer(const DecoderSizes& sizes, const DecoderBlock& block)
{
  if (block.mixer == Mixer::None) return 0;
  const std::size_t norms = (sizes.norm_place == NormPlace::Both ? 2 : 1) * tensors_of(sizes.norm);
  const std::size_t of_output = sizes.biases.output ? 2 : 1;
  const std::size_t of_product = sizes.biases.qkv ? 2 : 1;
  if (block.mixer == Mixer::Latent) {
    const std::size_t of_queries = sizes.q_rank > 0 ? of_product + 2 : 1;
    return norms + of_queries + of_product + 2 + of_output;
  }
  const std::size_t products = has_joint_product(sizes, block) ? 1 : 3;
  const bool has_head_norms = sizes.head_norm != HeadNorm::None && sizes.head_norm != HeadNorm::Unweighted;
  return norms + products * of_product + of_output + (has_head_norms ? 2 : 0) + (sizes.has_sinks ? 1 : 0);
}

}  // namespace isobar::exec
