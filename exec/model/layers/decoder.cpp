#include "core/errors.hpp"
#include "core/model/models.hpp"
#include "exec/model/layers/decoder_layer.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

/// Decoders of all models: GPT-2 (Radford et al. 2019, section 2.3), Llama 3 (Grattafiori et al. 2024, arXiv
/// 2407.21783, section 3.2), and those whose blocks differ.
namespace isobar::exec {

namespace {

class DecoderEmbedding final : public DecoderLayerModule {
 public:
  DecoderEmbedding(const LayerSetup& setup, const DecoderSizes& sizes)
      : DecoderLayerModule(setup, sizes),
        scale_(sizes.embedding_scale),
        words_(add_normal("words", {sizes.vocabulary, sizes.hidden}, usual_deviation, by_rows))
  {
    if (sizes.positions > 0) positions_ = add_normal("positions", {sizes.positions, sizes.hidden});
    if (sizes.has_embedding_norm) norm_ = add_norm("norm", sizes.hidden);
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& tokens = inputs.at(0);
    auto sum = look_up(words_, tokens);
    if (scale_ != 1) sum = sum * scale_;
    if (positions_ && is_first_shard()) {
      sum = sum + look_up(*positions_, positions(tokens.size(1), tokens));
    }
    const auto embedded = in_dtype(sum);
    return {drop_out(norm_ ? normalise(*norm_, embedded) : embedded, key, 0)};
  }

 private:
  double scale_;
  std::size_t words_;
  std::optional<std::size_t> positions_;
  std::optional<NormParameters> norm_;
};

class DecoderHead final : public DecoderLayerModule {
 public:
  DecoderHead(const LayerSetup& setup, const DecoderSizes& sizes)
      : DecoderLayerModule(setup, sizes), cap_(sizes.logit_cap), norm_(add_norm("norm", sizes.hidden))
  {
    if (setup.workload.layers.back().has_tied_copy) {
      LayerSetup whole = setup;
      whole.units = {};
      const at::Tensor words = embedding_words(whole, sizes).detach();
      words_of_embedding_ = parameter(add_copy("words", words, by_rows));
    } else if (sizes.tied) {
      words_of_embedding_ = setup.tied != nullptr ? setup.tied->parameters().front() : embedding_words(setup, sizes);
    } else {
      words_ = add_linear_without_bias("words", sizes.hidden, sizes.vocabulary, by_rows);
    }
  }

  Tensors forward(const Tensors& inputs, const RandomKey& /*key*/) override
  {
    const auto hidden = normalise(norm_, inputs.at(0));
    // A tied product is never deferred, so that its gradient and the embedding's are added up in the same order.
    const auto logits = words_ ? apply(*words_, hidden) : at::linear(hidden, words_of_embedding_);
    return {in_dtype(cap_ > 0 ? at::tanh(logits / cap_) * cap_ : logits)};
  }

 private:
  static at::Tensor embedding_words(LayerSetup setup, const DecoderSizes& sizes)
  {
    setup.layer = 0;
    return DecoderEmbedding(setup, sizes).parameters().front();
  }

  double cap_;
  NormParameters norm_;
  std::optional<Linear> words_;    // none if it is tied
  at::Tensor words_of_embedding_;  // then: the embedding's, or the copy that this layer has
};

/// A block whose feed-forward network reads what its mixer gives.
class BlockInSequence final : public JoinedLayers {
 public:
  BlockInSequence(std::unique_ptr<Sublayer> mixer, std::unique_ptr<Sublayer> feed_forward)
      : JoinedLayers(*mixer, *feed_forward), mixer_(std::move(mixer)), feed_forward_(std::move(feed_forward))
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    return feed_forward_->forward(mixer_->forward(inputs, key), key);
  }

