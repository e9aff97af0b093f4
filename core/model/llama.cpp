#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

#include <algorithm>

namespace isobar {

namespace {

constexpr std::uint64_t rms_norm_sums = 1;  // of squares

}  // namespace

void build_llama(const LlamaSizes& sizes, Workload& workload)
{
  const auto& [layers, hidden, heads, kv_heads, intermediate, vocabulary, rope_theta, norm_epsilon, attention, unit] =
      sizes;
  const std::uint64_t kv_width = hidden / heads * kv_heads;
  const auto B = static_cast<double>(workload.micro_batch);
  const auto S = static_cast<double>(workload.sequence);
  const auto H = static_cast<double>(hidden);
  const auto K = static_cast<double>(kv_width);
  const auto I = static_cast<double>(intermediate);
  const auto V = static_cast<double>(vocabulary);
  const double z = size_of(workload.dtype);
  const double T = B * S;
  const double e = T * H;
  const double a = B * static_cast<double>(heads) * S;
  const KernelMemory kernels(workload);
  const double squares = H * H;
  const double norm = 4 * e + kernels.in_float32(e) + 4 * T;  // normalized in float32, before the weight
  const double norm_backward = 12 * e + kernels.cast(e);      // three tensors in float32
  workload.input = Bytes(token * T);

  const Split words = {.name = "vocabulary", .units = vocabulary, .parameters = vocabulary * hidden};
  const LayerSizes embedding = {.name = "embedding",
                                .parameters = vocabulary * hidden,
                                .multiply_adds = 0,
                                .activations = workload.input.value,
                                .output = z * e,
                                .kept = token * T,
                                .passing = z * e + kernels.in_float32(e) + 4 * V * H,
                                .split = words};
  append_layer(workload, embedding);
  const bool is_recomputed = attention == Attention::Recomputed;
  const double kept_scores = attention == Attention::Fused ? 4 * a : is_recomputed ? 0 : z * a * S;
  const bool is_fused = attention == Attention::Fused;
  const double repeated = kv_heads < heads ? 2 * z * (e - T * K) : 0;  // keys and values, once for each head
  const double rotation = 4 * S * H / static_cast<double>(heads);      // sines and cosines
  const double weights = z * e + (kernels.casts() ? 6 : 4) * squares;
  const double rotation_backward = kernels.casts() ? 9 * e + 4 * T * K + 2 * rotation : 0;
  const double fused = std::max({z * (e + 2 * T * K) + kernels.fused_attention(), weights, rotation_backward});
  const double unfused = std::max(
      {z * (2 * a * S - e), z * (a * S + 3 * e + S * S) + 2 * T, 3 * z * (e + T * K), weights, rotation_backward});
  const LayerSizes attend = {.name = "attention",
                             .parameters = 2 * hidden * hidden + 2 * hidden * kv_width + hidden,
                             .multiply_adds = T * (2 * H * H + 2 * H * K) + 2 * B * S * S * H,
                             .score_multiply_adds = 2 * B * S * S * H,
                             .recomputed_multiply_adds = is_recomputed ? 2 * B * S * S * H : 0,
                             .activations = z * (4 * e + 2 * T * K) + kept_scores,
                             .output = z * e,
                             .kept = z * (4 * e + 2 * T * K) + kept_scores + norm + rotation +
                                     kernels.cast(2 * H * (H + K)) + (is_fused ? z * e : repeated),
                             .passing = is_fused ? fused : unfused + (is_recomputed ? z * a * S : 0),
                             .split = Split{.name = "heads",
                                            .units = kv_heads,
                                            .parameters = 2 * hidden * hidden + 2 * hidden * kv_width,
                                            .activations = Bytes(z * (2 * e + 2 * T * K) + kept_scores),
                                            .products = {{hidden, hidden + 2 * kv_width}, {hidden, hidden}},
                                            .norm_sums = rms_norm_sums}};
  const LayerSizes feed_forward = {
      .name = "mlp",
      .parameters = 3 * hidden * intermediate + hidden,
      .multiply_adds = 3 * T * H * I,
      .activations = z * (2 * e + 4 * T * I),
      .output = z * e,
      .kept = z * (2 * e + 4 * T * I) + norm + kernels.cast(3 * H * I),
      .passing = std::max({2 * z * T * I, kernels.product(T * I, e, H * I, 0), norm_backward - 4 * z * T * I}),
      .split = Split{.name = "columns",
                     .units = intermediate,
                     .parameters = 3 * hidden * intermediate,
                     .activations = Bytes(z * 4 * T * I),
                     .products = {{hidden, 2 * intermediate}, {intermediate, hidden}},
                     .norm_sums = rms_norm_sums}};
  append_blocks(workload, layers, unit, attend, feed_forward);
  append_layer(workload, {.name = "head",
                          .parameters = hidden + vocabulary * hidden,
                          .multiply_adds = T * V * H,
                          .activations = 2 * z * e + 4 * T * V,
                          .output = z * T * V,
                          .kept = 2 * z * e + 4 * T * V + norm + token * T + kernels.cast(T * V + V * H),
                          .passing = std::max({4 * V * H, norm_backward - z * e, kernels.cast(T * V - e)}),
                          .split = split_of_head(vocabulary, hidden, T, rms_norm_sums)});
  count_in_each_pass(workload, embedding);
}

}  // namespace isobar
