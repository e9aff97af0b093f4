#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

#include <utility>

namespace isobar {

namespace {

constexpr std::uint64_t norm_sums = 2;  // for mean and variance

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
  workload.input = Bytes(8 * T);

  const Split words = {.name = "vocabulary", .units = vocabulary, .parameters = vocabulary * hidden};
  append_layer(workload, {.name = "embedding",
                          .parameters = (vocabulary + positions) * hidden,
                          .multiply_adds = 0,
                          .activations = e + workload.input.value,
                          .output = z * e,
                          .split = words});
  const double kept_scores = attention == Attention::Fused ? 4 * a : (2 * z + 1) * a * S;
  const LayerSizes attend = {.name = "attention",
                             .parameters = 4 * (hidden * hidden + hidden) + 2 * hidden,
                             .multiply_adds = 4 * T * H * H + 2 * B * S * S * H,
                             .score_multiply_adds = 2 * B * S * S * H,
                             .activations = z * 6 * e + e + kept_scores,
                             .output = z * e,
                             .split = Split{.name = "heads",
                                            .units = heads,
                                            .parameters = 4 * hidden * hidden + 3 * hidden,
                                            .activations = Bytes(z * 4 * e + kept_scores),
                                            .products = {{hidden, 3 * hidden}, {hidden, hidden}},
                                            .norm_sums = norm_sums}};
  const LayerSizes feed_forward = {.name = "mlp",
                                   .parameters = 2 * hidden * intermediate + intermediate + hidden + 2 * hidden,
                                   .multiply_adds = 2 * T * H * I,
                                   .activations = z * (2 * e + 2 * T * I) + e,
                                   .output = z * e,
                                   .split = Split{.name = "columns",
                                                  .units = intermediate,
                                                  .parameters = 2 * hidden * intermediate + intermediate,
                                                  .activations = Bytes(z * 2 * T * I),
                                                  .products = {{hidden, intermediate}, {intermediate, hidden}},
                                                  .norm_sums = norm_sums}};
  append_blocks(workload, layers, unit, attend, feed_forward);
  LayerSizes head = {.name = "head",
                     .parameters = 2 * hidden + vocabulary * hidden,
                     .multiply_adds = T * V * H,
                     .activations = 2 * z * e + 4 * T * V,
                     .output = z * T * V,
                     .split = split_of_head(vocabulary, hidden, T, norm_sums)};
  if (!tied) {
    append_layer(workload, std::move(head));
    return;
  }
  head.parameters = 2 * hidden;
  head.score_multiply_adds = head.multiply_adds;  // of no parameters of its own
  append_layer(workload, std::move(head)).tied_to = 0;
  for (auto& layer : workload.layers) layer.split.reset();
}

}  // namespace isobar
