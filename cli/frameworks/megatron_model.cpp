#include "cli/frameworks/megatron_model.hpp"

#include "core/errors.hpp"
#include "core/model/models.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <utility>

namespace isobar::cli {

namespace {

DecoderSizes sizes_of(const ModelSizes& model)
{
  const auto with_all_blocks = [](DecoderSizes sizes, std::uint64_t blocks) {
    sizes.blocks.resize(blocks, sizes.blocks.front());
    return sizes;
  };
  if (const auto* gpt = std::get_if<GptSizes>(&model)) return with_all_blocks(decoder_parts_of(*gpt), gpt->layers);
  if (const auto* llama = std::get_if<LlamaSizes>(&model)) {
    return with_all_blocks(decoder_parts_of(*llama), llama->layers);
  }
  const auto* decoder = std::get_if<DecoderSizes>(&model);
  ensure(decoder != nullptr, "the model is a gpt, llama or decoder");
  return *decoder;
}

class ModelArguments {
 public:
  explicit ModelArguments(const Workload& workload) : workload_(workload), sizes_(sizes_of(workload.model)) {}

  MegatronModel model()
  {
    add("--num-layers", sizes_.blocks.size());
    add("--hidden-size", sizes_.hidden);
    add_attention();
    add_feed_forward();
    add_positions();
    add_normalization();
    add_biases();
    if (!sizes_.mtp_blocks.empty()) add("--mtp-num-layers", sizes_.mtp_blocks.size());
    if (!sizes_.tied) add("--untie-embeddings-and-output-weights");
    add("--hidden-dropout", workload_.training.dropout);
    add("--attention-dropout", workload_.training.dropout);
    if (workload_.dtype == DType::BFloat16) add("--bf16");
    if (workload_.dtype == DType::Float16) add("--fp16");
    check_others();
    made_.recomputes_attention = sizes_.attention == Attention::Recomputed;
    return std::move(made_);
  }

 private:
  void add(const std::string& option) { made_.arguments.push_back({option, {}}); }
  template <typename Value>
  void add(const std::string& option, const Value& value)
  {
    made_.arguments.push_back({option, {fmt::format("{}", value)}});
  }

  void leave(const std::string& key, std::string_view value)
  {
    made_.unsaid.push_back(fmt::format("{}: {}", key, value));
  }
  template <std::integral Value>
  void leave(const std::string& key, Value value)
  {
    leave(key, fmt::to_string(value));
  }

  bool all_blocks(auto&& is) const { return std::ranges::all_of(sizes_.blocks, is); }
  bool any_block(auto&& is) const { return std::ranges::any_of(sizes_.blocks, is); }

  /// Which blocks are so, such as "[0,1,1]".
  std::string list_of_blocks(auto&& is) const
  {
    std::vector<int> list;
    for (const auto& block : sizes_.blocks) list.push_back(is(block) ? 1 : 0);
    return fmt::format("[{}]", fmt::join(list, ","));
  }

  void add_attention()
  {
    add("--num-attention-heads", sizes_.heads);
    const auto is_window = [](const DecoderBlock& block) { return block.mixer == Mixer::Window; };
    const auto is_latent = [](const DecoderBlock& block) { return block.mixer == Mixer::Latent; };
    for (const auto& block : sizes_.blocks) {
      if (block.mixer == Mixer::Full || is_window(block) || (is_latent(block) && all_blocks(is_latent))) continue;
      leave("layer_types", name_of(block.mixer));
      return;
    }
    if (any_block(is_latent)) {
      add_latent_attention();
      return;
    }
    if (sizes_.kv_heads != sizes_.heads) {
      add("--group-query-attention");
      add("--num-query-groups", sizes_.kv_heads);
    }
    if (sizes_.head_width * sizes_.heads != sizes_.hidden) add("--kv-channels", sizes_.head_width);
    if (any_block(is_window)) {
      add("--window-size", fmt::format("{},0", sizes_.window - 1));
      if (!all_blocks(is_window)) add("--window-attn-skip-freq", list_of_blocks(is_window));
      if (sizes_.window_rope_theta != sizes_.rope_theta) leave("window_rope_theta", "another than rope_theta");
    }
    if (sizes_.head_norm == HeadNorm::Head) {
      add("--qk-layernorm");
    } else if (sizes_.head_norm != HeadNorm::None) {
      leave("qk_norm", name_of(sizes_.head_norm));
    }
    if (sizes_.has_output_gate) add("--attention-output-gate");
    if (sizes_.q_rank > 0) leave("q_lora_rank", sizes_.q_rank);
    add_backend();
  }

