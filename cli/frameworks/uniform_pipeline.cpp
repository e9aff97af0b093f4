#include "cli/frameworks/uniform_pipeline.hpp"

#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace isobar::cli {

namespace {

class Uniformity {
 public:
  Uniformity(const Plan& plan, const std::string& software, std::vector<std::string>& faults)
      : plan_(plan), software_(software), faults_(faults), numbers_(numbers_in_file(plan))
  {
  }

  UniformPipeline pipeline()
  {
    const auto chain = schedules::stages_of_pipeline(plan_);
    const std::size_t faults_before = faults_.size();
    const Stage& model = plan_.stages.front();
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) check(i);
    if (plan_.samples) {
      refuse("samples", fmt::format("a step of {} samples, so that micro-batches are not full", *plan_.samples),
             "fills all micro-batches of a step");
    }
    UniformPipeline made;
    made.shards = model.replicas.front().shards.size();
    made.context = plan_.context.degree;
    made.replicas = model.replicas.size() / made.context;
    made.divides_sequences_among_shards = model.grid.form == ShardGrid::Form::Sequence;
    made.microbatches = whole_microbatches(plan_) / made.replicas;
    for (const auto& [first, last] : chain) {
      made.stages.emplace_back(plan_.stages[first].first_layer, plan_.stages[last].last_layer);
    }
    if (faults_.size() == faults_before) fold(chain, made);
    return made;
  }

 private:
  void refuse(const std::string& where, const std::string& what, const std::string& software_does)
  {
    faults_.push_back(fmt::format("{}: {}; {} {}", where, what, software_, software_does));
  }

  /// A fault of a stage, once for all of its layers.
  void refuse_stage(std::size_t stage, const std::string& what, const std::string& software_does)
  {
    if (refused_.insert(numbers_[stage]).second) refuse(place(stage), what, software_does);
  }

  std::string place(std::size_t stage) const { return fmt::format("stages[{}]", numbers_[stage]); }

  void check(std::size_t i)
  {
    const Stage& stage = plan_.stages[i];
    const Stage& model = plan_.stages.front();
    const std::size_t shards = model.replicas.front().shards.size();
    if (divides_operators(stage)) {
      refuse_stage(i, "divides its operators one by one", "divides layers by their heads, columns and vocabulary");
      return;
    }
    if (stage.grid.is_grid()) {
      refuse_stage(i, fmt::format("its shards lie in a {}", text_of(stage.grid)), "has shards 1d or sequence");
    } else if (stage.grid.form != model.grid.form) {
      refuse_stage(i,
                   fmt::format("its shards divide layers {}, those of stages[0] {}", name_of(stage.grid.form),
                               name_of(model.grid.form)),
                   "divides all stages alike");
    }
    if (!stage.splits.empty()) {
      refuse_stage(i, "names what its shards divide", "chooses itself");
    }
    if (!stage.residence.is_on_device()) {
      refuse_stage(i, "lives partly in its machine", "has no such residence of stages");
    }
    if (stage.replicas.size() != model.replicas.size()) {
      refuse_stage(
          i, fmt::format("{}, and stages[0] has {}", counted(stage.replicas.size(), "replica"), model.replicas.size()),
          "has as many of each stage");
      return;
    }
    for (const auto& replica : stage.replicas) {
      if (replica.shards.size() != shards) {
        refuse_stage(
            i, fmt::format("{} of a replica, and stages[0] has {}", counted(replica.shards.size(), "shard"), shards),
            "has as many of each stage");
        return;
      }
      if (stage.replicas.size() > 1 && replica.microbatches * stage.replicas.size() != plan_.goal.microbatches) {
        refuse_stage(i,
                     fmt::format("a replica takes {} of {}", replica.microbatches,
                                 counted(plan_.goal.microbatches, "micro-batch", "es")),
                     "gives replicas as many");
        return;
      }
      for (const auto& shard : replica.shards) {
        if (shard.share * static_cast<double>(shards) > 1 - 1e-9 &&
            shard.share * static_cast<double>(shards) < 1 + 1e-9)
          continue;
        refuse_stage(i, fmt::format("{} takes {:.3g} of each layer", shown(shard.device), shard.share),
                     "gives shards equal parts");
        return;
      }
    }
  }

