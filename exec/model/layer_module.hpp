#pragma once

#include "core/model/workload.hpp"
#include "core/plan/placed_shards.hpp"
#include "exec/device/tensors.hpp"
#include "exec/files/tensor_part.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/spmd/tensor_block.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

class DividedAttention;
class DividedExperts;

/// Key of a layer's random numbers. They depend on nothing else: not on the split of the model, on threads, or on
/// whether a forward pass is a recomputation. Dropout is drawn on the layer's device: a CPU, a GPU and a GPU of another
/// model draw different masks from the same key.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t microbatch = 0;
  bool drops = true;  ///< false in an evaluation: no dropout
};

/// One executable layer of a workload, with `Layer::parameters` parameters and outputs of `Layer::output` bytes.
///
/// That of a shard has its part of the parameters, and those that all shards share. It reads the whole inputs, and its
/// outputs are addends of the layer's: of what does not belong to the units, such as a residual connection, the first
/// shard adds all. A head computes its part of the logits, though. All shards draw the same random numbers as one
/// device would.
class LayerModule {
 public:
  LayerModule() = default;
  LayerModule(const LayerModule&) = delete;
  LayerModule& operator=(const LayerModule&) = delete;
  virtual ~LayerModule() = default;

  /// Computes the layer's outputs, in the workload's dtype, and records them for autograd.
  ///
  /// `inputs` are the previous layer's outputs; for the first layer, the inputs of a micro-batch
  /// (exec/model/batch.hpp). With dtype bf16 or fp16 the caller must have enabled autocast for the device, since
  /// parameters are float32. BERT's attention mask passes through as the same tensor, without a gradient. Batch
  /// normalisation counts every pass in its running statistics, including recomputed ones.
  virtual Tensors forward(const Tensors& inputs, const RandomKey& key) = 0;
  /// The parameters in a fixed order, always float32; autocast casts them to the workload's dtype.
  virtual const Tensors& parameters() const = 0;
  /// Names of the parameters within the layer, such as "query.weight", in the same order.
  virtual const std::vector<std::string>& parameter_names() const = 0;
  /// The elements of the whole parameters that they are, in the same order; of one that all shards share all.
  virtual const std::vector<TensorPart>& parameter_parts() const = 0;
  /// What the experts of this device are of a whole parameter, if devices divide its experts: parameter_parts() is then
  /// of theirs alone. Null of other parameters.
  virtual const TensorPart* part_of_experts(std::size_t /*parameter*/) const { return nullptr; }
  /// Those that a shard with these units would have.
  virtual std::vector<TensorPart> parts_of(const UnitRange& units) const = 0;
  /// Its experts, if devices may divide them; null otherwise.
  virtual const DividedExperts* experts() const { return nullptr; }
  /// Its attention, if devices may divide sequences; null otherwise.
  virtual const DividedAttention* attention() const { return nullptr; }
};

/// What a device has of a layer whose experts or sequences several divide.
struct DevicePart {
  std::size_t experts = 0;   ///< which part of its experts
  std::size_t sequence = 0;  ///< which part of each sequence
};

/// Makes the module of layer `layer` on `device` ("cpu", "cuda:0"), for some of its units: all, unless it has a split.
/// One with Layer::tied_to uses the first parameter of `tied`, the module of that layer, as its matrix. Without `tied`
/// it makes a matrix with the same values, which belongs to no layer's parameters. One with Layer::has_tied_copy has
/// the matrix as its last parameter, with these values and that name. Of a workload whose experts or sequences are
/// divided (with_experts, with_context), the module has `part` of them.
///
/// Its parameters depend on seed and layer only (drawn on the CPU, then moved), so every split of a model begins with
/// the same parameters. Does not use torch's global generators.
/// @throws InputError when the workload lists its layers instead of naming a model, is a moe of published operators, or
/// is a llama with heads of an odd width, which rotary positions cannot rotate.
std::unique_ptr<LayerModule> make_layer_module(const Workload& workload, std::size_t layer, std::uint64_t seed,
                                               const std::string& device, const UnitRange& units = {},
                                               const LayerModule* tied = nullptr, const DevicePart& part = {});

/// Makes the module of an operator of a workload whose layers are operators, on `device`. That of a parameter has
/// `held` of it, which may be empty, with the values that the layer's module of the same model by blocks draws; others
/// have no parameters. It computes nothing: operators are computed by their signatures (exec/spmd). O(operators).
std::unique_ptr<LayerModule> make_operator_module(const Workload& workload, std::size_t layer, std::uint64_t seed,
                                                  const std::string& device, const TensorBlock& held);
/// The layer that checkpoints name for the parameters of a layer: that of the model by blocks.
std::size_t layer_in_checkpoints(const Workload& workload, std::size_t layer);

/// The number of parameters of that module.
std::uint64_t parameters_of(const Layer& layer, const UnitRange& units);

/// Loads the parameters of layer `layer` into its module from a Hugging Face model of the workload's sizes
/// (exec/files/huggingface_weights.hpp). Reads no other layer's.
/// @returns the names of parameters that the model lacks and that keep their initial values: a new classifier's.
/// @throws InputError naming a tensor that is missing or has another shape or type.
std::vector<std::string> load_weights(const Workload& workload, std::size_t layer, const TensorSource& weights,
                                      LayerModule& module);

}  // namespace isobar::exec
