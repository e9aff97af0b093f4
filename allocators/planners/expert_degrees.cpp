#include "allocators/planners/expert_degrees.hpp"

#include "core/model/sharding.hpp"

namespace isobar::allocators {

std::vector<std::size_t> expert_degrees(const Workload& workload, const Cluster& cluster, const Goal& goal)
{
  std::vector<std::size_t> degrees = {1};
  if (workload.experts.divides()) return degrees;
  for (std::size_t degree = 2; degree <= cluster.devices.size() && degree <= goal.microbatches; ++degree) {
    if (goal.microbatches % degree == 0 && !why_not_divided(workload, ExpertParallelism{degree}, 1)) {
      degrees.push_back(degree);
    }
  }
  return degrees;
}

}  // namespace isobar::allocators
