#pragma once

#include "exec/device/tensors.hpp"
#include "exec/model/sequence_part.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace isobar::exec {

/// How tokens attend to others.
struct BlockRules {
  double scale = 1;         ///< of the scores
  double cap = 0;           ///< scores are cap · tanh(score / cap); 0: as they are
  std::int64_t window = 0;  ///< a token sees itself and the window - 1 before it; 0: all
  std::int64_t chunk = 0;   ///< a token sees those of its own chunk of this many; 0: all
  bool is_fused = false;    ///< by a kernel that stores no scores
  double dropout = 0;       ///< of the probabilities
};

/// Causal attention of the queries of a part of each sequence over keys and values that come by parts, in any order.
/// What the parts give is added up by the logarithms of the sums of their exponentials (Liu et al., Ring Attention with
/// Blockwise Transformers, 2023; Dao et al., FlashAttention, 2022). Of each pair of chunks only scores of queries that
/// see a key are computed. Keeps no scores: the backward pass computes those of a pair again. On CPUs only.
///
/// Tensors are [samples, heads, tokens, width]; keys and values may have fewer heads.
class BlockAttention {
 public:
  /// @param sinks of each head, a score that takes part in its softmax alone; undefined: none
  /// @param kept which probabilities dropout keeps, bool [samples, heads, length, length]; undefined: all
  BlockAttention(const BlockRules& rules, const SequencePart& part, const at::Tensor& query, const at::Tensor& sinks,
                 const at::Tensor& kept);
  ~BlockAttention();
  BlockAttention(const BlockAttention&) = delete;
  BlockAttention& operator=(const BlockAttention&) = delete;

  /// Adds what the tokens of part `part` give. @throws EnvironmentError when LibTorch has no fused kernel.
  void add(const at::Tensor& keys, const at::Tensor& values, std::size_t part);
  /// The outputs, in the type of the queries. Once, after all parts.
  at::Tensor outputs();

  /// Begins the backward pass, after `outputs`, of the gradient of those.
  void begin_backward(const at::Tensor& gradient);
  /// The gradients of the keys and values of a part by these queries. Adds to those of the queries.
  std::pair<at::Tensor, at::Tensor> add_backward(const at::Tensor& keys, const at::Tensor& values, std::size_t part);
  /// In their type, after all parts.
  at::Tensor query_gradient() const;
  /// Float32, of each head; undefined without sinks.
  at::Tensor sink_gradient() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
