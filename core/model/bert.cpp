#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

#include <fmt/format.h>

namespace isobar {

void build_bert(const BertSizes& sizes, Workload& workload)
{
  const auto& [encoders, hidden, heads, intermediate, vocabulary, positions, classes, attention] = sizes;
  const auto B = static_cast<double>(workload.micro_batch);
  const auto S = static_cast<double>(workload.sequence);
  const auto H = static_cast<double>(hidden);
  const auto I = static_cast<double>(intermediate);
  const auto C = static_cast<double>(classes);
  const double z = size_of(workload.dtype);
  const double T = B * S;
  const double e = T * H;
  const double a = B * static_cast<double>(heads) * S;
  const bool is_fused = attention == Attention::Fused;
  const Bytes mask(z * T);
  workload.input = Bytes(3 * 8 * T);

  auto append = [&](LayerSizes layer, double outputs, double inputs) -> Layer& {
    const double counted = 2 * outputs + 2 * static_cast<double>(layer.parameters) + inputs;
    auto& appended = append_layer(workload, std::move(layer));
    appended.sky_memory = Bytes(z * counted);
    return appended;
  };

  append({.name = "embedding",
          .parameters = (vocabulary + positions + 2) * hidden + 2 * hidden,
          .multiply_adds = 0,
          .activations = z * e + e + workload.input.value,
          .output = z * e},
         6 * e + T, 3 * T)
      .output += mask;
  for (std::uint64_t i = 0; i < encoders; ++i) {
    append({.name = fmt::format("encoder{}.attention", i),
            .parameters = 4 * (hidden * hidden + hidden) + 2 * hidden,
            .multiply_adds = 4 * T * H * H + 2 * B * S * S * H,
            .score_multiply_adds = 2 * B * S * S * H,
            .activations = z * 6 * e + e + (is_fused ? 4 * a : (2 * z + 1) * a * S),
            .output = z * e},
           10 * e + a * S + T, e + T)
        .output += mask;
    append({.name = fmt::format("encoder{}.up", i),
            .parameters = hidden * intermediate + intermediate,
            .multiply_adds = T * H * I,
            .activations = z * (e + T * I),
            .output = z * (T * I + e)},
           3 * T * I + e + T, e + T)
        .output += mask;
    append({.name = fmt::format("encoder{}.down", i),
            .parameters = intermediate * hidden + hidden + 2 * hidden,
            .multiply_adds = T * H * I,
            .activations = z * (T * I + e) + e,
            .output = z * e},
           5 * e + T, T * I + e + T)
        .output += mask;
  }
  append({.name = "pooler",
          .parameters = hidden * hidden + hidden,
          .multiply_adds = B * H * H,
          .activations = 2 * z * B * H,
          .output = z * B * H},
         2 * B * H, e + T);
  append({.name = "classifier",
          .parameters = classes * (hidden + 1),
          .multiply_adds = B * H * C,
          .activations = (z + 1) * B * H + z * B * C,
          .output = z * B * C},
         B * H + 2 * B * C, B * H);
}

}  // namespace isobar
