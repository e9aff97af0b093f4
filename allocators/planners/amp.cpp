#include "allocators/planners/amp.hpp"

#include "allocators/memory_fit.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/planners/grid_stages.hpp"
#include "allocators/planners/pipeline_cuts.hpp"
#include "allocators/planners/stage_estimates.hpp"
#include "allocators/search_clock.hpp"
#include "core/model/layer_graph.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <utility>

namespace isobar::allocators {

namespace {

struct Shape {
  std::size_t depth = 1;
  std::size_t replicas = 1;
  std::size_t shards = 1;
  ShardGrid grid = {};

  std::size_t devices_of_stage() const { return replicas * shards; }
};

/// AMP's costs of the stages of a shape. Layers are those of the chain.
class ShapeCosts {
 public:
  ShapeCosts(const Shape& shape, const HybridProblem& problem, const CostModel& cost, StageEstimates& estimates)
      : first_layer_(problem.view.first_layer), cost_(cost), layers_(estimates.layers(shape.shards, shape.grid))
  {
    std::vector<std::size_t> all(problem.cluster.devices.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    const std::size_t size = shape.devices_of_stage();
    const std::uint64_t own = problem.goal.microbatches / shape.replicas;
    for (std::size_t i = 0; i < shape.depth; ++i) {
      const std::span devices = std::span(all).subspan(i * size, size);
      StageOfShape stage;
      stage.speed = estimates.slowest(devices);
      stage.memory = estimates.least_memory(devices);
      stage.in_flight = estimates.in_flight(i * shape.replicas, (shape.depth - 1 - i) * shape.replicas, own);
      stage.of_shards = estimates.path_of_shards(devices, shape.shards);
      stage.of_replicas = estimates.path_of_replicas(devices, shape.shards);
      for (std::size_t replica = 0; i > 0 && replica < shape.replicas; ++replica) {
        Path there = estimates.path(devices[replica * shape.shards] - size, devices[replica * shape.shards]);
        Path back = estimates.path(devices[replica * shape.shards], devices[replica * shape.shards] - size);
        for (std::size_t shard = 1; shard < shape.shards; ++shard) {
          const std::size_t device = devices[replica * shape.shards + shard];
          there = slower_of(there, estimates.path(device - size, device));
          back = slower_of(back, estimates.path(device, device - size));
        }
        const double part = 1 / static_cast<double>(shape.replicas);
        stage.hop_latency += part * (there.latency + back.latency);
        stage.per_byte_there += part / there.bandwidth.value;
        stage.per_byte_back += part / back.bandwidth.value;
      }
      stages_.push_back(stage);
    }
  }

  Seconds time(std::size_t stage, std::size_t first, std::size_t last) const
  {
    const auto [begin, end] = layers_of(first, last);
    return layers_.work(begin, end) / stages_[stage].speed + layers_.collectives(begin, end, stages_[stage].of_shards);
  }

  bool fits(std::size_t stage, std::size_t first, std::size_t last) const
  {
    return memory(stage, first, last) <= stages_[stage].memory;
  }

  Seconds hop(std::size_t stage, std::size_t layer) const
  {
    const std::size_t cut = first_layer_[layer];
    const Bytes output = cost_.boundary_output(cut) * layers_.part_of_boundary();
    const Bytes gradient = cost_.boundary_gradient(cut) * layers_.part_of_boundary();
    const StageOfShape& to = stages_[stage];
    return to.hop_latency + Seconds(output.value * to.per_byte_there + gradient.value * to.per_byte_back);
  }

  Seconds sync(std::size_t stage, std::size_t first, std::size_t last, std::size_t replicas) const
  {
    const auto [begin, end] = layers_of(first, last);
    return ring_all_reduce(layers_.gradients(begin, end), replicas, stages_[stage].of_replicas);
  }

  Bytes least_memory(std::size_t stage) const { return stages_[stage].memory; }

  Bytes memory(std::size_t stage, std::size_t first, std::size_t last) const
  {
    const auto [begin, end] = layers_of(first, last);
    return layers_.memory(begin, end, stages_[stage].in_flight);
  }

 private:
  struct StageOfShape {
    FlopsPerSecond speed;
    Bytes memory;
    std::uint64_t in_flight = 1;
    Path of_shards;
    Path of_replicas;
    Seconds hop_latency;        // there and back
    double per_byte_there = 0;  // seconds
    double per_byte_back = 0;
  };

  std::pair<std::size_t, std::size_t> layers_of(std::size_t first, std::size_t last) const
  {
    return {first_layer_[first], first_layer_[last + 1] - 1};
  }

  const std::vector<std::size_t>& first_layer_;  // of the workload, by layer of the chain
  const CostModel& cost_;
  const ShardedLayers& layers_;
  std::vector<StageOfShape> stages_;
};

class AmpSearch {
 public:
  explicit AmpSearch(const HybridProblem& problem)
      : problem_(problem),
        schedule_(require_schedule_of_replicas(problem.goal, amp_allocator.name)),
        cost_(problem.workload, problem.cluster),
        chain_cost_(problem.view.workload, problem.cluster),
        estimates_(problem, cost_, schedule_),
        clock_(problem.limits)
  {
  }

