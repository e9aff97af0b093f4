#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/spmd/division.hpp"
#include "core/spmd/operator_graph.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// The operators of a workload whose layers are operators (`unit: operator` of a moe); none of any other one.
std::optional<spmd::OperatorGraph> operator_graph_of(const Workload& workload);

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
  std::vector<double> shares;  ///< by rank
};

/// What is wrong with the stages of a plan that divides operators: each a line that begins with "stages[0]".
std::vector<std::string> faults_of_operators(const Plan& plan, const Workload& workload);
/// The division of a plan without such faults.
OperatorPlan operator_plan_of(const Plan& plan, const Workload& workload);

/// The stages of a plan in which `shards` divide the operators of a graph: one for each part.
std::vector<Stage> stages_of(const spmd::OperatorGraph& graph, const spmd::Division& division,
                             const std::vector<Shard>& shards);

}  // namespace isobar
