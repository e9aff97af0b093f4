#pragma once

#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::allocators {

/// Converts a placement of a chain to the layers of the workload that it views.
std::vector<StagePlacement> over_layers_of(const ChainView& view, std::vector<StagePlacement> stages);

/// Converts a placement of the workload to the layers of the chain. @throws InputError at `place` for cuts that the
/// chain lacks: "… ends before layer 3, where `why_no_cut`".
std::vector<StagePlacement> over_chain_of(
    const ChainView& view, std::vector<StagePlacement> stages, const std::string& place,
    const std::string& why_no_cut = "more than one tensor crosses; cut stages only where one tensor crosses");

/// The layers of the chain, ascending, that are nearest to those of the workload where stages begin, the first at 0, so
/// that each stage has a layer; none if there are more stages than layers of the chain.
std::optional<std::vector<std::size_t>> nearest_cuts(const ChainView& view,
                                                     const std::vector<std::size_t>& first_layers);

/// Divides the layers of a stage as evenly as whole ones allow, into at most `count` parts.
std::vector<StagePlacement> parts_of(const StagePlacement& stage, std::size_t count);

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
