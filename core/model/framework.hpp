#pragma once

#include "core/model/dtype.hpp"
#include "core/plan/sharding.hpp"
#include "core/units.hpp"

#include <string>
#include <vector>

namespace isobar::compute {

/// Bytes that memory-bound operators move per element, in each pass.
struct BytesPerElement {
  double forward = 0;
  double backward = 0;
};

/// Bytes per parameter that training holds between steps.
struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;  ///< the optimizer's state, with the float32 master copy where it has one

  double all() const { return parameters + gradients + optimizer; }
};

/// Memory that a formula over the model does not give.
struct MemoryConstants {
  StateBytes state16 = {};  ///< of models in 16 bits
  StateBytes state32 = {};  ///< of models in float32
  double logit = 0;         ///< bytes per logit at the peak of the head: logits, a float32 copy, its gradient
  double activations = 1;   ///< allocated bytes per byte of activations that formulas give
  double reserved = 1;      ///< bytes that the allocator holds per allocated byte
  Bytes context = {};       ///< the device reports so much more: context, communication buffers, kernels, workspaces
};

/// Constants of training software.
struct Framework {
  std::string name;    ///< "megatron-lm-2021"
  std::string family;  ///< "megatron-lm": the name without its year or version
  // Host: the least time in which it issues the kernels of a block of a transformer, in eager mode.
  Seconds host_forward;
  Seconds host_backward;
  Seconds host_shards;  ///< more for each pass where shards divide the block
  // Memory-bound operators that depend on the software.
  bool has_causal_softmax = false;   ///< one kernel scales, masks and normalizes 16-bit scores of causal attention
  BytesPerElement logit;             ///< of a logit: casts, loss and its gradient
  double product_speed = 1;          ///< products run so much faster than ProductConstants say
  double attention_speed = 1;        ///< fused attention runs so much faster than DeviceConstants::fused_attention
  bool stops_recomputation = false;  ///< recomputation of a block ends before its last product, which no gradient needs
  double update = 0;                 ///< bytes that an update moves per parameter of the device
  bool pads_vocabulary = false;
  // Communication.
  unsigned recomputed_collectives = 0;   ///< collectives among shards that recomputation of a block repeats
  bool hides_shard_sums = false;         ///< all-reduces of inputs' gradients run beside products of weights' gradients
  bool hides_shard_collectives = false;  ///< all collectives among shards run beside the products around them
  bool blocking_transfers = false;       ///< computation waits for transfers between stages
  /// A device receives nothing while it computes or sends, as if receiving were its work.
  bool serial_transfers = false;
  Seconds pipeline_host = {};              ///< of the host for each micro-batch in a stage of a pipeline
  bool sliced_transfers = false;           ///< each shard sends its part of an activation; otherwise all of it
  bool overlaps_gradient_sums = false;     ///< without a pipeline, replicas add up gradients beside backward passes
  bool overlaps_in_pipelines = false;      ///< with a pipeline, too
  DType gradient_sums = DType::Float32;    ///< the type in which gradients of 16-bit models travel (others in float32)
  DType gathered = DType::Float32;         ///< the type in which divided parameters travel
  Sharding most_divided = Sharding::None;  ///< the most that replicas of its models can divide
  MemoryConstants memory;
  std::string source;  ///< where the constants come from
};

/// Constants for a name in a `framework` column or key.
struct FrameworkChoice {
  const Framework* framework = nullptr;  ///< lives as long as the program
  std::string note;                      ///< "", or one sentence: which constants stand for the name's
};
/// Finds the constants by name. An unknown year or version takes its family's latest, and a name that contains a
/// family, or a system that trains with one, that family's.
/// @throws InputError "framework NAME: is unknown; …" that lists the known names.
FrameworkChoice framework_named(const std::string& name);
/// The constants of exactly this name; null: it has none of its own.
const Framework* find_framework(const std::string& name);
/// All names with constants of their own, ascending.
std::vector<std::string> framework_names();

}  // namespace isobar::compute
