#pragma once

#include "core/model/model_sizes.hpp"
#include "core/model/workload.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace isobar {

/// Sizes of one generated layer, for one micro-batch. The layer's gradient is as large as `output`.
struct LayerSizes {
  std::string name;
  std::uint64_t parameters = 0;
  double multiply_adds = 0;
  /// The multiply_adds of products without parameters of the layer: the scores of attention and their use.
  double score_multiply_adds = 0;
  double activations = 0;  ///< bytes
  double output = 0;       ///< bytes
  std::optional<Split> split = {};
};

/// Appends a layer that reads the previous layer; the first one reads the data.
inline Layer& append_layer(Workload& workload, LayerSizes sizes)
{
  Layer layer;
  layer.name = std::move(sizes.name);
  layer.forward = Flops(2 * sizes.multiply_adds);
  layer.backward = 2 * layer.forward;
  layer.backward_weight = Flops(2 * (sizes.multiply_adds - sizes.score_multiply_adds));
  layer.parameters = sizes.parameters;
  layer.activations = Bytes(sizes.activations);
  layer.output = layer.gradient = Bytes(sizes.output);
  layer.split = std::move(sizes.split);
  if (!workload.layers.empty()) layer.inputs = {workload.layers.size() - 1};
  workload.layers.push_back(std::move(layer));
  return workload.layers.back();
}

/// How the head of a decoder divides its vocabulary. Of each token, the loss needs to know the logarithm of the sum of
/// a part's exponentials and the logit of its label, in float32.
inline Split split_of_head(std::uint64_t vocabulary, std::uint64_t hidden, double tokens, std::uint64_t norm_sums)
{
  constexpr double bytes_of_a_value = 4;
  return {.name = "vocabulary",
          .units = vocabulary,
          .parameters = vocabulary * hidden,
          .activations = Bytes(bytes_of_a_value * tokens * static_cast<double>(vocabulary)),
          .gathered = Bytes(2 * bytes_of_a_value * tokens),
          .products = {{hidden, vocabulary}},
          .norm_sums = norm_sums};
}

/// Appends the blocks of a decoder, each as one layer, "block0", or as two, "block0.attention" and "block0.mlp".
inline void append_blocks(Workload& workload, std::uint64_t blocks, Unit unit, const LayerSizes& attention,
                          const LayerSizes& feed_forward)
{
  LayerSizes both = feed_forward;
  both.parameters += attention.parameters;
  both.multiply_adds += attention.multiply_adds;
  both.score_multiply_adds += attention.score_multiply_adds;
  both.activations += attention.activations;
  both.split.reset();
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (unit == Unit::Block) {
      both.name = fmt::format("block{}", i);
      append_layer(workload, both);
      continue;
    }
    for (LayerSizes part : {attention, feed_forward}) {
      part.name = fmt::format("block{}.{}", i, part.name);
      append_layer(workload, std::move(part));
    }
  }
}

}  // namespace isobar
