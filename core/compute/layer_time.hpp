#pragma once

#include "core/compute/device_constants.hpp"
#include "core/compute/operator_table.hpp"
#include "core/model/framework.hpp"
#include "core/model/workload.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>

namespace isobar::compute {

/// Of the shorter of two operators that run together, as of gathers beside products, this part is hidden
/// (results/fidelity/operators).
inline constexpr double hidden_part = 0.8;

/// What one pass of a micro-batch takes, by the resource that it needs.
struct PassTime {
  Seconds products;      ///< with parameters
  Seconds attention;     ///< fused, or the batched products and operators on scores of unfused attention
  Seconds memory_bound;  ///< all other operators
  Seconds starts;        ///< between kernels
  /// What the host adds where it takes longer to issue the kernels of a block, forward and backward, than the device
  /// does to run them: it issues those of one pass while the device runs the one before.
  Seconds launch;

  Seconds device() const { return products + attention + memory_bound + starts; }
  Seconds total() const { return device() + launch; }
};
struct LayerTime {
  PassTime forward;
  PassTime backward;        ///< with recomputation
  Seconds backward_weight;  ///< of `backward`: the gradients of parameters
  /// How much less a pass takes than its time and its collectives together, where the framework runs collectives among
  /// shards beside products or those of experts beside their layer, and where keys and values go around a ring beside
  /// attention.
  Seconds hidden_forward;
  Seconds hidden_backward;
};

/// How equal shards divide a layer (tensor parallelism).
struct LayerDivision {
  std::size_t shards = 1;
  bool divides_sequence = false;  ///< also what each shard would repeat (sequence parallelism)
  /// Time that the device spends in collectives among the shards during a pass, while the host issues more kernels.
  Seconds forward_collectives = {};
  Seconds backward_collectives = {};
  /// Likewise in what devices that divide sequences exchange for the block's attention, which a ring hides.
  Seconds forward_exchange = {};
  Seconds backward_exchange = {};
  /// Time in which tokens go to the layer's experts and back during a pass. The host waits for their numbers.
  Seconds forward_dispatch = {};
  Seconds backward_dispatch = {};
};

/// Time of one micro-batch of the workload in a layer, on one of the shards, without communication. Backward includes
/// the recomputation for which the workload asks (Workload::recompute, Attention::Recomputed). `table` replaces the
/// device's constants for what it has, if it was measured in the workload's dtype. O(1); O(products) with a table.
/// @throws InputError when no generator of bert, gpt, llama or decoder made the layers, the table has another dtype, or
/// the device lacks the products of the workload's recipe.
LayerTime layer_time(const Workload& workload, std::size_t layer, const DeviceConstants& device,
                     const Framework& framework, const LayerDivision& division = {},
                     const OperatorTable* table = nullptr);

/// The most that a ring of `context` hides of a layer's attention, in each pass; nothing for other exchanges.
struct HiddenAttention {
  Seconds forward;
  Seconds backward;
};
HiddenAttention most_hidden_attention(const Workload& workload, const LayerTime& time);

/// Time of the optimizer's update of the parameters that a device updates.
Seconds update_time(double parameters_of_device, const DeviceConstants& device, const Framework& framework);
/// Time in which a shard makes the copies of its weights that a recipe of products reads, once a step; none without
/// one.
/// @throws InputError as layer_time does.
Seconds weight_copy_time(const Workload& workload, std::size_t layer, std::size_t shards, const DeviceConstants& device,
                         const Framework& framework);
/// Time in which a device zeroes and clips the gradients that it holds, once a step.
Seconds gradient_time(double parameters_of_device, const DeviceConstants& device, const Framework& framework);

/// Least bytes that an operator moves per number of 16 bits, and in proportion of wider ones, as the workload has it:
/// with dropout, of a gated feed-forward network, and of scores with mask and softmax in kernels of their own. The
/// rates of an OperatorTable are over these.
BytesPerElement least_bytes(BoundOperator which, const Workload& workload);

/// What a product of experts reads of its matrix, or writes of its gradient, which is in float32. The time adds to that
/// of the product: their rows are too few to hide it (results/fidelity/operators/grouped_products.csv).
Bytes bytes_of_matrix(double parameters, ProductLayout layout, DType dtype);

/// The next multiple of 128 x shards.
std::uint64_t padded_vocabulary(std::uint64_t vocabulary, std::size_t shards);

/// Parameters of a layer on one of the shards, with the vocabulary that the framework pads. A head that uses the
/// embedding's matrix has none of its own. @throws InputError as layer_time does.
double parameters_of_shard(const Workload& workload, std::size_t layer, std::size_t shards, const Framework& framework);

}  // namespace isobar::compute
