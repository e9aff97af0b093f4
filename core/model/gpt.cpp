#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

#include <algorithm>
#include <utility>

namespace isobar {

namespace {

constexpr std::uint64_t layer_norm_sums = 2;  // for mean and variance

}  // namespace

void build_gpt(const GptSizes& sizes, Workload& workload)
{
  const auto& [layers, hidden, heads, intermediate, vocabulary, positions, attention, unit, tied] = sizes;
  const auto B = static_cast<double>(workload.micro_batch);
  const auto S = static_cast<double>(workload.sequence);
  const auto H = static_cast<double>(hidden);
  const auto I = static_cast<double>(intermediate);
  const auto V = static_cast<double>(vocabulary);
  const double z = size_of(workload.dtype);
  const double T = B * S;
  const double e = T * H;
  const double a = B * static_cast<double>(heads) * S;
  const KernelMemory kernels(workload);
  const double squares = H * H;
  const double mask = kernels.mask(e);
  const double norm = kernels.in_float32(e) + moments * T;
  workload.input = Bytes(token * T);

  const Split words = {.name = "vocabulary", .units = vocabulary, .parameters = vocabulary * hidden};
  const LayerSizes embedding = {.name = "embedding",
                                .parameters = (vocabulary + positions) * hidden,
                                .multiply_adds = 0,
                                .activations = e + workload.input.value,
                                .output = z * e,
                                .kept = mask + token * (T + S),
                                .passing = std::max(z * e + (kernels.casts() || kernels.drops() ? 4 * e : 0) - mask +
                                                        4 * H * std::max(V, S + static_cast<double>(positions)),
                                                    kernels.drops() ? 4 * z * e : 0),
                                .split = words};
  append_layer(workload, embedding);
  const double scores = (2 * z + 1) * a * S;
  const bool is_recomputed = attention == Attention::Recomputed;
  const double kept_scores = attention == Attention::Fused ? 4 * a : is_recomputed ? 0 : scores;
  // Scores, or their gradients, twice; of one sample, heads are views of the product that makes queries, keys and
  // values, and else copies.
  const double probabilities = z * a * S + kernels.mask((z + 1) * a * S);
  const double copies = workload.micro_batch > 1 ? z * e : 0;
  const double score_gradients = 2 * z * a * S - mask - copies;
  const double forward_scores =
      z * S * S + (kernels.drops() ? score_gradients - (copies > 0 ? 0 : 3 * z * e) : z * (a * S + e));
  const double weights = (kernels.casts() ? 10 : 12) * squares + 12 * H;  // of queries, keys and values
  const double output_weights = z * e + 4 * (squares + H) + kernels.mask((z - 1) * e);
  const double fused = std::max({4 * z * e + kernels.fused_attention(), weights, output_weights});
  const double unfused =
      std::max({score_gradients, forward_scores, 5 * z * e, weights - probabilities, output_weights});
  const bool is_fused = attention == Attention::Fused;
  const LayerSizes attend = {.name = "attention",
                             .parameters = 4 * (hidden * hidden + hidden) + 2 * hidden,
                             .multiply_adds = 4 * T * H * H + 2 * B * S * S * H,
                             .score_multiply_adds = 2 * B * S * S * H,
                             .recomputed_multiply_adds = is_recomputed ? 2 * B * S * S * H : 0,
                             .activations = z * 6 * e + e + kept_scores,
                             .output = z * e,
                             .kept = z * 6 * e + mask + norm + kernels.cast(4 * squares) +
                                     (is_fused ? kept_scores : (is_recomputed ? 0 : probabilities) + z * e - copies),
                             .passing = is_fused ? fused : unfused + (is_recomputed ? scores : 0),
                             .split = Split{.name = "heads",
                                            .units = heads,
                                            .parameters = 4 * hidden * hidden + 3 * hidden,
                                            .activations = Bytes(z * 4 * e + kept_scores),
                                            .products = {{hidden, 3 * hidden}, {hidden, hidden}},
                                            .norm_sums = layer_norm_sums}};
  const LayerSizes feed_forward = {.name = "mlp",
                                   .parameters = 2 * hidden * intermediate + intermediate + hidden + 2 * hidden,
                                   .multiply_adds = 2 * T * H * I,
                                   .activations = z * (2 * e + 2 * T * I) + e,
                                   .output = z * e,
                                   .kept = z * (2 * e + 2 * T * I) + mask + norm + kernels.cast(2 * H * I),
                                   .passing = std::max({kernels.product(T * I, e, H * I, H) + kernels.mask((z - 1) * e),
                                                        kernels.mask(3 * z * e), kernels.in_float32(2 * e)}),
                                   .split = Split{.name = "columns",
                                                  .units = intermediate,
                                                  .parameters = 2 * hidden * intermediate + intermediate,
                                                  .activations = Bytes(z * 2 * T * I),
                                                  .products = {{hidden, intermediate}, {intermediate, hidden}},
                                                  .norm_sums = layer_norm_sums}};
  append_blocks(workload, layers, unit, attend, feed_forward);
  LayerSizes head = {.name = "head",
                     .parameters = 2 * hidden + vocabulary * hidden,
                     .multiply_adds = T * V * H,
                     .activations = 2 * z * e + 4 * T * V,
                     .output = z * T * V,
                     .kept = 2 * z * e + 4 * T * V + norm + token * T + kernels.cast(T * V + V * H),
                     .passing = std::max({4 * V * H, kernels.cast(T * V - e), kernels.in_float32(e)}),
                     .split = split_of_head(vocabulary, hidden, T, layer_norm_sums)};
  if (tied) {
    head.parameters = 2 * hidden;
    head.score_multiply_adds = head.multiply_adds;  // of no parameters of its own
  }
  append_layer(workload, std::move(head));
  if (tied) {
    workload.layers.back().tied_to = 0;
    for (auto& layer : workload.layers) layer.split.reset();
  }
  count_in_each_pass(workload, embedding);
}

}  // namespace isobar