  /// Fills in devices, chunks and ranks.
  void fold(const std::vector<LayerRange>& chain, UniformPipeline& made)
  {
    const auto devices_of_stage = [&](std::size_t stage) {
      std::vector<std::string> devices;
      for (const auto& replica : plan_.stages[chain[stage].first].replicas) {
        for (const auto& shard : replica.shards) devices.push_back(shard.device);
      }
      return devices;
    };
    std::vector<std::vector<std::string>> groups;
    std::vector<std::size_t> group_of_stage;
    for (std::size_t stage = 0; stage < chain.size(); ++stage) {
      const auto devices = devices_of_stage(stage);
      const auto found = std::find(groups.begin(), groups.end(), devices);
      group_of_stage.push_back(static_cast<std::size_t>(found - groups.begin()));
      if (found == groups.end()) groups.push_back(devices);
    }
    std::set<std::string> seen;
    for (const auto& group : groups) {
      for (const auto& device : group) {
        if (seen.insert(device).second) continue;
        refuse(shown(device), "is in two stages beside other devices",
               "has the same devices beside it in all of its stages");
        return;
      }
      made.ranks.insert(made.ranks.end(), group.begin(), group.end());
    }
    made.devices = groups.size();
    made.chunks = chain.size() / groups.size();
    for (std::size_t stage = 0; stage < chain.size(); ++stage) {
      const auto of_group =
          static_cast<std::size_t>(std::count(group_of_stage.begin(), group_of_stage.end(), group_of_stage[stage]));
      if (of_group * groups.size() == chain.size()) continue;
      refuse(place(chain[stage].first), fmt::format("its devices have {} of {} stages", of_group, chain.size()),
             "gives devices as many");
      return;
    }
  }

  const Plan& plan_;
  const std::string& software_;
  std::vector<std::string>& faults_;
  std::vector<std::size_t> numbers_;
  std::set<std::size_t> refused_;
};

}  // namespace

UniformPipeline uniform_pipeline(const Plan& plan, const std::string& software, std::vector<std::string>& faults)
{
  return Uniformity(plan, software, faults).pipeline();
}

Plan single_pipeline(const Plan& plan, const UniformPipeline& pipeline, const std::string& software,
                     std::vector<std::string>& faults)
{
  const std::size_t width = pipeline.ranks.size() / pipeline.devices;  // devices of a stage
  const auto ranks = devices_of(plan);
  const auto pipeline_of = [&](std::size_t lane) {
    Plan made;
    made.goal = plan.goal;
    made.goal.microbatches = pipeline.microbatches;
    auto& [name, numbers, orders] = made.goal.schedule;
    orders.clear();
    const auto warm_up = plan.goal.schedule.numbers.find("warm_up");
    if (warm_up != plan.goal.schedule.numbers.end()) numbers["warm_up"].clear();
    for (std::size_t stage = 0; stage < pipeline.devices; ++stage) {
      const std::string& device = pipeline.ranks[stage * width + lane];
      const std::string& named = pipeline.ranks[stage * width];
      const auto order = plan.goal.schedule.orders.find(named);  // of all replicas and shards
      if (order != plan.goal.schedule.orders.end()) orders[named] = order->second;
      if (warm_up == plan.goal.schedule.numbers.end()) continue;
      const auto rank = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), device) - ranks.begin());
      numbers["warm_up"].push_back(warm_up->second.at(rank));
    }
    const auto chain = schedules::stages_of_pipeline(plan);
    for (std::size_t stage = 0; stage < chain.size(); ++stage) {
      Shard shard = plan.stages[chain[stage].first].shard();
      shard.share = 1;
      made.stages.push_back(stage_on(shard, pipeline.stages[stage].first, pipeline.stages[stage].second));
    }
    return made;
  };
  Plan first = pipeline_of(0);
  for (std::size_t lane = 1; lane < width; ++lane) {
    if (pipeline_of(lane).goal.schedule == first.goal.schedule) continue;
    faults.push_back(fmt::format("schedule: {} works in another order than {}; {} has one order for all replicas",
                                 shown(pipeline.ranks[lane]), shown(pipeline.ranks.front()), software));
    break;
  }
  return first;
}

bool have_same_tasks(const std::vector<Order>& one, const std::vector<Order>& other)
{
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](const Order& a, const Order& b) {
    if (a == b) return true;
    if (a.length() != b.length()) return false;
    for (std::uint64_t position = 0; position < a.length(); ++position) {
      if (!(a.at(position) == b.at(position))) return false;
    }
    return true;
  });
}

bool has_order_of(const Plan& pipeline, const ScheduleChoice& schedule)
{
  Plan other = pipeline;
  other.goal.schedule = schedule;
  try {
    return have_same_tasks(schedules::orders_of(other), schedules::orders_of(pipeline));
  } catch (const InputError&) {  // numbers that do not fit the stages
    return false;
  }
}

std::vector<std::string> hosts_of_ranks(const std::vector<std::string>& ranks, const Cluster& cluster)
{
  std::vector<std::string> hosts;
  for (const auto& device : ranks) {
    const auto index = cluster.device_index(device);
    const auto machine = index ? cluster.devices[*index].machine : std::nullopt;
    hosts.push_back(machine ? cluster.machines[machine->machine].name : device);
  }
  return hosts;
}

}  // namespace isobar::cli
