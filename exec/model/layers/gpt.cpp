#include "exec/model/layers/model_layer.hpp"

#include <ATen/ATen.h>

/// GPT-2's decoder: Radford et al. 2019, section 2.3.
namespace isobar::exec {

namespace {

constexpr double gpt_epsilon = 1e-5;  // as published with the model

class GptEmbedding final : public ModelLayer {
 public:
  GptEmbedding(const LayerSetup& setup, const GptSizes& sizes)
      : ModelLayer(setup),
        words_(add_normal("words", {sizes.vocabulary, sizes.hidden}, usual_deviation, by_rows)),
        positions_(add_normal("positions", {sizes.positions, sizes.hidden}))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& tokens = inputs.at(0);
    auto sum = look_up(words_, tokens);
    if (is_first_shard()) sum = sum + look_up(positions_, at::arange(tokens.size(1), tokens.options()));
    return {drop_out(in_dtype(sum), key, 0)};
  }

 private:
  std::size_t words_, positions_;
};

class GptAttention final : public ModelLayer {
 public:
  GptAttention(const LayerSetup& setup, const GptSizes& sizes)
      : ModelLayer(setup),
        heads_(own_of(sizes.heads)),
        attention_(sizes.attention),
        norm_(add_layer_norm("attention_norm", sizes.hidden, gpt_epsilon)),
        query_key_value_(add_linear("query_key_value", sizes.hidden, 3 * sizes.hidden, {Cut::Kind::Rows, 3})),
        output_(add_linear("output", sizes.hidden, sizes.hidden, by_columns))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& hidden = inputs.at(0);
    const auto parts = apply(query_key_value_, apply(norm_, hidden)).chunk(3, -1);
    const auto query = split_heads(parts[0], heads_);
    const auto keys = split_heads(parts[1], heads_);
    const auto values = split_heads(parts[2], heads_);
    const auto attended = attention_ == Attention::Fused ? attend_fused_causally(query, keys, values)
                                                         : attend(query, keys, values, causal_mask(query), key);
    return {in_dtype(add_residual(hidden, drop_out(apply(output_, join_heads(attended)), key, 1)))};
  }

 private:
  std::uint64_t heads_;
  Attention attention_;
  LayerNorm norm_;
  Linear query_key_value_, output_;
};

class GptFeedForward final : public ModelLayer {
 public:
  GptFeedForward(const LayerSetup& setup, const GptSizes& sizes)
      : ModelLayer(setup),
        norm_(add_layer_norm("feed_forward_norm", sizes.hidden, gpt_epsilon)),
        up_(add_linear("up", sizes.hidden, sizes.intermediate, by_rows)),
        down_(add_linear("down", sizes.intermediate, sizes.hidden, by_columns))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& hidden = inputs.at(0);
    const auto intermediate = at::gelu(apply(up_, apply(norm_, hidden)), "tanh");
    return {in_dtype(add_residual(hidden, drop_out(apply(down_, intermediate), key, 2)))};
  }

 private:
  LayerNorm norm_;
  Linear up_, down_;
};

class GptHead final : public ModelLayer {
 public:
  GptHead(const LayerSetup& setup, const GptSizes& sizes)
      : ModelLayer(setup), norm_(add_layer_norm("norm", sizes.hidden, gpt_epsilon))
  {
    if (sizes.tied) {
      words_of_embedding_ = setup.tied != nullptr ? setup.tied->parameters().front() : embedding_words(setup, sizes);
    } else {
      words_ = add_linear_without_bias("words", sizes.hidden, sizes.vocabulary, by_rows);
    }
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    const auto hidden = apply(norm_, inputs.at(0));
    // A tied product is never deferred, so that its gradient and the embedding's are added up in the same order.
    return {in_dtype(words_ ? apply(*words_, hidden) : at::linear(hidden, words_of_embedding_))};
  }

 private:
  static at::Tensor embedding_words(LayerSetup setup, const GptSizes& sizes)
  {
    setup.layer = 0;
    return GptEmbedding(setup, sizes).parameters().front();
  }

  LayerNorm norm_;
  std::optional<Linear> words_;    // none if it is tied
  at::Tensor words_of_embedding_;  // then
};

struct Gpt {
  using Embedding = GptEmbedding;
  using AttentionLayer = GptAttention;
  using FeedForward = GptFeedForward;
  using Head = GptHead;
  static constexpr std::size_t parameters_of_attention = 6;
};

}  // namespace

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const GptSizes& sizes)
{
  return make_decoder_layer<Gpt>(setup, sizes);
}

}  // namespace isobar::exec
