#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

namespace isobar {

void build_gpt(const GptSizes& sizes, Workload& workload)
{
  const auto& [layers, hidden, heads, intermediate, vocabulary, positions, attention, unit] = sizes;
  const auto B = static_cast<double>(workload.micro_batch);
  const auto S = static_cast<double>(workload.sequence);
  const auto H = static_cast<double>(hidden);
  const auto I = static_cast<double>(intermediate);
  const auto V = static_cast<double>(vocabulary);
  const double z = size_of(workload.dtype);
  const double T = B * S;
  const double e = T * H;
  const double a = B * static_cast<double>(heads) * S;
  const bool is_fused = attention == Attention::Fused;
  workload.input = Bytes(8 * T);

  append_layer(workload, {.name = "embedding",
                          .parameters = (vocabulary + positions) * hidden,
                          .multiply_adds = 0,
                          .activations = e + workload.input.value,
                          .output = z * e});
  const LayerSizes attend = {.name = "attention",
                             .parameters = 4 * (hidden * hidden + hidden) + 2 * hidden,
                             .multiply_adds = 4 * T * H * H + 2 * B * S * S * H,
                             .score_multiply_adds = 2 * B * S * S * H,
                             .activations = z * 6 * e + e + (is_fused ? 4 * a : (2 * z + 1) * a * S),
                             .output = z * e};
  const LayerSizes feed_forward = {.name = "mlp",
                                   .parameters = 2 * hidden * intermediate + intermediate + hidden + 2 * hidden,
                                   .multiply_adds = 2 * T * H * I,
                                   .activations = z * (2 * e + 2 * T * I) + e,
                                   .output = z * e};
  append_blocks(workload, layers, unit, attend, feed_forward);
  append_layer(workload, {.name = "head",
                          .parameters = 2 * hidden + vocabulary * hidden,
                          .multiply_adds = T * V * H,
                          .activations = 2 * z * e + 4 * T * V,
                          .output = z * T * V});
}

}  // namespace isobar
