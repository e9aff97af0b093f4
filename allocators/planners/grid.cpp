#include "allocators/planners/grid.hpp"

#include "allocators/plan_stages.hpp"
#include "allocators/planners/grid_stages.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/compute/as_trained.hpp"
#include "core/model/layer_graph.hpp"
#include "core/model/split_text.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr std::size_t most_slowest_speeds = 64;

using Form = ShardGrid::Form;

/// The degrees of a grid.
struct Degrees {
  std::uint64_t pipeline = 1;
  std::uint64_t replicas = 1;
  std::uint64_t tensor = 1;
  ShardGrid grid = {};  ///< of the shards

  auto operator<=>(const Degrees&) const = default;
};

/// How many layers the stages of a grid have.
enum class Cuts : std::uint8_t { Equal, Balanced };

class Grids {
 public:
  Grids(const HybridProblem& problem, Cuts cuts)
      : problem_(problem),
        cuts_(cuts),
        schedule_(require_schedule_of_replicas(problem.goal, grid_allocator.name)),
        cost_(problem.workload, problem.cluster),
        chain_cost_(problem.view.workload, problem.cluster)
  {
  }

  Proposals proposals()
  {
    for (const std::size_t devices : numbers_of_devices()) {
      const auto& given = problem_.limits.grid;
      const auto depths = given.pipeline ? std::vector{*given.pipeline} : divisors_of(devices);
      for (const std::uint64_t depth : depths) {
        for (const std::uint64_t tensor : numbers_of_shards(devices / depth)) {
          const std::uint64_t replicas =
              given.replicas ? *given.replicas * context().degree : most_replicas(devices / (depth * tensor));
          if (replicas == 0 && why_not_.empty()) why_not_ = why_no_groups();
          if (replicas == 0 || depth * replicas * tensor > devices) continue;
          if (replicas % experts().degree != 0) {
            why_not_ = fmt::format("{} are not groups of {} that divide experts", counted(replicas, "replica"),
                                   experts().degree);
            continue;
          }
          const auto grids = shard_grids(form(), tensor);
          if (grids.empty()) why_not_ = fmt::format("{} do not lie in such a grid", counted(tensor, "shard"));
          for (const auto& grid : grids) add({depth, replicas, tensor, grid});
        }
      }
    }
    if (proposals_.plans.empty()) proposals_.reason = reason_of_none();
    return std::move(proposals_);
  }

 private:
  /// All devices, and those that are left without the slowest speeds; of many speeds, some evenly apart.
  std::vector<std::size_t> numbers_of_devices() const
  {
    std::set<double> speeds;
    const std::size_t devices = problem_.cluster.devices.size();
    for (std::size_t device = 0; device < devices; ++device) speeds.insert(cost_.speed(device).value);
    std::vector<double> slowest_speeds(speeds.begin(), speeds.end());
    if (slowest_speeds.size() > most_slowest_speeds) {
      for (std::size_t i = 0; i < most_slowest_speeds; ++i) {
        slowest_speeds[i] = slowest_speeds[i * slowest_speeds.size() / most_slowest_speeds];
      }
      slowest_speeds.resize(most_slowest_speeds);
    }
    std::vector<std::size_t> numbers;
    for (const double slowest : slowest_speeds) {
      std::size_t number = 0;
      for (std::size_t device = 0; device < devices; ++device) number += cost_.speed(device).value >= slowest ? 1 : 0;
      numbers.push_back(number);
    }
    return numbers;
  }

  /// The numbers of shards to try where the replicas of a stage have this number of devices.
  std::vector<std::uint64_t> numbers_of_shards(std::uint64_t devices)
  {
    if (problem_.limits.grid.tensor) return {*problem_.limits.grid.tensor};
    std::vector<std::uint64_t> numbers;
    for (const std::uint64_t number : divisors_of(devices)) {
      bool is_possible = number == 1 && form() == Form::OneD;
      for (const auto& grid : shard_grids(form(), number)) {
        if (is_possible || number > most_shards) continue;
        const auto why_not = why_no_shards(problem_.workload, number, grid);
        if (why_not && form() != Form::OneD) why_not_ = *why_not;
        is_possible = !why_not;
      }
      if (is_possible) numbers.push_back(number);
    }
    return numbers;
  }

  ShardGrid::Form form() const { return problem_.limits.grid.splits; }
  const ContextParallelism& context() const { return problem_.workload.context; }
  const ExpertParallelism& experts() const { return problem_.workload.experts; }

  /// The largest divisor of the step's micro-batches that is at most `most` and makes whole groups of replicas that
  /// divide sequences or experts; 0 if there is none.
  std::uint64_t most_replicas(std::uint64_t most) const
  {
    const std::size_t group = replicas_that_meet(problem_.workload);
    for (std::uint64_t replicas = std::min(most, problem_.goal.microbatches); replicas > 0; --replicas) {
      if (problem_.goal.microbatches % replicas == 0 && replicas % group == 0) return replicas;
    }
    return 0;
  }