  void add_latent_attention()
  {
    add("--multi-latent-attention");
    if (sizes_.q_rank > 0) add("--q-lora-rank", sizes_.q_rank);
    add("--kv-lora-rank", sizes_.latent.kv_rank);
    add("--qk-head-dim", sizes_.latent.nope);
    add("--qk-pos-emb-head-dim", sizes_.latent.rope);
    add("--v-head-dim", sizes_.latent.value);
    add("--qk-layernorm");  // of the compressed vectors
    if (sizes_.indexer.heads > 0) leave("index_n_heads", sizes_.indexer.heads);
    add_backend();
  }

  void add_backend()
  {
    if (sizes_.has_sinks) add("--softmax-type", "learnable");
    if (sizes_.attention != Attention::Fused) add("--attention-backend", "unfused");
    if (sizes_.query_scale > 0) leave("query_pre_attn_scalar", fmt::to_string(sizes_.query_scale));
    if (sizes_.score_cap > 0) leave("attn_logit_softcapping", fmt::to_string(sizes_.score_cap));
  }

  void add_feed_forward()
  {
    const auto is_dense = [](const DecoderBlock& block) { return block.feed_forward == FeedForward::Dense; };
    const auto has_experts = [](const DecoderBlock& block) { return block.feed_forward == FeedForward::Experts; };
    if (any_block([](const DecoderBlock& block) { return block.feed_forward == FeedForward::None; })) {
      leave("mlp_layer_types", name_of(FeedForward::None));
    }
    if (any_block(is_dense)) add("--ffn-hidden-size", sizes_.intermediate);
    if (any_block(has_experts)) add_experts(has_experts);
    const bool is_gelu = sizes_.activation == Activation::Gelu || sizes_.activation == Activation::GeluTanh;
    if (sizes_.is_gated && sizes_.activation == Activation::Silu) {
      add("--swiglu");
    } else if (!sizes_.is_gated && sizes_.activation == Activation::SquaredRelu) {
      add("--squared-relu");
    } else if (sizes_.is_gated || !is_gelu) {
      leave("activation", fmt::format("{}{}", name_of(sizes_.activation), sizes_.is_gated ? ", gated" : ""));
    }
  }

  void add_experts(auto&& has_experts)
  {
    const auto& experts = sizes_.experts;
    add("--num-experts", experts.count);
    if (!all_blocks(has_experts)) add("--moe-layer-freq", list_of_blocks(has_experts));
    add("--moe-ffn-hidden-size", experts.intermediate);
    add("--moe-router-topk", experts.per_token);
    if (experts.shared > 0) add("--moe-shared-expert-intermediate-size", experts.shared);
    if (experts.has_shared_gate) add("--moe-shared-expert-gate");
    if (experts.latent > 0) add("--moe-latent-size", experts.latent);
    // Megatron-Core normalizes the weights of several experts, unless a softmax comes before their choice.
    if (experts.scores == RouterScores::Sigmoid) {
      add("--moe-router-score-function", "sigmoid");
      if (experts.normalizes != (experts.per_token > 1)) {
        leave("norm_topk_prob", experts.normalizes ? "true" : "false");
      }
    } else if (!experts.normalizes) {
      add("--moe-router-pre-softmax");
    } else if (experts.per_token == 1) {
      leave("norm_topk_prob", "true");
    }
    if (experts.scale != 1) add("--moe-router-topk-scaling-factor", experts.scale);
  }

