#include "core/model/append_layer.hpp"
#include "core/model/models.hpp"

#include <fmt/format.h>

#include <algorithm>

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
  const KernelMemory kernels(workload);
  const double squares = H * H;
  const double dropped = kernels.mask(e);
  const double norm = 4 * e + dropped + moments * T;  // its input in float32, and the dropout's mask before it
  workload.input = Bytes(3 * token * T);

  auto append = [&](LayerSizes layer, double outputs, double inputs) -> Layer& {
    const double counted = 2 * outputs + 2 * static_cast<double>(layer.parameters) + inputs;
    auto& appended = append_layer(workload, std::move(layer));
    appended.sky_memory = Bytes(z * counted);
    return appended;
  };

  const LayerSizes embedding = {
      .name = "embedding",
      .parameters = (vocabulary + positions + 2) * hidden + 2 * hidden,
      .multiply_adds = 0,
      .activations = z * e + e + workload.input.value,
      .output = z * e,
      .kept = norm + workload.input.value + token * S,
      .passing = std::max({z * e - dropped + 4 * H * (S + static_cast<double>(std::max(vocabulary, positions))),
                           kernels.mask(4 * z * e), 8 * e + kernels.cast(e) + 4 * S * H}) +
                 5 * token * T};
  append(embedding, 6 * e + T, 3 * T).output += mask;
  const bool is_recomputed = attention == Attention::Recomputed;
  const double all_probabilities = z * a * S + kernels.mask((z + 1) * a * S);
  const double probabilities = is_fused ? 4 * a : is_recomputed ? 0 : all_probabilities;
  const double scores = is_fused ? 4 * z * e + kernels.fused_attention()
                                 : std::max(2 * z * a * S - z * e, (kernels.casts() ? 7 : 4) * z * e);
  const double output_weights = z * e + 4 * (squares + H) + kernels.cast(squares / 2) + kernels.mask((z - 1) * e);
  for (std::uint64_t i = 0; i < encoders; ++i) {
    append({.name = fmt::format("encoder{}.attention", i),
            .parameters = 4 * (hidden * hidden + hidden) + 2 * hidden,
            .multiply_adds = 4 * T * H * H + 2 * B * S * S * H,
            .score_multiply_adds = 2 * B * S * S * H,
            .recomputed_multiply_adds = is_recomputed ? 2 * B * S * S * H : 0,
            .activations = z * 6 * e + e +
                           (is_fused        ? 4 * a
                            : is_recomputed ? 0
                                            : (2 * z + 1) * a * S),
            .output = z * e,
            .kept = z * 5 * e + norm + probabilities + mask.value + kernels.cast(4 * squares),
            .passing = std::max(scores, output_weights) + (is_recomputed ? all_probabilities : 0) + 3 * token * T},
           10 * e + a * S + T, e + T)
        .output += mask;
    append({.name = fmt::format("encoder{}.up", i),
            .parameters = hidden * intermediate + intermediate,
            .multiply_adds = T * H * I,
            .activations = z * (e + T * I),
            .output = z * (T * I + e),
            .kept = z * (e + T * I) + kernels.cast(H * I),
            .passing = std::max(z * (2 * T * I - e) + kernels.cast(H * I + 2 * e),
                                z * T * I + 4 * (H * I + I) + kernels.cast(e)) +
                       mask.value},
           3 * T * I + e + T, e + T)
        .output += mask;
    append({.name = fmt::format("encoder{}.down", i),
            .parameters = intermediate * hidden + hidden + 2 * hidden,
            .multiply_adds = T * H * I,
            .activations = z * (T * I + e) + e,
            .output = z * e,
            .kept = z * (T * I + e) + norm + kernels.cast(H * I),
            .passing = std::max({z * e + 4 * (H * I + H) + kernels.cast(H * I + e) - dropped,
                                 kernels.mask(3 * z * e) - z * T * I, kernels.in_float32(2 * (e + T)) - z * T * I})},
           5 * e + T, T * I + e + T)
        .output += mask;
  }
  append({.name = "pooler",
          .parameters = hidden * hidden + hidden,
          .multiply_adds = B * H * H,
          .activations = 2 * z * B * H,
          .output = z * B * H,
          .kept = z * 2 * B * H + mask.value + kernels.cast(squares),
          .passing = std::max(z * e, 4 * squares + kernels.cast(squares / 2)) + 4 * z * B * H},
         2 * B * H, e + T);
  append({.name = "classifier",
          .parameters = classes * (hidden + 1),
          .multiply_adds = B * H * C,
          .activations = (z + 1) * B * H + z * B * C,
          .output = z * B * C,
          .kept = z * B * H + kernels.mask((z + 1) * B * H) + 4 * B * C + kernels.cast(C * (H + 1)),
          .passing = z * B * H + 4 * C * (H + 1) + 4 * token * (B + 1) * C},
         B * H + 2 * B * C, B * H);
  count_in_each_pass(workload, embedding);
}

}  // namespace isobar