 private:
  std::unique_ptr<Sublayer> mixer_, feed_forward_;
};

/// A block of which both parts read the same residual (GPT-J, PaLM: arXiv 2204.02311, section 2), or its normalization.
class BlockInParallel final : public JoinedLayers {
 public:
  BlockInParallel(std::unique_ptr<Sublayer> mixer, std::unique_ptr<Sublayer> feed_forward, const DecoderSizes& sizes)
      : JoinedLayers(*mixer, *feed_forward),
        mixer_(std::move(mixer)),
        feed_forward_(std::move(feed_forward)),
        shares_norm_(sizes.norm_place == NormPlace::Shared)
  {
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    const auto& residual = inputs.at(0);
    const auto input = mixer_->input_of(residual);
    const auto attended = mixer_->addend(input, key);
    const auto computed = feed_forward_->addend(shares_norm_ ? input : feed_forward_->input_of(residual), key);
    return {(residual + attended + computed).to(residual.scalar_type())};
  }

 private:
  std::unique_ptr<Sublayer> mixer_, feed_forward_;
  bool shares_norm_;
};

/// Makes a layer of a decoder with `blocks` blocks; of `block`, if it is one or in one. Both parts of a block draw the
/// random numbers of the block, so that a model is the same in either unit.
std::unique_ptr<LayerModule> make_decoder_layer(const LayerSetup& setup, const DecoderSizes& sizes,
                                                const DecoderLayer& which, std::uint64_t blocks,
                                                const DecoderBlock& block)
{
  using Kind = DecoderLayer::Kind;
  LayerSetup part = setup;
  if (which.kind == Kind::Embedding) return std::make_unique<DecoderEmbedding>(part, sizes);
  part.layer = which.kind == Kind::Head ? blocks + 1 : which.block + 1;
  if (which.kind == Kind::Head) return std::make_unique<DecoderHead>(part, sizes);
  std::unique_ptr<Sublayer> mixer, feed_forward;
  if (which.kind != Kind::FeedForward) mixer = make_mixer(part, sizes, block);
  part.first_parameter = parameters_of_mixer(sizes, block);
  ensure(!mixer || mixer->parameters().size() == part.first_parameter, "a mixer has the parameters of its kind");
  if (which.kind != Kind::Attention) feed_forward = make_feed_forward(part, sizes, block);
  if (!mixer) return feed_forward;
  if (!feed_forward) return mixer;
  if (!sizes.is_parallel) return std::make_unique<BlockInSequence>(std::move(mixer), std::move(feed_forward));
  return std::make_unique<BlockInParallel>(std::move(mixer), std::move(feed_forward), sizes);
}

[[noreturn]] void refuse(const LayerSetup& setup, const std::string& what)
{
  throw InputError(fmt::format("workload {}", shown(setup.workload.name)), what);
}

/// Refuses rotary positions of an odd number of elements.
void require_pairs(const LayerSetup& setup, const std::string& key, std::uint64_t width)
{
  if (width % 2 == 0) return;
  refuse(setup, fmt::format("{} is {}; rotary positions rotate pairs, so it must be even", key, width));
}

/// Refuses what only plans and simulations know.
void require_executable(const LayerSetup& setup, const DecoderSizes& sizes)
{
  if (!sizes.mtp_blocks.empty()) {
    refuse(setup, "mtp_layers: blocks of multi-token prediction are only simulated; leave the key out to execute");
  }
  for (const auto& block : sizes.blocks) {
    if (block.mixer == Mixer::DeltaNet || block.mixer == Mixer::Mamba2 || compression_of(sizes, block.mixer) > 0) {
      refuse(setup,
             fmt::format("layer type {} is only simulated; those that execute are full, window, chunk and latent",
                         name_of(block.mixer)));
    }
    if (!block.rotates || block.mixer == Mixer::None) continue;
    if (block.mixer == Mixer::Latent) {
      require_pairs(setup, "qk_rope_head_dim", sizes.latent.rope);
    } else if (sizes.rotated > 0) {
      require_pairs(setup, "rotary_dim", sizes.rotated);
    } else {
      require_pairs(setup, "head_dim", sizes.head_width);
    }
  }
  if (sizes.indexer.heads > 0) {
    refuse(setup, "index_n_heads: indexers are only simulated; leave their keys out to execute");
  }
  const bool has_others = std::ranges::any_of(
      sizes.blocks, [](const auto& block) { return block.mixer != Mixer::Latent && block.mixer != Mixer::None; });
  if (sizes.q_rank > 0 && has_others) {
    refuse(setup, "q_lora_rank: compressed queries execute in layers of type latent; leave the key out to execute");
  }
  const std::array<std::pair<const char*, bool>, 4> only_simulated = {
      {{"hc_mult", sizes.streams > 1},
       {"shared_kv", sizes.has_shared_kv},
       {"o_groups", sizes.output_groups.count > 0},
       {"qk_norm: weighted_keys", sizes.head_norm == HeadNorm::WeightedKeys}}};
  for (const auto& [key, is_there] : only_simulated) {
    if (is_there) refuse(setup, fmt::format("{} is only simulated; leave it out to execute", key));
  }
  if (sizes.is_parallel && sizes.unit == Unit::Operator) {
    refuse(setup, "parallel: true executes with unit: block, whose parts read the same residual; write that");
  }
  if (sizes.attention == Attention::Fused && (sizes.has_sinks || sizes.score_cap > 0)) {
    refuse(setup, fmt::format("{}: fused kernels of LibTorch do not compute it; write attention: unfused to execute",
                              sizes.has_sinks ? "attention_sinks" : "attn_logit_softcapping"));
  }
}

/// Refuses shards of layers that need the sum over all shards before their end.
void require_divisible(const LayerSetup& setup, const DecoderSizes& sizes)
{
  if (setup.units.is_whole()) return;
  const auto refuse_key = [&](const std::string& key) {
    refuse(setup, fmt::format("{} needs sums over the shards inside a layer, which isobar run does not compute; plan "
                              "without shards, or simulate the plan",
                              key));
  };
  if (sizes.norm_place == NormPlace::After || sizes.norm_place == NormPlace::Both) {
    refuse_key(fmt::format("norm_place: {}", name_of(sizes.norm_place)));
  }
  if (sizes.head_norm == HeadNorm::AllHeads) refuse_key("qk_norm: all_heads");
  if (sizes.has_embedding_norm) refuse_key("embedding_norm");
}

/// Refuses experts that devices divide, and of which shards share a bias.
void require_divisible_experts(const LayerSetup& setup, const DecoderSizes& sizes)
{
  if (setup.experts.is_whole()) return;
  ensure(sizes.unit == Unit::Operator, "devices divide experts of layers that are operators");
  if (!setup.units.is_whole() && sizes.biases.experts) {
    refuse(setup,
           "biases: experts have biases, which isobar run does not divide among shards and replicas; plan "
           "without one of them");
  }
}

/// A layer of a model whose blocks are alike.
std::unique_ptr<LayerModule> make_layer_of(const LayerSetup& setup, const DecoderSizes& parts, std::uint64_t blocks)
{
  return make_decoder_layer(setup, parts, decoder_layer(setup.layer, blocks, parts.unit), blocks, parts.blocks.front());
}

}  // namespace

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const GptSizes& sizes)
{
  return make_layer_of(setup, decoder_parts_of(sizes), sizes.layers);
}

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const LlamaSizes& sizes)
{
  const auto width = sizes.hidden / sizes.heads;
  if (width % 2 != 0) {
    refuse(setup, fmt::format("hidden {} over heads {} makes heads {} wide; rotary positions rotate pairs, so the "
                              "width of a head must be even",
                              sizes.hidden, sizes.heads, width));
  }
  return make_layer_of(setup, decoder_parts_of(sizes), sizes.layers);
}

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const DecoderSizes& sizes)
{
  require_executable(setup, sizes);
  require_divisible(setup, sizes);
  require_divisible_experts(setup, sizes);
  const DecoderLayer which = decoder_layer(setup.layer, sizes);
  return make_decoder_layer(setup, sizes, which, sizes.blocks.size(), decoder_block(sizes, which.block));
}

}  // namespace isobar::exec
