#include "core/check/checked_step.hpp"

#include "core/check/claims.hpp"

#include <algorithm>
#include <cmath>

namespace isobar {

double checked_step(const Plan& plan, const Workload& workload, const Cluster& cluster,
                    const std::vector<std::vector<StagePass>>& passes)
{
  constexpr double margin = 100;
  constexpr double most = 0.02;
  const double step = play_step(plan, workload, cluster, passes);
  if (!plan.predicted) return step;
  const double claimed = plan.predicted->step_time.value;
  if (agree(claimed, step)) return claimed;
  if (!(std::abs(claimed - step) <= most * step)) return step;  // also NaN
  double moved = 0;
  for (const double stretch : {1 - 4e-15, 1 + 4e-15, 1 + 8e-15}) {
    moved = std::max(moved, std::abs(play_step(plan, workload, cluster, passes, stretch) - step));
  }
  return std::abs(claimed - step) <= margin * moved ? claimed : step;
}

}  // namespace isobar
