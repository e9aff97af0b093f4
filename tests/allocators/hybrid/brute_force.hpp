#pragma once

#include "allocators/plan_stages.hpp"
#include "allocators/played_plan.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

namespace isobar::testing_support {

/// Finds the plan with the least predicted step of all pipelines with a ring, whatever their devices, cuts, shares and
/// order: written without any bound, kind or symmetry.
class BruteForce {
 public:
  BruteForce(const Workload& workload, const Cluster& cluster, const Goal& goal)
      : workload_(workload), cluster_(cluster), goal_(goal), cost_(workload, cluster)
  {
  }

  /// Without an objective if no plan fits.
  Plan best()
  {
    add_pipeline(0);
    return best_;
  }

 private:
  struct Held {
    std::size_t device;
    std::size_t first;
    std::size_t last;
  };

  /// Adds pipelines whose first device has a higher number than that of the one before, so that each set comes once.
  void add_pipeline(std::size_t least_first)
  {
    if (!pipelines_.empty()) divide(0, goal_.microbatches);
    if (pipelines_.size() == goal_.microbatches) return;
    for (std::size_t device = least_first; device < cluster_.devices.size(); ++device) {
      if (used_.contains(device)) continue;
      pipelines_.emplace_back();
      extend(device, 0, device + 1);
      pipelines_.pop_back();
    }
  }

  void extend(std::size_t device, std::size_t first, std::size_t next_first)
  {
    used_.insert(device);
    for (std::size_t last = first; last < workload_.layers.size(); ++last) {
      pipelines_.back().push_back({device, first, last});
      if (last + 1 == workload_.layers.size()) {
        add_pipeline(next_first);
      } else {
        for (std::size_t other = 0; other < cluster_.devices.size(); ++other) {
          if (!used_.contains(other)) extend(other, last + 1, next_first);
        }
      }
      pipelines_.back().pop_back();
    }
    used_.erase(device);
  }

  void divide(std::size_t index, std::uint64_t left)
  {
    if (index + 1 == pipelines_.size()) {
      shares_.push_back(left);
      order_.resize(pipelines_.size());
      std::iota(order_.begin(), order_.end(), std::size_t{0});
      do {
        price();
      } while (std::next_permutation(order_.begin(), order_.end()));
      shares_.pop_back();
      return;
    }
    const std::uint64_t others = pipelines_.size() - 1 - index;
    for (std::uint64_t share = 1; share + others <= left; ++share) {
      shares_.push_back(share);
      divide(index + 1, left - share);
      shares_.pop_back();
    }
  }

  void price()
  {
    Plan plan;
    plan.goal = goal_;
    plan.data_server = cluster_.data_server;
    for (std::size_t layer = 0; layer < workload_.layers.size(); ++layer) {
      std::vector<Replica> replicas;
      bool begins = layer == 0;
      for (const std::size_t i : order_) {
        const auto holder = std::find_if(pipelines_[i].begin(), pipelines_[i].end(),
                                         [&](const Held& held) { return held.last >= layer; });
        begins = begins || holder->first == layer;
        replicas.push_back({pipelines_.size() == 1 ? 0 : shares_[i], {allocators::shard_on(cost_, holder->device)}});
      }
      if (begins) plan.stages.push_back({layer, layer, replicas});
      plan.stages.back().last_layer = layer;
    }
    if (allocators::price(plan, cost_)) return;
    if (!best_.objective || *plan.objective < *best_.objective) best_ = plan;
  }

  const Workload& workload_;
  const Cluster& cluster_;
  Goal goal_;
  CostModel cost_;
  std::set<std::size_t> used_;
  std::vector<std::vector<Held>> pipelines_;
  std::vector<std::uint64_t> shares_;
  std::vector<std::size_t> order_;  // of the pipelines, in the ring
  Plan best_;
};

}  // namespace isobar::testing_support
