#pragma once

#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/plan.hpp"

#include <string>
#include <vector>

namespace isobar::allocators {

/// Converts a placement of a chain to the layers of the workload that it views.
std::vector<StagePlacement> over_layers_of(const ChainView& view, std::vector<StagePlacement> stages);

/// Converts a placement of the workload to the layers of the chain. @throws InputError at `place` for cuts that the
/// chain lacks.
std::vector<StagePlacement> over_chain_of(const ChainView& view, std::vector<StagePlacement> stages,
                                          const std::string& place);

/// The placement of a plan with a device for each stage.
std::vector<StagePlacement> placement_of(const Plan& plan, const Cluster& cluster);

/// A device as a plan has it, with what an executor needs to emulate it.
Shard shard_on(const CostModel& cost, std::size_t device);
/// The same with a known `reference_speed` of the cluster, which takes a look at all devices.
Shard shard_on(const CostModel& cost, std::size_t device, FlopsPerSecond reference);

/// The stages of a placement as a plan has them, with what an executor needs to emulate their devices. `cost` is of the
/// workload whose layers the placement numbers.
std::vector<Stage> plan_stages(const CostModel& cost, const std::vector<StagePlacement>& stages);

}  // namespace isobar::allocators