  Proposals proposals()
  {
    Proposals proposals;
    for (const auto& shape : shapes()) {
      proposals.is_cut_short = !clock_.spend() || clock_.is_over();
      if (proposals.is_cut_short) break;
      add(shape);
    }
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.step < b.step; });
    if (candidates_.size() > most_proposals) candidates_.resize(most_proposals);
    for (const auto& candidate : candidates_) {
      auto plans = plans_of(candidate);
      std::move(plans.begin(), plans.end(), std::back_inserter(proposals.plans));
    }
    if (proposals.plans.empty()) proposals.reason = reason_of_none(proposals.is_cut_short);
    return proposals;
  }

 private:
  struct Candidate {
    Shape shape;
    std::vector<std::size_t> first_layer;  // of the chain, by stage
    Seconds step;                          // as AMP estimates it
  };

  /// Those of all devices, as far as they are not given and their layers can be divided.
  std::vector<Shape> shapes()
  {
    const auto& given = problem_.limits.grid;
    const std::size_t devices = problem_.cluster.devices.size();
    std::vector<Shape> all;
    for (const std::uint64_t depth : divisors_of(devices)) {
      if (given.pipeline && depth != *given.pipeline) continue;
      for (const std::uint64_t shards : divisors_of(devices / depth)) {
        const std::uint64_t replicas = devices / depth / shards;
        if (given.tensor ? shards != *given.tensor : shards > most_shards) continue;
        if (given.replicas && replicas != *given.replicas) continue;
        for (const auto& grid : shard_grids(given.splits, shards)) {
          const Shape shape{depth, replicas, shards, grid};
          if (const auto why_not = why_not_possible(shape)) {
            why_not_ = *why_not;
          } else {
            all.push_back(shape);
          }
        }
      }
    }
    return all;
  }

  std::optional<std::string> why_not_possible(const Shape& shape) const
  {
    if (problem_.goal.microbatches % shape.replicas != 0) {
      return fmt::format("{} do not divide {}", counted(shape.replicas, "replica"),
                         counted(problem_.goal.microbatches, "micro-batch", "es"));
    }
    if (shape.depth > chain_cost_.layers()) {
      return fmt::format("{} need as many layers that can be cut apart, and there are {}",
                         counted(shape.depth, "stage"), chain_cost_.layers());
    }
    if (shape.shards == 1) return std::nullopt;
    if (auto why_not = why_no_shards(problem_.workload, shape.shards, shape.grid)) return why_not;
    std::vector<std::size_t> devices(problem_.cluster.devices.size());
    std::iota(devices.begin(), devices.end(), std::size_t{0});
    if (!problem_.limits.grid.tensor && !share_sites(problem_.cluster, devices, shape.shards)) {
      return fmt::format("{} of a replica would lie in several sites", counted(shape.shards, "shard"));
    }
    return std::nullopt;
  }