  void add_positions()
  {
    add("--seq-length", workload_.sequence);
    add("--max-position-embeddings", std::max(sizes_.positions, workload_.sequence));
    const auto rotates = [](const DecoderBlock& block) { return block.rotates; };
    if (!any_block(rotates)) {
      add("--position-embedding-type", sizes_.positions > 0 ? "learned_absolute" : "none");
      return;
    }
    if (sizes_.positions > 0) leave("positions", sizes_.positions);
    add("--position-embedding-type", "rope");
    if (any_block([](const DecoderBlock& block) { return block.mixer == Mixer::Latent; })) {
      add("--rope-type", "rope");
      add("--no-rope-fusion");  // of latent attention, which Megatron-Core has with YaRN alone
    }
    if (!all_blocks(rotates)) {
      add("--no-rope-freq", list_of_blocks([&](const DecoderBlock& block) { return !block.rotates; }));
    }
    if (sizes_.rope_theta == std::floor(sizes_.rope_theta)) {
      add("--rotary-base", fmt::format("{:.0f}", sizes_.rope_theta));
    } else {
      leave("rope_theta", fmt::to_string(sizes_.rope_theta));
    }
    if (sizes_.rotated > 0 && sizes_.rotated != sizes_.head_width) {
      add("--rotary-percent", static_cast<double>(sizes_.rotated) / static_cast<double>(sizes_.head_width));
    }
    add_rope_scaling();
  }

  void add_rope_scaling()
  {
    const RopeScaling& scaling = sizes_.rope_scaling;
    RopeScaling of_llama3 = {.type = RopeScaling::Type::Llama3, .factor = scaling.factor};  // the rest is Megatron's
    if (scaling == of_llama3) {
      add("--use-rope-scaling");
      add("--rope-scaling-factor", scaling.factor);
    } else if (scaling.type == RopeScaling::Type::Linear && scaling.factor == std::floor(scaling.factor)) {
      add("--rotary-seq-len-interpolation-factor", scaling.factor);
    } else if (scaling.type != RopeScaling::Type::None) {
      leave("rope_type", name_of(scaling.type));
    }
  }

  void add_normalization()
  {
    if (sizes_.norm == Norm::Rms) {
      add("--normalization", "RMSNorm");
    } else if (sizes_.norm == Norm::Layer) {
      add("--normalization", "LayerNorm");
    } else {
      leave("norm", name_of(sizes_.norm));
    }
    add("--norm-epsilon", sizes_.norm_epsilon);
    if (sizes_.has_zero_centered_gamma) add("--apply-layernorm-1p");
    if (sizes_.norm_place != NormPlace::Before) leave("norm_place", name_of(sizes_.norm_place));
  }

  void add_biases()
  {
    const DecoderBiases& biases = sizes_.biases;
    const bool has_dense = sizes_.intermediate > 0 || sizes_.experts.shared > 0;
    const bool has_experts = sizes_.experts.count > 0;
    const bool has_all = biases.qkv && biases.output && (biases.mlp || !has_dense) && (biases.experts || !has_experts);
    const bool has_none_but_qkv = !biases.output && !biases.mlp && !biases.experts;
    if (biases.router) leave("biases", "router");
    if (has_all) return;
    if (!has_none_but_qkv) {
      leave("biases", "some of qkv, output, mlp and experts");
      return;
    }
    add("--disable-bias-linear");
    if (biases.qkv) add("--add-qkv-bias");
  }

  void check_others()
  {
    if (sizes_.is_parallel) leave("parallel", "true");
    if (sizes_.streams > 1) leave("hc_mult", sizes_.streams);
    if (sizes_.has_embedding_norm) leave("embedding_norm", "true");
    if (sizes_.embedding_scale != 1) leave("embedding_multiplier", fmt::to_string(sizes_.embedding_scale));
    if (sizes_.logit_cap > 0) leave("final_logit_softcapping", fmt::to_string(sizes_.logit_cap));
    const auto& last = sizes_.blocks.back();
    if (!std::ranges::all_of(sizes_.mtp_blocks, [&](const DecoderBlock& block) { return block == last; })) {
      leave("mtp_layer_types", "others than the last block's");
    }
  }

  const Workload& workload_;
  const DecoderSizes sizes_;
  MegatronModel made_;
};

}  // namespace

MegatronModel megatron_model(const Workload& workload)
{
  return ModelArguments(workload).model();
}

}  // namespace isobar::cli
