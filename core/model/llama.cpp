#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

#include <fmt/format.h>

namespace isobar {

void build_llama(const LlamaSizes& sizes, Workload& workload)
{
  const auto& [layers, hidden, heads, kv_heads, intermediate, vocabulary, rope_theta, norm_epsilon, attention] = sizes;
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
  const bool is_fused = attention == Attention::Fused;
  workload.input = Bytes(8 * T);

  append_layer(workload, {.name = "embedding",
                          .parameters = vocabulary * hidden,
                          .multiply_adds = 0,
                          .activations = workload.input.value,
                          .output = z * e});
  for (std::uint64_t i = 0; i < layers; ++i) {
    append_layer(workload,
                 {.name = fmt::format("block{}", i),
                  .parameters = 2 * hidden * hidden + 2 * hidden * kv_width + 3 * hidden * intermediate + 2 * hidden,
                  .multiply_adds = T * (2 * H * H + 2 * H * K + 3 * H * I) + 2 * B * S * S * H,
                  .score_multiply_adds = 2 * B * S * S * H,
                  .activations = z * (6 * e + 2 * T * K + 4 * T * I) + (is_fused ? 4 * a : z * a * S),
                  .output = z * e});
  }
  append_layer(workload, {.name = "head",
                          .parameters = hidden + vocabulary * hidden,
                          .multiply_adds = T * V * H,
                          .activations = 2 * z * e + 4 * T * V,
                          .output = z * T * V});
}

}  // namespace isobar
