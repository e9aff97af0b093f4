#pragma once

#include "core/model/framework.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/workload.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace isobar::compute {

/// A layer of bert, gpt, llama or decoder as operators. Numbers are of the whole layer; shards divide heads, `inner`
/// and the vocabulary.
struct TransformerLayer {
  /// A product of each token's (or sample's) numbers with parameters.
  struct Linear {
    double rows = 0;
    double inputs = 0;
    double outputs = 0;
    bool divides_inputs = false;  ///< shards divide the inputs; otherwise the outputs
    bool has_bias = true;
    bool is_divided = true;     ///< false: each shard computes all of it
    double products = 1;        ///< equal ones, each of `rows`
    bool is_grouped = false;    ///< they are of experts, each with a matrix of its own, and run in one kernel
    bool is_quantized = true;   ///< a recipe of 8 or 4 bits is for it
    bool shares_input = false;  ///< others keep its input in the workload's dtype
    std::optional<BlockOperator> of = {};  ///< the operator of a block of which it is a part
  };

  double tokens = 0;
  double hidden = 0;
  std::vector<Linear> linears = {};
  // Attention
  Attention attention = Attention::Unfused;
  double scores = 0;      ///< of all heads; 0: none
  double seen = 1;        ///< the part of them that a fused kernel computes
  double heads = 0;       ///< that have scores
  double width = 0;       ///< of a head: the mean of its query's and its value's
  double kept_heads = 0;  ///< numbers of a token in queries, keys, values and the weighted sum
  bool is_causal = false;
  double rotated = 0;  ///< numbers of a token that rotary positions turn
  /// Work beside attention on scores and products with parameters, which shards divide: a delta net's and Mamba-2's
  /// recurrence and convolution, an indexer's scores, streams mixed with
  /// streams. It runs at the rate of fused attention.
  Flops recurrence = {};
  // Memory-bound
  double norms = 0;         ///< of `hidden` numbers of each token
  double normed_heads = 0;  ///< numbers of a token in norms that shards divide
  double residuals = 0;
  double streams = 1;        ///< of `hidden` numbers, of which the residual consists
  double connections = 0;    ///< hyper-connections, which read and write all streams
  double inner = 0;          ///< numbers of a token between the products of a feed-forward network
  double shared_inner = 0;   ///< of `inner`, those of shared experts
  bool is_gated = false;     ///< of two such vectors, one gates the other
  double routed = 0;         ///< numbers of a token that are copied to its experts, and back
  double looked_up = 0;      ///< parameters of the tables of an embedding
  double divided_table = 0;  ///< of `looked_up`
  double vocabulary = 0;     ///< of a head
  bool has_tied_head = false;
  double host_share = 1;  ///< of the kernels of a block
};

/// @throws InputError when no generator of bert, gpt, llama or decoder made the layers.
TransformerLayer transformer_layer(const Workload& workload, std::size_t layer, std::size_t shards,
                                   const Framework& framework);

/// The layers that make up the block of a layer, the layer among them; itself alone outside of blocks.
struct BlockOfLayers {
  std::size_t first = 0;
  std::size_t last = 0;
};
BlockOfLayers block_of(const Workload& workload, std::size_t layer);

/// The last layer of each block of a gpt, llama or decoder, without those of multi-token prediction; none of others.
std::vector<std::size_t> ends_of_blocks(const Workload& workload);

/// Whether a layer computes its activations again in the backward pass.
bool is_recomputed(const Workload& workload, std::size_t layer);

/// Operators of a block that a layer computes; none outside of the blocks of a gpt, llama or decoder.
BlockOperators operators_of(const Workload& workload, std::size_t layer);
/// Those of the block of a layer that run again in the backward pass, where the layer itself is not recomputed.
BlockOperators recomputed_operators(const Workload& workload, std::size_t layer);

}  // namespace isobar::compute