  std::string why_no_groups() const
  {
    return fmt::format("no number of replicas divides {} and makes groups of {}; change --microbatches",
                       counted(problem_.goal.microbatches, "micro-batch", "es"), replicas_that_meet(problem_.workload));
  }

  /// The fastest devices, the first ones of equally fast ones, in the order of the file.
  std::vector<std::size_t> fastest(std::size_t number) const
  {
    std::vector<std::size_t> devices(problem_.cluster.devices.size());
    std::iota(devices.begin(), devices.end(), std::size_t{0});
    std::stable_sort(devices.begin(), devices.end(),
                     [&](std::size_t a, std::size_t b) { return cost_.speed(a) > cost_.speed(b); });
    devices.resize(number);
    std::sort(devices.begin(), devices.end());
    return devices;
  }

  void add(const Degrees& degrees)
  {
    if (!seen_.insert(degrees).second) return;
    if (problem_.goal.microbatches % degrees.replicas != 0) {
      why_not_ = fmt::format("{} do not divide {}", counted(degrees.replicas, "replica"),
                             counted(problem_.goal.microbatches, "micro-batch", "es"));
      return;
    }
    if (const auto why_not =
            degrees.tensor > 1 ? why_no_shards(problem_.workload, degrees.tensor, degrees.grid) : std::nullopt) {
      why_not_ = *why_not;
      return;
    }
    if (const auto why_not = why_not_divided(problem_.workload, context(), degrees.tensor)) {
      why_not_ = *why_not;
      return;
    }
    if (const auto why_not = why_not_divided(problem_.workload, experts(), degrees.tensor)) {
      why_not_ = *why_not;
      return;
    }
    if (schedule_.folding == schedules::Folding::DividedEnds) {
      if (const auto why_not = why_no_divided_ends(degrees)) {
        why_not_ = *why_not;
      } else {
        add_divided_ends(degrees.pipeline, degrees.replicas);
      }
      return;
    }
    for (const std::size_t chunks : possible_parts(schedule_, problem_.goal.schedule)) {
      if (degrees.pipeline * chunks > chain_cost_.layers()) {
        why_not_ = fmt::format("{} need as many layers that can be cut apart, and there are {}",
                               counted(degrees.pipeline * chunks, "stage"), chain_cost_.layers());
        continue;
      }
      add(degrees, chunks);
    }
  }

  /// Why the devices of a pipeline cannot divide the first and the last layer and have a stage of the others each.
  std::optional<std::string> why_no_divided_ends(const Degrees& degrees) const
  {
    const Workload& workload = problem_.workload;
    if (degrees.pipeline == 1) return fmt::format("{} needs several devices in a pipeline", schedule_.name);
    if (degrees.tensor > 1 || has_exchanges(workload)) {
      return fmt::format("{} has one shard of the layers between, and divides no sequences and experts",
                         schedule_.name);
    }
    if (degrees.pipeline + 2 > chain_cost_.layers()) {
      return fmt::format("{} need as many layers that can be cut apart, and there are {}",
                         counted(degrees.pipeline + 2, "stage"), chain_cost_.layers());
    }
    for (const std::size_t index : {std::size_t{0}, workload.layers.size() - 1}) {
      const Layer& layer = workload.layers[index];
      if (layer.split && layer.split->units >= degrees.pipeline) continue;
      return fmt::format("{} cannot divide layer {} ({})", counted(degrees.pipeline, "device"), shown(layer.name),
                         layer.split ? units_in_words(workload, *layer.split) : why_whole(workload));
    }
    return std::nullopt;
  }

