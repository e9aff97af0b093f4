#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

namespace isobar {

namespace {

constexpr std::uint64_t norm_sums = 1;  // of squares

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
  workload.input = Bytes(8 * T);

  const Split words = {.name = "vocabulary", .units = vocabulary, .parameters = vocabulary * hidden};
  append_layer(workload, {.name = "embedding",
                          .parameters = vocabulary * hidden,
                          .multiply_adds = 0,
                          .activations = workload.input.value,
                          .output = z * e,
                          .split = words});
  const double kept_scores = attention == Attention::Fused ? 4 * a : z * a * S;
  const LayerSizes attend = {.name = "attention",
                             .parameters = 2 * hidden * hidden + 2 * hidden * kv_width + hidden,
                             .multiply_adds = T * (2 * H * H + 2 * H * K) + 2 * B * S * S * H,
                             .score_multiply_adds = 2 * B * S * S * H,
                             .activations = z * (4 * e + 2 * T * K) + kept_scores,
                             .output = z * e,
                             .split = Split{.name = "heads",
                                            .units = kv_heads,
                                            .parameters = 2 * hidden * hidden + 2 * hidden * kv_width,
                                            .activations = Bytes(z * (2 * e + 2 * T * K) + kept_scores),
                                            .products = {{hidden, hidden + 2 * kv_width}, {hidden, hidden}},
                                            .norm_sums = norm_sums}};
  const LayerSizes feed_forward = {.name = "mlp",
                                   .parameters = 3 * hidden * intermediate + hidden,
                                   .multiply_adds = 3 * T * H * I,
                                   .activations = z * (2 * e + 4 * T * I),
                                   .output = z * e,
                                   .split = Split{.name = "columns",
                                                  .units = intermediate,
                                                  .parameters = 3 * hidden * intermediate,
                                                  .activations = Bytes(z * 4 * T * I),
                                                  .products = {{hidden, 2 * intermediate}, {intermediate, hidden}},
                                                  .norm_sums = norm_sums}};
  append_blocks(workload, layers, unit, attend, feed_forward);
  append_layer(workload, {.name = "head",
                          .parameters = hidden + vocabulary * hidden,
                          .multiply_adds = T * V * H,
                          .activations = 2 * z * e + 4 * T * V,
                          .output = z * T * V,
                          .split = split_of_head(vocabulary, hidden, T, norm_sums)});
}

}  // namespace isobar
