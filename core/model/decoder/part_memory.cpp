#include "core/model/decoder/part_memory.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace isobar::decoder {

namespace {

/// Lists tensors of each token.
class TensorList {
 public:
  TensorList(const DecoderSizes& sizes, const Workload& workload)
      : sizes_(sizes), tokens_(number(workload.micro_batch) * number(workload.sequence)), z_(size_of(workload.dtype))
  {
  }

  /// Numbers of a token that all shards have.
  void repeated(double numbers, std::optional<BlockOperator> maker, std::vector<BlockOperator> savers)
  {
    if (numbers > 0) tensors.push_back({z_ * tokens_ * numbers, 0, maker, std::move(savers)});
  }
  /// Numbers of a token that shards divide.
  void divided(double numbers, std::optional<BlockOperator> maker, std::vector<BlockOperator> savers)
  {
    if (numbers > 0) tensors.push_back({0, z_ * tokens_ * numbers, maker, std::move(savers)});
  }
  /// Bytes of a token in another type.
  void bytes(double each, std::optional<BlockOperator> maker, std::vector<BlockOperator> savers)
  {
    tensors.push_back({tokens_ * each, 0, maker, std::move(savers)});
  }
  /// Bytes of all tokens, which shards divide.
  void divided_bytes(double all, std::optional<BlockOperator> maker, std::vector<BlockOperator> savers)
  {
    if (all > 0) tensors.push_back({0, all, maker, std::move(savers)});
  }

  /// What comes into a part of a block, through its norms, to its `readers`. Norms of outputs are no operators that
  /// run again, and neither is a norm that the other part of the block has.
  void input(BlockOperator norm, std::uint64_t norms, const std::vector<BlockOperator>& readers)
  {
    const auto hidden = number(sizes_.hidden);
    const bool is_before = sizes_.norm_place != NormPlace::After && norms > 0;
    if (is_before) repeated(hidden, {}, {norm});
    repeated(hidden, is_before ? std::optional(norm) : std::nullopt, readers);
    const std::uint64_t after = norms - (is_before ? 1 : 0);
    repeated(number(after) * hidden, {}, readers);
  }

  std::vector<BlockTensor> tensors;