  void add_divided_ends(std::size_t depth, std::size_t replicas)
  {
    const auto devices = fastest(depth * replicas);
    const std::uint64_t taken = replicas == 1 ? 0 : problem_.goal.microbatches / replicas;
    std::vector<ReplicaPlacement> all(replicas, {taken, {}});
    std::vector<std::size_t> blocks(depth);
    std::iota(blocks.begin(), blocks.end(), std::size_t{0});
    for (std::size_t i = 0; i < devices.size(); ++i) all[i % replicas].devices.push_back(devices[i]);
    const std::size_t last = problem_.workload.layers.size() - 1;
    const std::size_t end = chain_cost_.layers() - 1;
    const auto ends =
        cuts_ == Cuts::Equal ? equal_cuts(depth, 1, end) : balanced_cuts(slowest_of(blocks, devices, depth), 1, end);
    Plan plan;
    plan.goal = problem_.goal;
    plan.stages = stages_on(cost_, 0, 0, all);
    std::size_t first = 1;
    for (std::size_t stage = 0; stage < depth; ++stage) {
      const auto own = equal_replicas(std::span(&devices[stage * replicas], replicas), 1, problem_.goal.microbatches);
      const auto layers = over_layers_of(problem_.view, {{devices[stage * replicas], first, ends[stage] - 1}}).front();
      const auto of_stage = stages_on(cost_, layers.first_layer, layers.last_layer, own);
      plan.stages.insert(plan.stages.end(), of_stage.begin(), of_stage.end());
      first = ends[stage];
    }
    const auto of_last = stages_on(cost_, last, last, all);
    plan.stages.insert(plan.stages.end(), of_last.begin(), of_last.end());
    std::vector<Algorithm> algorithms = {Algorithm::Ring};
    if (crosses_sites(plan)) algorithms.push_back(Algorithm::Hierarchical);
    for (const Algorithm algorithm : algorithms) {
      for (const Sharding sharded : {Sharding::None, Sharding::Optimizer}) {
        if (sharded != Sharding::None && replicas == 1) continue;
        if (sharded > compute::most_divided(problem_.workload)) continue;
        plan.sync = {algorithm, sharded};
        if (can_divide(problem_.workload, plan)) add_all({plan});
      }
    }
  }

  void add(const Degrees& degrees, std::size_t chunks)
  {
    const auto [depth, replicas, tensor, grid] = degrees;
    const auto devices = fastest(depth * replicas * tensor);
    const bool is_searched = !problem_.limits.grid.tensor;
    if (is_searched && tensor > 1 && !share_sites(problem_.cluster, devices, tensor)) return;
    const std::size_t count = depth * chunks;
    std::vector<std::size_t> blocks;  // of devices, by stage
    for (std::size_t stage = 0; stage < count; ++stage) {
      blocks.push_back(schedules::rank_of_stage(schedule_.folding, stage, depth));
    }
    const std::size_t layers = chain_cost_.layers();
    const auto ends = cuts_ == Cuts::Equal ? equal_cuts(count, 0, layers)
                                           : balanced_cuts(slowest_of(blocks, devices, depth), 0, layers);
    std::vector<StagePlacement> stages;  // of the first replicas, over the chain
    std::size_t first = 0;
    for (std::size_t stage = 0; stage < count; ++stage) {
      stages.push_back({devices[blocks[stage] * replicas * tensor], first, ends[stage] - 1});
      first = ends[stage];
    }
    Plan plan;
    plan.goal = problem_.goal;
    if (schedule_.takes(chunks_key)) plan.goal.schedule.numbers[chunks_key] = {chunks};
    const bool is_each_a_part = tensor > 1 || has_exchanges(problem_.workload);  // each layer
    const auto stages_in_parts = [&](std::size_t parts) {
      std::vector<Stage> all;
      for (std::size_t stage = 0; stage < count; ++stage) {
        const std::span of_stage(&devices[blocks[stage] * degrees.replicas * degrees.tensor],
                                 degrees.replicas * degrees.tensor);
        const std::size_t first = all.size();
        const auto placed = equal_replicas(of_stage, degrees.tensor, problem_.goal.microbatches);
        for (const auto& part : over_layers_of(problem_.view, parts_of(stages[stage], parts))) {
          const auto of_part = stages_on(cost_, part.first_layer, part.last_layer, placed, degrees.grid);
          all.insert(all.end(), of_part.begin(), of_part.end());
        }
        all[first].starts_chunk = is_each_a_part && stage > 0 && blocks[stage] == blocks[stage - 1];
      }
      return all;
    };
    plan.stages = stages_in_parts(1);
    std::vector<Algorithm> algorithms = {Algorithm::Ring};
    if (crosses_sites(plan)) algorithms.push_back(Algorithm::Hierarchical);
    // What replicas divide, and the parts of a stage. A whole stage holds all of its parameters and gradients at once,
    // also if replicas divide them.
    std::vector<std::pair<Sharding, std::size_t>> divisions = {{Sharding::None, 1}};
    if (replicas > 1) divisions.emplace_back(Sharding::Optimizer, 1);
    if (replicas > 1 && is_each_a_part) {
      divisions.emplace_back(Sharding::Parameters, 1);  // of stages whose every layer is a part
    } else if (replicas > 1 && schedule_.folding == schedules::Folding::OneEach) {
      divisions.emplace_back(Sharding::Optimizer, parts_of_divided_stage);
      divisions.emplace_back(Sharding::Parameters, parts_of_divided_stage);
    }
    for (const Algorithm algorithm : algorithms) {
      for (const auto& [sharded, parts] : divisions) {
        if (sharded > compute::most_divided(problem_.workload)) continue;
        plan.sync = {algorithm, sharded};
        plan.stages = stages_in_parts(parts);
        plan.experts = experts();
        if (can_divide(problem_.workload, plan)) add_all(with_warm_ups(plan, chain_cost_, stages, replicas, tensor));
      }
      if (replicas == 1 || !is_each_a_part) continue;
      plan.sync = {algorithm, Sharding::None, gradient_bucket};  // of layers, each of which is a part
      add_all(with_warm_ups(plan, chain_cost_, stages, replicas, tensor));
    }
  }

