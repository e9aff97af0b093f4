#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/placed_shards.hpp"
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
/// Whether all stages do: the parts of a division.
bool divides_operators(const Plan& plan);

/// Neighbouring parts on the same devices. Its ranks are numbered by replica and by the position in it.
struct OperatorGroup {
  std::size_t first_part = 0;
  std::size_t end_part = 0;  ///< after the last one
  std::size_t first_rank = 0;
  std::vector<double> shares;            ///< of the devices of each replica, by position
  std::vector<std::size_t> passes = {};  ///< the tensors that it makes and the next group reads, ascending

  std::size_t rank_of(std::size_t replica, std::size_t position) const
  {
    return first_rank + replica * shares.size() + position;
  }
};

/// Where a rank is among the devices that divide operators.
struct OperatorPlace {
  std::size_t group = 0;
  std::size_t replica = 0;
  std::size_t position = 0;  ///< in the replica
};

/// How the devices of a plan divide operators: all that a Program, a checker and an executor derive from it.
///
/// Each of `replicas` takes as many samples of every micro-batch, in order: of B samples, replica r takes those from
/// r · B / replicas on. `graph` is for the samples of one replica, and all others are for each of them alike.
struct OperatorPlan {
  spmd::OperatorGraph graph;
  spmd::Rules rules = spmd::Rules::Corrected;
  spmd::Division division;
  std::vector<spmd::PlacedReform> reforms;
  /// Reforms of replicated parameters whose gradients one AllReduce each adds up (Sync::bucket_ends), in the order in
  /// which backward makes them. None if replicas are not added up.
  std::vector<std::vector<std::size_t>> buckets = {};
  std::size_t replicas = 1;           ///< of each group
  std::vector<OperatorGroup> groups;  ///< in the order of their parts

  std::size_t ranks() const { return groups.back().rank_of(replicas, 0); }
  std::size_t group_of(std::size_t part) const;  ///< its number
  /// The form in which an operator makes a tensor.
  spmd::Form form_of(std::size_t tensor) const;
  OperatorPlace place_of(std::size_t rank) const;
};

/// The reforms of replicated parameters, in the order in which backward makes their gradients: of a later part first,
/// in a part the later parameter first.
std::vector<std::size_t> replicas_in_backward(const spmd::OperatorGraph& graph,
                                              const std::vector<spmd::PlacedReform>& reforms);

/// What is wrong with the devices of stages that divide operators, without their workload; none if nothing is.
std::optional<StageFault> fault_of_dividing_devices(const std::vector<Stage>& stages);
/// What is wrong with the stages of a plan that divides operators, and with its sync: each a line that begins with
/// the place in a file, such as "stages[0]" or "sync".
std::vector<std::string> faults_of_operators(const Plan& plan, const Workload& workload);
/// The division of a plan without such faults.
OperatorPlan operator_plan_of(const Plan& plan, const Workload& workload);

/// The devices of a group: those of each replica, which have the same shares.
struct GroupDevices {
  std::size_t end_part = 0;  ///< the part after its last one
  std::vector<std::vector<Shard>> replicas;
};

/// The stages of a plan in which groups of devices divide the operators of a graph: one for each part.
std::vector<Stage> stages_of(const spmd::OperatorGraph& graph, const spmd::Division& division,
                             const std::vector<GroupDevices>& groups);
/// The same, of one group without replicas.
std::vector<Stage> stages_of(const spmd::OperatorGraph& graph, const spmd::Division& division,
                             const std::vector<Shard>& shards);

}  // namespace isobar