 private:
  const DecoderSizes& sizes_;
  double tokens_;
  double z_;
};

bool has_gpt_masks(const DecoderSizes& sizes)
{
  return sizes.model == DecoderModel::Gpt;
}

void list_recurrence(const DecoderSizes& sizes, Mixer mixer, TensorList& list)
{
  using enum BlockOperator;
  if (mixer == Mixer::Mamba2) {
    const auto& mamba = sizes.mamba2;
    list.divided(number(mamba.inner() + mamba.convolved() + mamba.heads), Qkv, {Context});
    list.divided(number(mamba.convolved()), Context, {Context});
    list.divided(number(mamba.inner()), Context, {Context});  // the scan's output
    list.divided(number(mamba.inner()), Context, {Projection});
    return;
  }
  const auto& net = sizes.delta_net;
  const std::uint64_t convolved = 2 * net.keys() + net.values();
  list.divided(number(convolved + net.values() + 2 * net.value_heads), Qkv, {Context});  // with gates
  list.divided(number(convolved), Context, {Context});
  list.divided(number(net.values()), Context, {Context});
  list.divided(number(net.values()), Context, {Projection});
}

void list_latent(const DecoderSizes& sizes, TensorList& list)
{
  using enum BlockOperator;
  const auto& [kv_rank, nope, rope, value] = sizes.latent;
  const double compressed = number(sizes.q_rank + kv_rank + rope);
  const std::uint64_t heads = sizes.heads;
  list.repeated(compressed, Qkv, {QkvUp});
  list.repeated(compressed, QkvUp, {QkvUp});  // after the norm
  list.repeated(number(sizes.indexer.width + sizes.indexer.heads * sizes.indexer.width), Qkv, {Context});
  list.divided(number(heads * (nope + value)), QkvUp, {QkvUp});  // before the rotary part joins keys
  list.divided(number(heads * (2 * (nope + rope) + value)), QkvUp, {Context});
  list.divided(number(heads * value), Context, {Context, Projection});
}

void list_attention(const DecoderSizes& sizes, Mixer mixer, TensorList& list)
{
  using enum BlockOperator;
  const std::uint64_t queries = sizes.heads * sizes.head_width;
  const std::uint64_t keys = keys_and_values(sizes);
  const auto made_queries = sizes.q_rank > 0 ? QkvUp : Qkv;
  list.repeated(number(sizes.q_rank), Qkv, {QkvUp});
  list.repeated(number(sizes.q_rank), QkvUp, {QkvUp});  // after the norm
  list.divided(number(queries), made_queries, {Context});
  const auto list_keys = [&](std::uint64_t numbers, BlockOperator saver) {
    if (sizes.has_shared_kv) {
      list.repeated(number(numbers), Qkv, {saver});
    } else {
      list.divided(number(numbers), Qkv, {saver});
    }
  };
  list_keys(keys, Context);
  if (sizes.head_norm != HeadNorm::None) {
    list.divided(number(queries), made_queries, {made_queries});
    list_keys(sizes.kv_heads * sizes.head_width, Qkv);
  }
  if (sizes.has_output_gate) {
    list.divided(number(queries), made_queries, {Context});
    list.divided(number(queries), Context, {Context});
    list.divided(number(queries), Context, {Projection});
  } else {
    list.divided(number(queries), Context, {Context, Projection});
  }
  list.divided(number(sizes.output_groups.count * sizes.output_groups.rank), Projection, {Projection});
  if (const std::uint64_t rate = compression_of(sizes, mixer); rate > 0) {
    // Numbers and their weights, and entries before and after their norms.
    list.repeated(number(2 * compressed_numbers(sizes, mixer)), Qkv, {Context});
    list.repeated(2 * number(sizes.head_width) / number(rate), Qkv, {Context});
    const auto& indexer = sizes.indexer;
    if (mixer == Mixer::CompressedSparse) {
      list.repeated(number(2 * indexed_numbers(sizes, mixer) + indexer.heads * indexer.width), Qkv, {Context});
      list.repeated(2 * number(indexer.width) / number(rate), Qkv, {Context});
    }
  }
}

void list_experts(const DecoderSizes& sizes, const Workload& workload, TensorList& list)
{
  using enum BlockOperator;
  const ExpertSizes& experts = sizes.experts;
  const double z = size_of(workload.dtype);
  const double rows = number(workload.micro_batch) * number(workload.sequence) * number(experts.per_token);
  constexpr double bytes_of_expert = 8;  // its logit and probability, in float32
  list.bytes(bytes_of_expert * number(experts.count), Router, {Router});
  list.repeated(number(experts.latent), {}, {Router});
  const auto list_routed = [&](double repeated, double divided, std::optional<BlockOperator> maker,
                               BlockOperator saver) {
    list.tensors.push_back({z * rows * repeated, z * rows * divided, maker, {saver}, {}, true});
  };
  list_routed(number(experts.latent > 0 ? experts.latent : sizes.hidden), 0, {}, Up);
  list_routed(0, number((sizes.is_gated ? 2 : 1) * experts.intermediate), Up, Activation);
  list_routed(0, number(experts.intermediate), Activation, Down);
  list.divided(number((sizes.is_gated ? 3 : 2) * experts.shared), SharedExperts, {SharedExperts});
}

}  // namespace

double kept_scores(const DecoderSizes& sizes, Mixer mixer, const Workload& workload)
{
  const bool has_scores = is_attention(mixer) || mixer == Mixer::Latent;
  const double heads = number(workload.micro_batch) * number(sizes.heads) * number(workload.sequence);
  if (!has_scores || sizes.attention == Attention::Recomputed) return 0;
  if (sizes.attention == Attention::Fused) {
    constexpr double sum_of_exponentials = 4;
    return sum_of_exponentials * heads;
  }
  const double z = size_of(workload.dtype);
  return (has_gpt_masks(sizes) ? 2 * z + 1 : z) * heads * number(keys_of_sample(sizes, mixer, workload.sequence));
}