  void add(const Shape& shape)
  {
    const ShapeCosts costs(shape, problem_, cost_, estimates_);
    const std::size_t layers = chain_cost_.layers();
    const auto cuts = cut_pipeline(costs, shape.depth, layers, problem_.goal.microbatches / shape.replicas);
    if (!cuts) {
      note_overfull(shape, costs);
      return;
    }
    Seconds sync;
    for (std::size_t stage = 0; stage < shape.depth; ++stage) {
      const std::size_t after = stage + 1 < shape.depth ? cuts->first_layer[stage + 1] : layers;
      sync = std::max(sync, costs.sync(stage, cuts->first_layer[stage], after - 1, shape.replicas));
    }
    candidates_.push_back({shape, cuts->first_layer, cuts->step + sync});
  }

  /// Keeps what the fullest stage of a shape lacks with even cuts, if no other shape lacks less.
  void note_overfull(const Shape& shape, const ShapeCosts& costs)
  {
    const std::size_t layers = chain_cost_.layers();
    Bytes excess;
    std::string text;
    for (std::size_t stage = 0; stage < shape.depth; ++stage) {
      const std::size_t first = stage * layers / shape.depth;
      const std::size_t last = (stage + 1) * layers / shape.depth - 1;
      const Bytes need = costs.memory(stage, first, last);
      const Bytes memory = costs.least_memory(stage);
      if (need - memory <= excess) continue;
      excess = need - memory;
      text = fmt::format("evenly cut, {} and a device there has {}", need_text(first, last, need), text_of(memory));
    }
    if (text.empty() || (least_excess_ && excess >= *least_excess_)) return;
    least_excess_ = excess;
    overfull_ = fmt::format("{} x {} x {}: {}", shape.depth, shape.replicas, shape.shards, text);
  }

  std::vector<Plan> plans_of(const Candidate& candidate) const
  {
    const auto& [shape, first_layer, step] = candidate;
    Plan plan;
    plan.goal = problem_.goal;
    if (shape.replicas > 1 && shape.shards > 1) plan.sync.bucket = gradient_bucket;
    std::vector<StagePlacement> stages;  // of the first replicas, over the chain
    for (std::size_t i = 0; i < shape.depth; ++i) {
      const std::size_t after = i + 1 < shape.depth ? first_layer[i + 1] : chain_cost_.layers();
      stages.push_back({i * shape.devices_of_stage(), first_layer[i], after - 1});
    }
    for (const auto& [device, first, last] : over_layers_of(problem_.view, stages)) {
      std::vector<std::size_t> devices(shape.devices_of_stage());
      std::iota(devices.begin(), devices.end(), device);
      const auto replicas = equal_replicas(devices, shape.shards, problem_.goal.microbatches);
      const auto of_stage = stages_on(cost_, first, last, replicas, shape.grid);
      plan.stages.insert(plan.stages.end(), of_stage.begin(), of_stage.end());
    }
    return with_warm_ups(std::move(plan), chain_cost_, stages, shape.replicas, shape.shards);
  }

  std::string reason_of_none(bool is_cut_short) const
  {
    if (is_cut_short) return "the limits ended the search before it found a plan";
    const std::string devices = counted(problem_.cluster.devices.size(), "device");
    if (!overfull_.empty()) return fmt::format("no grid of all {} fits in memory; {}", devices, overfull_);
    return fmt::format("there is no such grid of all {}: {}", devices,
                       why_not_.empty() ? "pipeline x replicas x shards are not as many" : why_not_);
  }

  const HybridProblem& problem_;
  const schedules::Schedule& schedule_;
  CostModel cost_;
  CostModel chain_cost_;
  StageEstimates estimates_;
  SearchClock clock_;
  std::vector<Candidate> candidates_;
  std::string why_not_;  // the last fault of a shape
  std::string overfull_;
  std::optional<Bytes> least_excess_;
};

}  // namespace

Proposals propose_by_amp(const HybridProblem& problem)
{
  return AmpSearch(problem).proposals();
}

}  // namespace isobar::allocators
