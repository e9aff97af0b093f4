#include "allocators/planners/metis.hpp"

#include "allocators/memory_fit.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/planners/grid_stages.hpp"
#include "allocators/planners/metis_groups.hpp"
#include "allocators/planners/stage_estimates.hpp"
#include "allocators/schedule_numbers.hpp"
#include "allocators/search_clock.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::size_t most_types = 4;
// Of all numbers of stages together:
constexpr std::size_t most_rows = 20'000;
constexpr std::size_t most_strategies = 200'000;
constexpr int most_cuts = 3;     // for one strategy
constexpr double caution = 0.9;  // what a full stage keeps of the layers for which it has room

/// Devices in classes of like ones, in the order of the file.
std::vector<std::vector<std::size_t>> types_of(const CostModel& cost)
{
  using Kind = std::pair<FlopsPerSecond, Bytes>;  // speed and memory
  std::map<Kind, std::vector<std::size_t>, std::greater<>> by_kind;
  for (std::size_t device = 0; device < cost.devices(); ++device) {
    by_kind[{cost.speed(device), cost.cluster().devices[device].memory}].push_back(device);
  }
  const std::size_t classes = std::min(by_kind.size(), most_types);
  const bool is_class_each = by_kind.size() == classes;
  std::vector<std::vector<std::size_t>> types(classes);
  std::size_t index = 0;
  std::size_t before = 0;  // devices
  for (const auto& [kind, devices] : by_kind) {
    auto& type = types[is_class_each ? index++ : before * classes / cost.devices()];
    type.insert(type.end(), devices.begin(), devices.end());
    before += devices.size();
  }
  std::erase_if(types, [](const auto& type) { return type.empty(); });
  return types;
}

/// Where a group stands in a row of devices, and how many shards its replicas have.
struct GroupKey {
  std::size_t row = 0;
  std::size_t begin = 0;
  std::size_t size = 1;
  std::size_t shards = 1;

  auto operator<=>(const GroupKey&) const = default;
  std::size_t replicas() const { return size / shards; }
};

/// What a group computes in a step of all micro-batches.
struct Group {
  GroupKey key;
  const ShardedLayers* layers = nullptr;
  double capacity = 0;           ///< steps per second, if it had all layers
  double seconds_per_flop = 0;   ///< of a micro-batch's work, times those of the replica that takes longest
  double most_microbatches = 0;  ///< of a replica
  std::size_t replicas = 1;      ///< that take any
  FlopsPerSecond slowest;
  Path of_shards;
  Path of_replicas;
  /// The different numbers of micro-batches of replicas, with the least memory of a device.
  std::vector<std::pair<std::uint64_t, Bytes>> held;
};