std::vector<BlockTensor> kept_by_mixer(const DecoderSizes& sizes, Mixer mixer, const Workload& workload)
{
  using enum BlockOperator;
  TensorList list(sizes, workload);
  // Queries that are not compressed are made where compressed keys and values are expanded.
  const bool reads_in_up = mixer == Mixer::Latent && sizes.q_rank == 0;
  list.input(Norm1, norms_of_mixer(sizes), reads_in_up ? std::vector{Qkv, QkvUp} : std::vector{Qkv});
  if (mixer == Mixer::Latent) {
    list_latent(sizes, list);
  } else if (is_attention(mixer)) {
    list_attention(sizes, mixer, list);
  } else {
    list_recurrence(sizes, mixer, list);
  }
  list.divided_bytes(kept_scores(sizes, mixer, workload), Context, {Context});
  if (has_gpt_masks(sizes)) list.bytes(number(sizes.hidden), Dropout1, {Dropout1});
  return list.tensors;
}

std::vector<BlockTensor> kept_by_feed_forward(const DecoderSizes& sizes, FeedForward network, const Workload& workload)
{
  using enum BlockOperator;
  TensorList list(sizes, workload);
  const std::uint64_t norms = norms_of_feed_forward(sizes);
  if (network == FeedForward::Experts) {
    list.input(Norm2, norms, {Router, SharedExperts});
    list_experts(sizes, workload, list);
  } else {
    list.input(Norm2, norms, {Up});
    list.divided(number((sizes.is_gated ? 2 : 1) * sizes.intermediate), Up, {Activation});
    if (sizes.model == DecoderModel::Llama && sizes.is_gated) {  // what its activation gives, before the gate's product
      list.divided(number(sizes.intermediate), Activation, {Activation});
    }
    list.divided(number(sizes.intermediate), Activation, {Down});
  }
  if (has_gpt_masks(sizes)) list.bytes(number(sizes.hidden), Dropout2, {Dropout2});
  return list.tensors;
}

double kept_by_connection(const HyperConnection& connection, const Workload& workload)
{
  constexpr double float32 = 4;
  const double tokens = number(workload.micro_batch) * number(workload.sequence);
  // Weights before and after the function that makes them positive.
  const double weights = 2 * float32 * number(connection.outputs);
  return tokens * (size_of(workload.dtype) * connection.kept_numbers + weights);
}

KeptBytes bytes_of(const std::vector<BlockTensor>& tensors)
{
  KeptBytes kept;
  for (const auto& tensor : tensors) {
    kept.repeated += tensor.repeated;
    kept.divided += tensor.divided;
  }
  return kept;
}

std::vector<BlockTensor> kept_by_layer(const DecoderSizes& sizes, const DecoderLayer& layer, const Workload& workload)
{
  using enum BlockOperator;
  using Kind = DecoderLayer::Kind;
  const DecoderBlock& block = decoder_block(sizes, layer.block);
  std::vector<BlockTensor> tensors;
  const auto add = [&](const std::vector<BlockTensor>& of_part, BlockOperator saver) {
    tensors.insert(tensors.end(), of_part.begin(), of_part.end());
    if (sizes.streams > 1) {
      tensors.push_back({.repeated = kept_by_connection(connection_of_part(sizes), workload), .savers = {saver}});
    }
  };
  if (layer.kind != Kind::FeedForward && block.mixer != Mixer::None) {
    add(kept_by_mixer(sizes, block.mixer, workload), Norm1);
  }
  if (layer.kind != Kind::Attention && block.feed_forward != FeedForward::None) {
    add(kept_by_feed_forward(sizes, block.feed_forward, workload), Norm2);
  }
  const bool begins_block = layer.kind != Kind::FeedForward || block.mixer == Mixer::None;
  if (layer.block >= sizes.blocks.size() && begins_block) {
    const double tokens = number(workload.micro_batch) * number(workload.sequence);
    const double bytes = size_of(workload.dtype) * kept_states_of_mtp(sizes) * tokens * number(sizes.hidden);
    tensors.push_back({.repeated = bytes, .savers = {Norm1}});
  }
  return tensors;
}

