#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::allocators {

/// What training software takes of plans, for searches of such plans alone. Whatever else it takes, it has as many
/// replicas of each stage, with as many micro-batches each, and as many equal shards of each replica.
struct PlanRules {
  std::string software;                   ///< in messages
  std::vector<std::size_t> first_layers;  ///< where stages may begin, of the workload's layers, ascending
  /// What it does not take of a plan, a line each; none of a plan that it takes. Needs no claims of the plan.
  std::function<std::vector<std::string>(const Plan&, const Workload&, const Cluster&)> faults;
};

/// Tells which plans of a search software takes, and keeps what is wrong with the best of the others. Without rules it
/// takes all.
class RuleCheck {
 public:
  /// Keeps references to all of them.
  RuleCheck(const std::optional<PlanRules>& rules, const Workload& workload, const Cluster& cluster)
      : rules_(rules), workload_(workload), cluster_(cluster)
  {
  }

  /// Whether the software takes a plan with this predicted step or objective.
  bool takes(const Plan& plan, Seconds time);
  bool has_refused() const { return refused_ > 0; }
  /// What the refused plan with the least time has that the software does not take, for people; one was refused.
  std::string reason() const;

 private:
  const std::optional<PlanRules>& rules_;
  const Workload& workload_;
  const Cluster& cluster_;
  std::size_t refused_ = 0;
  Seconds least_time_;
  std::vector<std::string> faults_;  // of the plan with that time
};

/// "9 stages are more than the 8 that megatron can begin in this model".
std::string why_too_many_stages(const PlanRules& rules, std::size_t stages, std::size_t most);

}  // namespace isobar::allocators
