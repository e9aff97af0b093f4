#include "exec/model/layers/model_layer.hpp"

#include <ATen/ATen.h>

/// BERT: Devlin et al. 2018 (arXiv 1810.04805), in the units that Sky Computing places (core/model/models.hpp).
namespace isobar::exec {

namespace {

constexpr double bert_epsilon = 1e-12;  // as published with the model

class BertEmbedding final : public ModelLayer {
 public:
  BertEmbedding(const LayerSetup& setup, const BertSizes& sizes)
      : ModelLayer(setup),
        words_(add_normal("words", {sizes.vocabulary, sizes.hidden})),
        positions_(add_normal("positions", {sizes.positions, sizes.hidden})),
        segments_(add_normal("segments", {2, sizes.hidden})),
        norm_(add_layer_norm("norm", sizes.hidden, bert_epsilon))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& tokens = inputs.at(0);
    const auto& mask = inputs.at(1);
    const auto& segments = inputs.at(2);
    const auto places = at::arange(tokens.size(1), tokens.options());
    const auto sum = look_up(words_, tokens) + look_up(positions_, places) + look_up(segments_, segments);
    return {drop_out(apply(norm_, sum), key, 0), in_dtype(mask)};
  }

 private:
  std::size_t words_, positions_, segments_;
  LayerNorm norm_;
};

class BertAttention final : public ModelLayer {
 public:
  BertAttention(const LayerSetup& setup, const BertSizes& sizes)
      : ModelLayer(setup),
        heads_(sizes.heads),
        attention_(sizes.attention),
        query_(add_linear("query", sizes.hidden, sizes.hidden)),
        key_(add_linear("key", sizes.hidden, sizes.hidden)),
        value_(add_linear("value", sizes.hidden, sizes.hidden)),
        output_(add_linear("output", sizes.hidden, sizes.hidden)),
        norm_(add_layer_norm("norm", sizes.hidden, bert_epsilon))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& hidden = inputs.at(0);
    const auto& mask = inputs.at(1);
    // -10,000 as published: after the softmax a padded token's share is 0, and it fits into fp16.
    const auto added = ((1 - mask) * -10'000).unsqueeze(1).unsqueeze(1);
    const auto query = split_heads(apply(query_, hidden), heads_);
    const auto keys = split_heads(apply(key_, hidden), heads_);
    const auto values = split_heads(apply(value_, hidden), heads_);
    const auto attended = attention_ == Attention::Fused ? attend_fused(query, keys, values, added)
                                                         : attend(query, keys, values, added, key);
    const auto output = drop_out(apply(output_, join_heads(attended)), key, 1);
    return {apply(norm_, output + hidden), mask};
  }

 private:
  std::uint64_t heads_;
  Attention attention_;
  Linear query_, key_, value_, output_;
  LayerNorm norm_;
};

class BertUp final : public ModelLayer {
 public:
  BertUp(const LayerSetup& setup, const BertSizes& sizes)
      : ModelLayer(setup), up_(add_linear("up", sizes.hidden, sizes.intermediate))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    const auto& hidden = inputs.at(0);
    const auto& mask = inputs.at(1);
    return {in_dtype(at::gelu(apply(up_, hidden))), hidden, mask};
  }

 private:
  Linear up_;
};

class BertDown final : public ModelLayer {
 public:
  BertDown(const LayerSetup& setup, const BertSizes& sizes)
      : ModelLayer(setup),
        down_(add_linear("down", sizes.intermediate, sizes.hidden)),
        norm_(add_layer_norm("norm", sizes.hidden, bert_epsilon))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& intermediate = inputs.at(0);
    const auto& residual = inputs.at(1);
    const auto& mask = inputs.at(2);
    return {apply(norm_, drop_out(apply(down_, intermediate), key, 0) + residual), mask};
  }

 private:
  Linear down_;
  LayerNorm norm_;
};

/// Pools a sample into its first token.
class BertPooler final : public ModelLayer {
 public:
  BertPooler(const LayerSetup& setup, const BertSizes& sizes)
      : ModelLayer(setup), pool_(add_linear("pool", sizes.hidden, sizes.hidden))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    return {in_dtype(at::tanh(apply(pool_, inputs.at(0).select(1, 0))))};
  }

 private:
  Linear pool_;
};

class BertClassifier final : public ModelLayer {
 public:
  BertClassifier(const LayerSetup& setup, const BertSizes& sizes)
      : ModelLayer(setup), classes_(add_linear("classes", sizes.hidden, sizes.classes))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    return {in_dtype(apply(classes_, drop_out(inputs.at(0), key, 0)))};
  }

 private:
  Linear classes_;
};

}  // namespace

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const BertSizes& sizes)
{
  const auto encoder_units = 3 * sizes.encoders;
  if (setup.layer == 0) return std::make_unique<BertEmbedding>(setup, sizes);
  if (setup.layer == encoder_units + 1) return std::make_unique<BertPooler>(setup, sizes);
  if (setup.layer == encoder_units + 2) return std::make_unique<BertClassifier>(setup, sizes);
  switch ((setup.layer - 1) % 3) {
    case 0:
      return std::make_unique<BertAttention>(setup, sizes);
    case 1:
      return std::make_unique<BertUp>(setup, sizes);
    default:
      return std::make_unique<BertDown>(setup, sizes);
  }
}

}  // namespace isobar::exec