namespace {

/// Sizes that the formulas share, in elements.
struct Elements {
  Elements(const DecoderSizes& sizes, const Workload& workload)
      : z(size_of(workload.dtype)),
        B(number(workload.micro_batch)),
        S(number(workload.sequence)),
        T(B * S),
        H(number(sizes.hidden)),
        V(number(sizes.vocabulary)),
        e(T * H),
        kernels(workload)
  {
  }

  double z;
  double B;
  double S;
  double T;
  double H;
  double V;
  double e;
  KernelMemory kernels;

  /// A normalization, which is computed in float32, or by a kernel that keeps mean and deviation.
  double norm(bool is_rms) const
  {
    return is_rms ? 4 * e + kernels.in_float32(e) + 4 * T : kernels.in_float32(e) + moments * T;
  }
  double rms_norm_backward() const { return 12 * e + kernels.cast(e); }  // three tensors in float32
};

bool is_rms(const DecoderSizes& sizes)
{
  return sizes.norm == Norm::Rms;
}

struct AttentionElements {
  double queries;
  double keys;
  double qkv_weights;
  double output_weights;
};

AttentionElements of_attention(const DecoderSizes& sizes, double tokens)
{
  const double queries = number(sizes.heads * sizes.head_width);
  const double keys = number(sizes.kv_heads * sizes.head_width);
  const double hidden = number(sizes.hidden);
  return {tokens * queries, tokens * keys, hidden * (queries + 2 * keys), hidden * queries};
}

KernelNeeds after_rms_norm(const DecoderSizes& sizes, const Elements& of, double activations)
{
  const auto& kernels = of.kernels;
  const auto [Q, K, qkv_weights, output_weights] = of_attention(sizes, of.T);
  const double z = of.z;
  const double scores = of.B * number(sizes.heads) * of.S * of.S;
  const bool is_fused = sizes.attention == Attention::Fused;
  const double repeated = sizes.kv_heads < sizes.heads ? 2 * z * (Q - K) : 0;  // keys and values, once for each head
  const double rotation = 4 * of.S * number(sizes.head_width);                 // sines and cosines
  const double weights = z * of.e + (kernels.casts() ? 6 : 4) * output_weights;
  const double rotation_backward = kernels.casts() ? 9 * Q + 4 * K + 2 * rotation : 0;
  const double fused = std::max({z * (Q + 2 * K) + kernels.fused_attention(), weights, rotation_backward});
  const double unfused = std::max({z * (2 * scores - Q), z * (scores + 3 * Q + of.S * of.S) + 2 * of.T, 3 * z * (Q + K),
                                   weights, rotation_backward});
  return {activations + of.norm(true) + rotation + kernels.cast(qkv_weights + output_weights) +
              (is_fused ? z * Q : repeated),
          is_fused ? fused : unfused + (sizes.attention == Attention::Recomputed ? z * scores : 0)};
}

KernelNeeds after_layer_norm(const DecoderSizes& sizes, const Elements& of, double activations, double kept_scores)
{
  const auto& kernels = of.kernels;
  const auto [Q, K, qkv_weights, output_weights] = of_attention(sizes, of.T);
  const double z = of.z;
  const double all_scores = of.B * number(sizes.heads) * of.S * of.S;
  const double mask = kernels.mask(of.e);
  const bool is_recomputed = sizes.attention == Attention::Recomputed;
  // Scores, or their gradients, twice; of one sample, heads are views of the product that makes queries, keys and
  // values, and else copies.
  const double probabilities = z * all_scores + kernels.mask((z + 1) * all_scores);
  const double copies = of.B > 1 ? z * Q : 0;
  const double score_gradients = 2 * z * all_scores - mask - copies;
  const double forward_scores =
      z * of.S * of.S + (kernels.drops() ? score_gradients - (copies > 0 ? 0 : 3 * z * Q) : z * (all_scores + Q));
  const double biases = number((sizes.heads + 2 * sizes.kv_heads) * sizes.head_width);
  const double weights = (kernels.casts() ? qkv_weights * 10 / 3 : 4 * qkv_weights) + 4 * biases;
  const double last_weights = z * of.e + 4 * (output_weights + of.H) + kernels.mask((z - 1) * of.e);
  const double fused = std::max({z * (2 * Q + 2 * K) + kernels.fused_attention(), weights, last_weights});
  const double unfused = std::max({score_gradients, forward_scores, 5 * z * Q, weights - probabilities, last_weights});
  const bool is_fused = sizes.attention == Attention::Fused;
  const double masks = sizes.model == DecoderModel::Gpt ? of.e : 0;  // which `activations` count
  return {activations - kept_scores - masks + mask + of.norm(false) + kernels.cast(qkv_weights + output_weights) +
              (is_fused ? kept_scores : (is_recomputed ? 0 : probabilities) + z * Q - copies),
          is_fused ? fused : unfused + (is_recomputed ? (2 * z + 1) * all_scores : 0)};
}

}  // namespace

KernelNeeds needs_of_attention(const DecoderSizes& sizes, const Workload& workload, double activations, double scores)
{
  const Elements of(sizes, workload);
  return is_rms(sizes) ? after_rms_norm(sizes, of, activations) : after_layer_norm(sizes, of, activations, scores);
}

KernelNeeds needs_of_feed_forward(const DecoderSizes& sizes, const Workload& workload)
{
  const Elements of(sizes, workload);
  const auto& kernels = of.kernels;
  const double inner = of.T * number(sizes.intermediate);
  const double weights = of.H * number(sizes.intermediate);
  const double tensors = sizes.is_gated ? 4 : 2;  // gate, what its activation gives, up, and their product
  const double all_weights = (sizes.is_gated ? 3 : 2) * weights;
  const double kept = of.z * (2 * of.e + tensors * inner) + of.norm(is_rms(sizes)) + kernels.cast(all_weights);
  if (is_rms(sizes)) {
    return {kept, std::max({2 * of.z * inner, kernels.product(inner, of.e, weights, 0),
                            of.rms_norm_backward() - tensors * of.z * inner})};
  }
  return {kept + kernels.mask(of.e),
          std::max({kernels.product(inner, of.e, weights, of.H) + kernels.mask((of.z - 1) * of.e),
                    kernels.mask(3 * of.z * of.e), kernels.in_float32(2 * of.e)})};
}

KernelNeeds needs_of_embedding(const DecoderSizes& sizes, const Workload& workload)
{
  const Elements of(sizes, workload);
  const auto& kernels = of.kernels;
  if (sizes.positions == 0) {
    return {token * of.T, of.z * of.e + kernels.in_float32(of.e) + 4 * of.V * of.H};
  }
  const double mask = kernels.mask(of.e);
  const double rows = std::max(of.V, of.S + number(sizes.positions));
  return {mask + token * (of.T + of.S),
          std::max(of.z * of.e + (kernels.casts() || kernels.drops() ? 4 * of.e : 0) - mask + 4 * of.H * rows,
                   kernels.drops() ? 4 * of.z * of.e : 0)};
}

KernelNeeds needs_of_head(const DecoderSizes& sizes, const Workload& workload, double predictions)
{
  const Elements of(sizes, workload);
  const auto& kernels = of.kernels;
  const double states = predictions * of.e;
  const double logits = predictions * of.T * of.V;
  const double kept =
      2 * of.z * states + 4 * logits + of.norm(is_rms(sizes)) + token * of.T + kernels.cast(logits + of.V * of.H);
  const double in_norm = is_rms(sizes) ? of.rms_norm_backward() - of.z * of.e : kernels.in_float32(of.e);
  return {kept, std::max({4 * of.V * of.H, in_norm, kernels.cast(logits - states)})};
}

KernelNeeds needs_of_products(const DecoderSizes& sizes, const Workload& workload, double activations, double weights,
                              const LargestProduct& largest)
{
  const Elements of(sizes, workload);
  return {activations + of.norm(is_rms(sizes)) + of.kernels.cast(weights),
          std::max(of.kernels.product(largest.inputs, largest.outputs, largest.weights, 0),
                   is_rms(sizes) ? of.rms_norm_backward() : of.kernels.in_float32(2 * of.e))};
}

}  // namespace isobar::decoder
