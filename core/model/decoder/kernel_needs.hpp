#pragma once

#include "core/model/append_layer.hpp"
#include "core/model/decoder/decoder_sizes.hpp"
#include "core/model/workload.hpp"

#include <cstdint>

namespace isobar::decoder {

inline double number(std::uint64_t count)
{
  return static_cast<double>(count);
}

/// What the executor's kernels keep of a layer, and hold while one of its passes runs: LayerSizes::kept and passing.
struct KernelNeeds {
  double kept = 0;
  double passing = 0;
};

/// Grouped-query attention, with `activations` bytes of which `scores` are of the scores.
KernelNeeds needs_of_attention(const DecoderSizes& sizes, const Workload& workload, double activations, double scores);
/// A dense feed-forward network.
KernelNeeds needs_of_feed_forward(const DecoderSizes& sizes, const Workload& workload);
KernelNeeds needs_of_embedding(const DecoderSizes& sizes, const Workload& workload);
/// A head that gives logits for each of `predictions` next tokens.
KernelNeeds needs_of_head(const DecoderSizes& sizes, const Workload& workload, double predictions);
/// Other parts: `activations` bytes, `weights` in all, and the product with the most weights, which reads and gives so
/// many elements.
struct LargestProduct {
  double inputs = 0;
  double outputs = 0;
  double weights = 0;
};
KernelNeeds needs_of_products(const DecoderSizes& sizes, const Workload& workload, double activations, double weights,
                              const LargestProduct& largest);

}  // namespace isobar::decoder