class MetisSearch {
 public:
  explicit MetisSearch(const HybridProblem& problem)
      : problem_(problem),
        schedule_(require_schedule_of_replicas(problem.goal, metis_allocator.name)),
        cost_(problem.workload, problem.cluster),
        chain_cost_(problem.view.workload, problem.cluster),
        estimates_(problem, cost_, schedule_),
        clock_(problem.limits)
  {
    if (problem.limits.grid.splits != ShardGrid::Form::OneD) {
      throw InputError("splits", fmt::format("{} needs as many shards in all stages; allocator {} divides layers in 1d",
                                             name_of(problem.limits.grid.splits), metis_allocator.name));
    }
    auto types = types_of(cost_);
    std::vector<std::size_t> order(types.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    do {
      auto& row = rows_.emplace_back();
      for (const std::size_t type : order) row.insert(row.end(), types[type].begin(), types[type].end());
    } while (std::next_permutation(order.begin(), order.end()));
  }

  Proposals proposals()
  {
    const auto& given = problem_.limits.grid;
    const std::size_t devices = problem_.cluster.devices.size();
    const std::size_t most_stages = std::min(devices, chain_cost_.layers());
    const std::size_t first = given.pipeline.value_or(1);
    const std::size_t last = given.pipeline.value_or(most_stages);
    if (first < 1 || last > most_stages) {
      why_not_ = fmt::format("{} need as many devices, and layers that can be cut apart, and there are {} and {}",
                             counted(last, "stage"), devices, chain_cost_.layers());
      return finish();
    }
    const std::size_t most_groups = std::max<std::size_t>(1, most_rows / rows_.size() / (last - first + 1));
    std::size_t left = most_strategies;
    try {
      for (std::size_t stages = first; stages <= last; ++stages) {
        const std::size_t share = left / (last - stages + 1);
        strategies_left_ = share;
        for (const auto& sizes : group_sizes(devices, stages, most_groups)) {
          for (std::size_t row = 0; row < rows_.size(); ++row) try_strategies(row, sizes);
        }
        left -= share - strategies_left_;
      }
    } catch (const OutOfLimits&) {
      is_cut_short_ = true;
    }
    return finish();
  }

 private:
  struct Candidate {
    std::vector<const Group*> groups;      // by stage
    std::vector<std::size_t> first_layer;  // of the chain, by stage
    Seconds step;                          // as Metis estimates it
  };

  /// Tries groups of these sizes in a row with fewer and fewer replicas of more shards, until memory does not force the
  /// layers.
  void try_strategies(std::size_t row, const std::vector<std::size_t>& sizes)
  {
    const auto& given = problem_.limits.grid;
    const std::uint64_t most_replicas =
        std::min(given.replicas.value_or(problem_.goal.microbatches), problem_.goal.microbatches);
    std::vector<const Group*> groups;
    std::size_t begin = 0;
    for (const std::size_t size : sizes) {
      GroupKey key{row, begin, size, given.tensor.value_or(1)};
      while (!given.tensor && key.replicas() > most_replicas) key.shards *= 2;
      if (!is_possible(key)) return;
      groups.push_back(&group_of(key));
      begin += size;
    }
    for (;;) {
      if (strategies_left_ == 0) return;
      --strategies_left_;
      clock_.spend_or_leave();
      clock_.leave_if_over();
      const auto layers = try_layers(groups);
      if (layers.attempts == 1) return;
      if (!divide_one(groups, layers.use)) return;
    }
  }

  /// Gives a stage half its replicas of twice the shards: the fullest one, or if no layers fit, the one with most
  /// replicas; if it cannot, the next one. False if none can.
  bool divide_one(std::vector<const Group*>& groups, const std::vector<double>& use)
  {
    const auto rank = [&](std::size_t i) {
      return use.empty() ? static_cast<double>(groups[i]->key.replicas()) : use[i];
    };
    std::vector<std::size_t> stages(groups.size());
    std::iota(stages.begin(), stages.end(), std::size_t{0});
    std::stable_sort(stages.begin(), stages.end(), [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
    for (const std::size_t stage : stages) {
      GroupKey key = groups[stage]->key;
      if (problem_.limits.grid.tensor || key.replicas() == 1) continue;
      key.shards *= 2;
      if (!is_possible(key)) continue;
      groups[stage] = &group_of(key);
      return true;
    }
    return false;
  }

  /// Whether a group can have these replicas; notes why not.
  bool is_possible(const GroupKey& key)
  {
    auto why_not = why_not_possible(key);
    if (why_not) why_not_ = std::move(*why_not);
    return !why_not;
  }

  std::optional<std::string> why_not_possible(const GroupKey& key)
  {
    const auto& given = problem_.limits.grid;
    if (key.size % key.shards != 0) {
      return fmt::format("groups are of powers of two, which {} do not divide", counted(key.shards, "shard"));
    }
    if (key.replicas() > problem_.goal.microbatches) {
      return fmt::format("{} of a stage need as many micro-batches, and the step has {}",
                         counted(key.replicas(), "replica"), problem_.goal.microbatches);
    }
    if (given.replicas && key.replicas() != *given.replicas) {
      return fmt::format("no groups have {} each", counted(*given.replicas, "replica"));
    }
    return key.shards > 1 ? why_no_shards_in(key) : std::nullopt;
  }

  std::optional<std::string> why_no_shards_in(const GroupKey& group)
  {
    const bool is_given = problem_.limits.grid.tensor.has_value();
    if (group.shards > most_shards && !is_given) {
      return fmt::format("{} are more than {}", counted(group.shards, "shard"), most_shards);
    }
    const auto [entry, is_new] = why_no_shards_.try_emplace(group.shards);
    if (is_new) entry->second = why_no_shards(problem_.workload, group.shards, ShardGrid());
    if (entry->second) return entry->second;
    if (!is_given && !share_sites(problem_.cluster, devices_of(group), group.shards)) {
      return fmt::format("{} of a replica would lie in several sites", counted(group.shards, "shard"));
    }
    return std::nullopt;
  }

  std::span<const std::size_t> devices_of(const GroupKey& key) const
  {
    return std::span(rows_[key.row]).subspan(key.begin, key.size);
  }

  /// Divides the micro-batches of a step among replicas by their speed; what is left goes to the largest remainders.
  /// Replicas without any are left out.
  std::vector<ReplicaPlacement> replicas_of(const GroupKey& key)
  {
    const auto devices = devices_of(key);
    std::vector<double> speed;
    std::vector<ReplicaPlacement> replicas;
    for (std::size_t i = 0; i < devices.size(); i += key.shards) {
      const auto own = devices.subspan(i, key.shards);
      speed.push_back(estimates_.slowest(own).value);
      replicas.push_back({0, {own.begin(), own.end()}});
    }
    const double all = std::accumulate(speed.begin(), speed.end(), 0.0);
    std::uint64_t left = problem_.goal.microbatches;
    std::vector<std::pair<double, std::size_t>> remainders;  // negative, to begin with the largest and the first
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      const double ideal = static_cast<double>(problem_.goal.microbatches) * speed[i] / all;
      replicas[i].microbatches = std::min(static_cast<std::uint64_t>(ideal), left);
      left -= replicas[i].microbatches;
      remainders.emplace_back(static_cast<double>(replicas[i].microbatches) - ideal, i);
    }
    std::sort(remainders.begin(), remainders.end());
    for (std::size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) {
      ++replicas[remainders[i].second].microbatches;
    }
    std::erase_if(replicas, [](const ReplicaPlacement& replica) { return replica.microbatches == 0; });
    return replicas;
  }

  const Group& group_of(const GroupKey& key)
  {
    const auto [entry, is_new] = groups_.try_emplace(key);
    Group& group = entry->second;
    if (!is_new) return group;
    std::vector<std::size_t> devices;
    const auto replicas = replicas_of(key);
    for (const auto& replica : replicas) {
      const auto count = static_cast<double>(replica.microbatches);
      group.seconds_per_flop = std::max(group.seconds_per_flop, count / estimates_.slowest(replica.devices).value);
      group.most_microbatches = std::max(group.most_microbatches, count);
      group.held.emplace_back(replica.microbatches, estimates_.least_memory(replica.devices));
      devices.insert(devices.end(), replica.devices.begin(), replica.devices.end());
    }
    std::sort(group.held.begin(), group.held.end());
    group.held.erase(std::unique(group.held.begin(), group.held.end(),
                                 [](const auto& a, const auto& b) { return a.first == b.first; }),
                     group.held.end());
    group.key = key;
    group.layers = &estimates_.layers(key.shards);
    group.replicas = replicas.size();
    group.slowest = estimates_.slowest(devices);
    group.of_shards = estimates_.path_of_shards(devices, key.shards);
    group.of_replicas = estimates_.path_of_replicas(devices, key.shards);
    group.capacity = 1 / std::max(time_of(group, 0, chain_cost_.layers() - 1).value, 1e-300);
    return group;
  }

  /// What a stage takes for all micro-batches of the step.
  Seconds time_of(const Group& group, std::size_t first, std::size_t last) const
  {
    const auto [begin, end] = layers_of(first, last);
    return Seconds(group.seconds_per_flop * group.layers->work(begin, end).value) +
           group.most_microbatches * group.layers->collectives(begin, end, group.of_shards);
  }

  struct LayersTried {
    int attempts = 0;         ///< until layers fitted; 0 if they did not
    std::vector<double> use;  ///< then the part of its memory that each stage needs
  };

  /// Cuts the layers for stages with these groups, first by capacity alone, and keeps the candidate if they fit.
  LayersTried try_layers(const std::vector<const Group*>& groups)
  {
    std::vector<double> capacity;
    for (const Group* group : groups) capacity.push_back(group->capacity);
    for (int attempt = 1; attempt <= most_cuts; ++attempt) {
      const auto first_layer = cut_by(capacity);
      auto use = memory_use(groups, first_layer);
      if (std::all_of(use.begin(), use.end(), [](double part) { return part <= 1; })) {
        keep({groups, first_layer, estimate(groups, first_layer)});
        return {attempt, std::move(use)};
      }
      if (!shift_capacity(capacity, use)) break;
    }
    return {};
  }

  std::size_t end_of(const std::vector<std::size_t>& first_layer, std::size_t stage) const
  {
    return stage + 1 < first_layer.size() ? first_layer[stage + 1] : chain_cost_.layers();
  }

  double work(std::size_t first, std::size_t end) const
  {
    return first == end ? 0
                        : (chain_cost_.forward_work(first, end - 1) + chain_cost_.backward_work(first, end - 1)).value;
  }

  /// The first layers of stages, whose work is nearly in proportion to their capacities: each cut where the work before
  /// it is nearest to the capacity before it, then moved while that shortens the longer of its two stages.
  std::vector<std::size_t> cut_by(const std::vector<double>& capacity) const
  {
    const std::size_t stages = capacity.size();
    const std::size_t layers = chain_cost_.layers();
    const double per_capacity = work(0, layers) / std::accumulate(capacity.begin(), capacity.end(), 0.0);
    std::vector<std::size_t> cuts(stages + 1, 0);
    cuts.back() = layers;
    double before = 0;
    for (std::size_t i = 1; i < stages; ++i) {
      before += capacity[i - 1] * per_capacity;
      std::size_t low = cuts[i - 1] + 1;
      std::size_t high = layers - (stages - i);
      while (low < high) {
        const std::size_t middle = (low + high) / 2;
        if (work(0, middle) + work(0, middle + 1) < 2 * before) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      cuts[i] = low;
    }
    const auto longer = [&](std::size_t cut, std::size_t at) {
      return std::max(work(cuts[cut - 1], at) / capacity[cut - 1], work(at, cuts[cut + 1]) / capacity[cut]);
    };
    for (bool is_moved = true; is_moved;) {
      is_moved = false;
      for (std::size_t cut = 1; cut < stages; ++cut) {
        for (const std::size_t to : {cuts[cut] - 1, cuts[cut] + 1}) {
          if (to <= cuts[cut - 1] || to >= cuts[cut + 1] || longer(cut, to) >= longer(cut, cuts[cut])) continue;
          cuts[cut] = to;
          is_moved = true;
          break;
        }
      }
    }
    cuts.pop_back();
    return cuts;
  }

  /// The part of the memory of its fullest device that each stage needs. Notes the stage that exceeds it most, if no
  /// other candidate exceeds one less.
  std::vector<double> memory_use(const std::vector<const Group*>& groups, const std::vector<std::size_t>& first_layer)
  {
    std::size_t after = 0;
    for (const Group* group : groups) after += group->replicas;
    std::vector<double> use;
    struct {
      std::size_t stage = 0;
      Bytes need, memory;
      Bytes excess() const { return need - memory; }
    } worst;
    std::size_t before = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      after -= groups[i]->replicas;
      const auto [begin, end] = layers_of(first_layer[i], end_of(first_layer, i) - 1);
      double most = 0;
      for (const auto& [own, memory] : groups[i]->held) {
        const Bytes need = groups[i]->layers->memory(begin, end, estimates_.in_flight(before, after, own));
        most = std::max(most, need / memory);
        if (need - memory > worst.excess()) worst = {i, need, memory};
      }
      use.push_back(most);
      before += groups[i]->replicas;
    }
    if (worst.excess() > Bytes(0) && (!least_excess_ || worst.excess() < *least_excess_)) {
      least_excess_ = worst.excess();
      overfull_ = fmt::format("{}: {} and a device there has {}", counted(groups.size(), "stage"),
                              need_text(first_layer[worst.stage], end_of(first_layer, worst.stage) - 1, worst.need),
                              text_of(worst.memory));
    }
    return use;
  }

  /// Takes capacity from stages without room and gives it to the others in proportion, up to what their memory holds.
  /// False if that is too little.
  static bool shift_capacity(std::vector<double>& capacity, const std::vector<double>& use)
  {
    std::vector<double> room(capacity.size(), 0);  // for more capacity
    double missing = 0;
    for (std::size_t i = 0; i < capacity.size(); ++i) {
      if (use[i] <= 1) {
        room[i] = capacity[i] / std::max(use[i], 1e-3) - capacity[i];
      } else {
        missing += capacity[i] * (1 - caution / use[i]);
      }
    }
    if (std::accumulate(room.begin(), room.end(), 0.0) < missing) return false;
    double receiving = 0;
    for (std::size_t i = 0; i < capacity.size(); ++i) receiving += use[i] <= 1 ? capacity[i] : 0;
    for (std::size_t i = 0; i < capacity.size(); ++i) {
      capacity[i] = use[i] <= 1 ? capacity[i] + std::min(room[i], missing * capacity[i] / receiving)
                                : capacity[i] * caution / use[i];
    }
    return true;
  }

  Seconds estimate(const std::vector<const Group*>& groups, const std::vector<std::size_t>& first_layer) const
  {
    std::size_t round = 1;  // micro-batches
    for (const Group* group : groups) round = std::max(round, group->replicas);
    const double rounds = static_cast<double>(problem_.goal.microbatches) / static_cast<double>(round);
    Seconds longest, all, hops, sync, update;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::size_t last = end_of(first_layer, i) - 1;
      const auto [begin, end] = layers_of(first_layer[i], last);
      const ShardedLayers& layers = *groups[i]->layers;
      const Seconds time = time_of(*groups[i], first_layer[i], last) / rounds;
      longest = std::max(longest, time);
      all += time;
      if (i > 0) hops += hop(groups[i - 1]->key, groups[i]->key, begin);
      sync = std::max(sync, ring_all_reduce(layers.gradients(begin, end), groups[i]->replicas, groups[i]->of_replicas));
      update = std::max(update, layers.update_work(begin, end) / groups[i]->slowest);
    }
    return (rounds - 1) * longest + all + hops + sync + update;
  }

  /// The transfers of a micro-batch over the cut before a layer, there and back, over the slowest link between
  /// replicas.
  Seconds hop(const GroupKey& from, const GroupKey& to, std::size_t layer) const
  {
    const auto senders = devices_of(from);
    const auto receivers = devices_of(to);
    Path there = estimates_.path(senders.front(), receivers.front());
    Path back = estimates_.path(receivers.front(), senders.front());
    for (std::size_t i = 1; i < std::max(from.replicas(), to.replicas()); ++i) {
      const std::size_t sender = senders[i % from.replicas() * from.shards];
      const std::size_t receiver = receivers[i % to.replicas() * to.shards];
      there = slower_of(there, estimates_.path(sender, receiver));
      back = slower_of(back, estimates_.path(receiver, sender));
    }
    return there.transfer_time(cost_.boundary_output(layer)) + back.transfer_time(cost_.boundary_gradient(layer));
  }

  /// Keeps the best candidates in the order of their estimates; of equal ones the first.
  void keep(Candidate candidate)
  {
    const auto after = std::upper_bound(candidates_.begin(), candidates_.end(), candidate,
                                        [](const Candidate& a, const Candidate& b) { return a.step < b.step; });
    candidates_.insert(after, std::move(candidate));
    if (candidates_.size() > most_proposals) candidates_.pop_back();
  }

  Proposals finish()
  {
    Proposals proposals;
    proposals.is_cut_short = is_cut_short_;
    for (const auto& candidate : candidates_) proposals.plans.push_back(plan_of(candidate));
    if (proposals.plans.empty()) {
      const std::string devices = counted(problem_.cluster.devices.size(), "device");
      proposals.reason = is_cut_short_ ? "the limits ended the search before it found a plan"
                         : !overfull_.empty()
                             ? fmt::format("no pipeline of all {} fits in memory; {}", devices, overfull_)
                             : fmt::format("there is no such pipeline of all {}: {}", devices, why_not_);
    }
    return proposals;
  }

  Plan plan_of(const Candidate& candidate)
  {
    Plan plan;
    plan.goal = problem_.goal;
    auto& numbers = plan.goal.schedule.numbers;
    if (const auto open = numbers.find(warm_up_key); open != numbers.end() && open->second.empty()) numbers.erase(open);
    for (std::size_t i = 0; i < candidate.groups.size(); ++i) {
      auto replicas = replicas_of(candidate.groups[i]->key);
      if (replicas.size() == 1) replicas.front().microbatches = 0;
      if (replicas.size() > 1 && candidate.groups[i]->key.shards > 1) plan.sync.bucket = gradient_bucket;
      const auto [first, last] = layers_of(candidate.first_layer[i], end_of(candidate.first_layer, i) - 1);
      const auto stages = stages_on(cost_, first, last, replicas);
      plan.stages.insert(plan.stages.end(), stages.begin(), stages.end());
    }
    return plan;
  }

  std::pair<std::size_t, std::size_t> layers_of(std::size_t first, std::size_t last) const
  {
    return {problem_.view.first_layer[first], problem_.view.first_layer[last + 1] - 1};
  }

  const HybridProblem& problem_;
  const schedules::Schedule& schedule_;
  CostModel cost_;
  CostModel chain_cost_;
  StageEstimates estimates_;
  SearchClock clock_;
  std::size_t strategies_left_ = 0;             // for a number of stages
  std::vector<std::vector<std::size_t>> rows_;  // of devices, by order of the types
  std::map<GroupKey, Group> groups_;
  std::map<std::size_t, std::optional<std::string>> why_no_shards_;  // by shards
  std::vector<Candidate> candidates_;                                // the best ones, the best first
  bool is_cut_short_ = false;
  std::string why_not_;  // the last fault of a shape
  std::string overfull_;
  std::optional<Bytes> least_excess_;
};

}  // namespace

Proposals propose_by_metis(const HybridProblem& problem)
{
  return MetisSearch(problem).proposals();
}

}  // namespace isobar::allocators
