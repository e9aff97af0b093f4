#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// What DT-FM's cost counts of a plan (docs/costs.md#dt-fms-cost).
struct DtFmFacts {
  std::size_t stages = 0;
  std::size_t replicas = 0;
  Bytes exchanged;  ///< gradients of the largest stage that two of its replicas exchange, each way
  Bytes passed;     ///< the largest transfer between stages, for all micro-batches of a replica
};

/// Why DT-FM's cost is not defined for the stages of a plan, as a fault; none if it is.
std::optional<std::string> fault_of_dtfm_stages(const Plan& plan);

/// For the plan checkers, by code of their own. The plan has stages without a fault. O(layers + edges).
DtFmFacts dtfm_facts(const Plan& plan, const Workload& workload);

/// The seconds in which a device exchanges its part of the gradients with another, there and back.
double exchange_s(const Path& path, const DtFmFacts& facts);
/// The seconds in which a replica's micro-batches pass to the next stage.
double pass_s(const Path& path, const DtFmFacts& facts);

/// DT-FM's cost of a plan whose stages have no fault, in seconds. O(devices · replicas + layers + edges).
double dtfm_cost(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar
