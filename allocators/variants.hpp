#pragma once

#include "allocators/allocator.hpp"
#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// How a workload may be trained, beside where its layers are. A search over plans plans for each.
struct Variant {
  ContextParallelism context = {};
  ExpertParallelism experts = {};
  bool recomputes_all = false;     ///< the layers that `all_recomputed` names
  std::uint64_t microbatches = 1;  ///< of a step, or their parts
};

/// The variants that the limits of a search leave open for an allocator (null: an external program), the workload as it
/// is first. GridShape::any_context leaves open every exchange and number of parts of sequences that devices and model
/// allow. GridShape::experts, where it is not given, leaves open every divisor of the number of experts and of the
/// step's parts of micro-batches. SearchLimits::chooses_recomputation leaves open none and all. What the workload has
/// already divided stays. None has more parts than a step may have micro-batches. Where passes overlap while tokens are
/// on their way (overlap_experts_key), those that cannot are left out. O(layers x devices squared).
/// @throws InputError if none is left (fault_of_overlap).
std::vector<Variant> variants_of(const Allocator* allocator, const Workload& workload, const Cluster& cluster,
                                 const Goal& goal, const SearchLimits& limits);

/// A workload so trained.
Workload as_variant(const Workload& workload, const Variant& variant);

}  // namespace isobar::allocators
