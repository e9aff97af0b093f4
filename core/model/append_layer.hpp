#pragma once

#include "core/model/model_sizes.hpp"
#include "core/model/workload.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

namespace isobar {

/// Sizes of one generated layer, for one micro-batch. The layer's gradient is as large as `output`.
struct LayerSizes {
  std::string name;
  std::uint64_t parameters = 0;
  double multiply_adds = 0;
  /// The multiply_adds of products without parameters: the scores of attention and their use.
  double score_multiply_adds = 0;
  double activations = 0;  ///< bytes
  double output = 0;       ///< bytes
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
  if (!workload.layers.empty()) layer.inputs = {workload.layers.size() - 1};
  workload.layers.push_back(std::move(layer));
  return workload.layers.back();
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