  /// Where each of `count` stages of equally many of these layers ends, one more the first ones.
  static std::vector<std::size_t> equal_cuts(std::size_t count, std::size_t first, std::size_t end)
  {
    std::vector<std::size_t> ends;
    const std::size_t layers = end - first;
    for (std::size_t stage = 0; stage < count; ++stage) {
      ends.push_back((stage == 0 ? first : ends.back()) + layers / count + (stage < layers % count ? 1 : 0));
    }
    return ends;
  }

  /// By stage, the slowest device of its block.
  std::vector<std::size_t> slowest_of(const std::vector<std::size_t>& blocks, const std::vector<std::size_t>& devices,
                                      std::size_t depth) const
  {
    const std::size_t size = devices.size() / depth;
    std::vector<std::size_t> slowest;
    for (const std::size_t block : blocks) {
      const auto begin = devices.begin() + static_cast<std::ptrdiff_t>(block * size);
      slowest.push_back(*std::min_element(begin, begin + static_cast<std::ptrdiff_t>(size),
                                          [&](auto a, auto b) { return chain_cost_.speed(a) < chain_cost_.speed(b); }));
    }
    return slowest;
  }

  /// Where each stage of these layers ends such that the longest time of a stage on its device is least, and each has a
  /// layer.
  std::vector<std::size_t> balanced_cuts(const std::vector<std::size_t>& device_of_stage, std::size_t first,
                                         std::size_t last_end) const
  {
    const std::size_t count = device_of_stage.size();
    constexpr Seconds never(std::numeric_limits<double>::infinity());
    // By stage and its end: the longest time of a stage so far, and where this one begins.
    std::vector<std::vector<std::pair<Seconds, std::size_t>>> best(count, {last_end + 1, {never, first}});
    for (std::size_t stage = 0; stage < count; ++stage) {
      for (std::size_t end = first + stage + 1; end + (count - stage - 1) <= last_end; ++end) {
        for (std::size_t begin = first + stage; begin < end; ++begin) {
          if (stage == 0 && begin > first) break;
          const Seconds before = stage == 0 ? Seconds(0) : best[stage - 1][begin].first;
          const Seconds longest = std::max(before, chain_cost_.compute_time(device_of_stage[stage], begin, end - 1));
          if (longest < best[stage][end].first) best[stage][end] = {longest, begin};
        }
      }
    }
    std::vector<std::size_t> ends(count);
    std::size_t end = last_end;
    for (std::size_t stage = count; stage-- > 0;) {
      ends[stage] = end;
      end = best[stage][end].second;
    }
    return ends;
  }

  void add_all(std::vector<Plan> plans) { std::move(plans.begin(), plans.end(), std::back_inserter(proposals_.plans)); }

  std::string reason_of_none() const
  {
    const auto& given = problem_.limits.grid;
    std::string shape;
    if (given.pipeline) shape += fmt::format(" of {} in a pipeline", counted(*given.pipeline, "device"));
    if (given.replicas) shape += fmt::format(" with {}", counted(*given.replicas, "replica"));
    if (context().divides()) shape += fmt::format(" of sequences in {}", text_of(context()));
    if (experts().divides()) shape += fmt::format(" with experts in {}", text_of(experts()));
    if (given.tensor) shape += fmt::format(" of {}", counted(*given.tensor, "shard"));
    if (form() != Form::OneD) shape += fmt::format(" in {}", name_of(form()));
    return fmt::format("there is no grid{} on {}{}", shape, counted(problem_.cluster.devices.size(), "device"),
                       why_not_.empty() ? "" : ": " + why_not_);
  }

  const HybridProblem& problem_;
  Cuts cuts_;
  const schedules::Schedule& schedule_;
  CostModel cost_;
  CostModel chain_cost_;
  Proposals proposals_;
  std::set<Degrees> seen_;
  std::string why_not_;  // the last fault of a shape
};

}  // namespace

Proposals propose_grids(const HybridProblem& problem)
{
  return Grids(problem, Cuts::Equal).proposals();
}

Proposals propose_balanced_grids(const HybridProblem& problem)
{
  return Grids(problem, Cuts::Balanced).proposals();
}

}  // namespace isobar::allocators
