#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/spmd/division.hpp"
#include "core/spmd/operator_graph.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// The operators of a workload whose layers are operators (`unit: operator` of a moe); none of any other one.
std::optional<spmd::OperatorGraph> operator_graph_of(const Workload& workload);
/// The same, of `samples` instead of a micro-batch. Operators have the work of the workload's layers, in proportion.
spmd::OperatorGraph operator_graph_of(const Workload& workload, std::uint64_t samples);

/// The rates of devices of a type (Workload::operator_rates); null: they compute by FLOPs alone.
const spmd::DeviceRates* operator_rates_of(const Workload& workload, const std::string& type);
/// The rates of a device: those of its type, at its speed in the workload's dtype; or that speed alone.
spmd::DeviceRates operator_rates_of(const Workload& workload, const Device& device);
/// Bytes that an update reads and writes for a parameter: reads the parameter, its gradient and the optimizer's state,
/// and writes all but the gradient. Of adam in float32 28, of sgd 12.
double bytes_of_update(const Workload& workload);

/// Whether the shards of a stage divide each of its layers by the signature that `splits` names for it, in their order.
bool divides_operators(const Stage& stage);
/// Whether all stages do: the parts of a division, on the same devices.
bool divides_operators(const Plan& plan);

/// How the devices of a plan divide operators: all that a Program, a checker and an executor derive from it.
struct OperatorPlan {
  spmd::OperatorGraph graph;
  spmd::Rules rules = spmd::Rules::Corrected;
  spmd::Division division;
  std::vector<spmd::PlacedReform> reforms;
  /// Reforms of replicated parameters whose gradients one AllReduce each adds up (Sync::bucket_ends), in the order in
  /// which backward makes them. None if replicas are not added up.
  std::vector<std::vector<std::size_t>> buckets = {};
  std::vector<double> shares;  ///< by rank
};

/// The reforms of replicated parameters, in the order in which backward makes their gradients: of a later part first,
/// in a part the later parameter first.
std::vector<std::size_t> replicas_in_backward(const spmd::OperatorGraph& graph,
                                              const std::vector<spmd::PlacedReform>& reforms);

/// What is wrong with the stages of a plan that divides operators, and with its sync: each a line that begins with
/// "stages[0]" or "sync".
std::vector<std::string> faults_of_operators(const Plan& plan, const Workload& workload);
/// The division of a plan without such faults.
OperatorPlan operator_plan_of(const Plan& plan, const Workload& workload);

/// The stages of a plan in which `shards` divide the operators of a graph: one for each part.
std::vector<Stage> stages_of(const spmd::OperatorGraph& graph, const spmd::Division& division,
                             const std::vector<Shard>& shards);

}  // namespace isobar
