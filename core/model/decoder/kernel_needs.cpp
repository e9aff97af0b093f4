#include "core/model/decoder/kernel_needs.hpp"

#include <algorithm>

namespace isobar::decoder {

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
