#pragma once

#include "core/model/append_layer.hpp"
#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/decoder/decoder_sizes.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/workload.hpp"

#include <cstdint>
#include <vector>

/// What the parts of a decoder's block keep from their forward pass until their backward pass
/// (docs/costs.md#activations-of-decoders), and what the executor's kernels need beside that.
namespace isobar::decoder {

inline double number(std::uint64_t count)
{
  return static_cast<double>(count);
}

/// Without its hyper-connection.
std::vector<BlockTensor> kept_by_mixer(const DecoderSizes& sizes, Mixer mixer, const Workload& workload);
std::vector<BlockTensor> kept_by_feed_forward(const DecoderSizes& sizes, FeedForward network, const Workload& workload);
/// Bytes of scores, or of what a fused kernel keeps in their place.
double kept_scores(const DecoderSizes& sizes, Mixer mixer, const Workload& workload);
/// Bytes that a hyper-connection keeps.
double kept_by_connection(const HyperConnection& connection, const Workload& workload);

/// Bytes on each of equal shards, `repeated` and a part of `divided`.
struct KeptBytes {
  double repeated = 0;
  double divided = 0;

  double all() const { return repeated + divided; }
};
KeptBytes bytes_of(const std::vector<BlockTensor>& tensors);

/// What a block, or its part, keeps. Tensors that nothing in it makes come from elsewhere, or are made by what does not
/// run again.
std::vector<BlockTensor> kept_by_layer(const DecoderSizes& sizes, const DecoderLayer& layer, const Workload& workload);

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
