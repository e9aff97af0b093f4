#pragma once

#include "core/plan/placed_shards.hpp"
#include "exec/device/tensors.hpp"
#include "exec/model/block_attention.hpp"
#include "exec/model/layer_module.hpp"

#include <cstddef>
#include <cstdint>

namespace isobar::exec {

/// What attention computes of each token before it compares them, by number: [samples, heads, tokens, width]. Keys and
/// values may have fewer heads.
struct ProjectedTokens {
  enum Number : std::size_t {
    Query,
    Keys,
    Values,
    Gate  ///< of the outputs, [samples, tokens, width of all heads]; undefined without one
  };
  Tensors tensors;
};

/// What a layer computes before, by and after the comparison of tokens, where devices divide sequences. In turn they
/// are its forward pass.
class DividedAttention {
 public:
  DividedAttention() = default;
  DividedAttention(const DividedAttention&) = delete;
  DividedAttention& operator=(const DividedAttention&) = delete;
  virtual ~DividedAttention() = default;

  /// Of the part's tokens.
  virtual ProjectedTokens project(const at::Tensor& residual) const = 0;
  /// Attention over whole sequences, in order, by a part of the heads of the layer, or of its shard.
  virtual at::Tensor attend(const ProjectedTokens& tokens, const UnitRange& heads, const RandomKey& key) const = 0;
  /// How the part's queries attend to blocks of keys.
  virtual BlockRules rules() const = 0;
  /// The scores of the heads that take part in their softmax alone; undefined without any.
  virtual at::Tensor sinks() const = 0;
  /// Which probabilities dropout keeps, bool [samples, heads, length, length] of whole sequences; undefined: all.
  virtual at::Tensor kept(const at::Tensor& query, const RandomKey& key) const = 0;
  /// The layer's output, of what attention gives for the part's tokens, [samples, heads, tokens, width].
  virtual at::Tensor finish(const at::Tensor& heads, const at::Tensor& gate, const at::Tensor& residual,
                            const RandomKey& key) const = 0;
};

}  // namespace isobar::exec
