#include "schedules/lowering/partly_divided.hpp"

#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace isobar::schedules {

namespace {

/// One replica of each stage.
struct DividedPipeline {
  PipelineShape shape;
  std::vector<std::size_t> ranks;  ///< of the plan, by rank of the shape
  /// Parts of the rank in the plan, by rank and part of the shape.
  std::vector<std::vector<std::vector<std::uint32_t>>> becomes;
};

/// @throws InputError for what such plans do not have.
void require_pipelines(const Plan& plan)
{
  if (has_exchanges(plan)) {
    throw InputError("stages",
                     "devices divide some of them and have others alone, and replicas that divide sequences or experts "
                     "have each layer with the same others; leave context and experts out");
  }
  const auto& first = plan.stages.front().replicas;
  const auto numbers = numbers_in_file(plan);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const std::size_t number = numbers[i];
    if (!stage.residence.is_on_device()) {
      throw InputError(fmt::format("stages[{}].residence", number),
                       "devices divide some stages and have others alone, which are on their devices; leave it out");
    }
    const auto takes_as_many = [](const Replica& a, const Replica& b) { return a.microbatches == b.microbatches; };
    if (!std::equal(first.begin(), first.end(), stage.replicas.begin(), stage.replicas.end(), takes_as_many)) {
      throw InputError(
          fmt::format("stages[{}].replicas", number),
          "are others than those of stages[0]; where devices divide some stages and have others alone, all "
          "stages have as many replicas with as many micro-batches");
    }
  }
}

class PartlyDivided {
 public:
  explicit PartlyDivided(const Plan& plan)
      : plan_(plan), schedule_(require_schedule(plan.goal.schedule)), devices_(devices_of(plan))
  {
    require_pipelines(plan);
    pipelines_.resize(plan.stages.front().replicas.size());
    std::vector<std::uint32_t> parts(devices_.size(), 0);  // of each rank so far
    std::vector<std::map<std::size_t, std::size_t>> local(pipelines_.size());
    for (const auto& [stage, replica, shard, rank] : placed_shards(plan)) {
      DividedPipeline& pipeline = pipelines_[replica];
      auto& [shape, ranks, becomes] = pipeline;
      const auto [entry, is_new] = local[replica].emplace(rank, ranks.size());
      if (is_new) {
        ranks.push_back(rank);
        shape.devices.push_back(devices_[rank]);
        becomes.emplace_back();
      }
      const std::size_t own = entry->second;
      if (!continues(stage)) {
        if (shard == 0) {
          shape.rank_of_stage.push_back(own);
          shape.ranks_of_stage.emplace_back();
        }
        shape.ranks_of_stage.back().push_back(own);
        becomes[own].emplace_back();
      }
      becomes[own].back().push_back(parts[rank]++);
    }
    for (std::size_t i = 0; i < pipelines_.size(); ++i) {
      const std::uint64_t taken = plan.stages.front().replicas[i].microbatches;
      pipelines_[i].shape.microbatches = taken > 0 ? taken : plan.goal.microbatches;
    }
    require_own_devices();
  }

  OrderedPipeline first() const { return {pipelines_.front().shape, orders_of_pipeline(pipelines_.front())}; }

  std::vector<Order> orders() const
  {
    std::vector<Order> orders(devices_.size());
    for (const auto& pipeline : pipelines_) {
      const auto own = orders_of_pipeline(pipeline);
      for (std::size_t i = 0; i < own.size(); ++i) orders[pipeline.ranks[i]] = over_layers(own[i], pipeline.becomes[i]);
    }
    return orders;
  }

 private:
  /// Whether a stage of the plan is part of the one before in the pipeline: the next layer that the same devices
  /// divide, or under a schedule with one stage on each device its next part.
  bool continues(std::size_t stage) const
  {
    if (stage == 0 || !has_same_devices(plan_.stages[stage - 1], plan_.stages[stage])) return false;
    if (has_shards({plan_.stages[stage]})) return !plan_.stages[stage].starts_chunk;
    return schedule_.folding == Folding::DividedEnds;
  }

  void require_own_devices() const
  {
    std::vector<bool> is_used(devices_.size(), false);
    for (const auto& pipeline : pipelines_) {
      for (const std::size_t rank : pipeline.ranks) {
        if (is_used[rank]) {
          throw InputError("stages", fmt::format("device {} has replicas of two pipelines; give it those of one",
                                                 shown(devices_[rank])));
        }
        is_used[rank] = true;
      }
    }
  }

  /// Listed orders are of the devices of the first pipeline; those of others do the same.
  std::vector<Order> orders_of_pipeline(const DividedPipeline& pipeline) const
  {
    const PipelineShape& first = pipelines_.front().shape;
    if (!schedule_.takes_orders) return schedule_.orders(pipeline.shape, plan_.goal.schedule);
    if (pipeline.shape.microbatches != first.microbatches) {
      throw InputError("schedule", fmt::format("{} needs pipelines with as many micro-batches; use another schedule",
                                               schedule_.name));
    }
    PipelineShape named = pipeline.shape;
    named.devices = first.devices;
    return schedule_.orders(named, plan_.goal.schedule);
  }

  /// Each task of part k becomes one of each of `becomes[k]`, forwards ascending and backwards descending.
  static Order over_layers(const Order& order, const std::vector<std::vector<std::uint32_t>>& becomes)
  {
    std::vector<Run> runs;
    for (const auto& [times, slots] : order.runs()) {
      Run& run = runs.emplace_back(Run{times, {}});
      for (const auto& slot : slots) {
        std::vector<std::uint32_t> parts = becomes.at(slot.first.part);
        if (slot.first.opcode != Opcode::Forward) std::reverse(parts.begin(), parts.end());
        for (const std::uint32_t part : parts) {
          Slot own = slot;
          own.first.part = part;
          run.slots.push_back(own);
        }
      }
    }
    return Order(std::move(runs));
  }

  const Plan& plan_;
  const Schedule& schedule_;
  std::vector<std::string> devices_;
  std::vector<DividedPipeline> pipelines_;
};

}  // namespace

std::vector<Order> orders_of_partly_divided(const Plan& plan)
{
  return PartlyDivided(plan).orders();
}

OrderedPipeline first_partly_divided_pipeline(const Plan& plan)
{
  return PartlyDivided(plan).first();
}

}  // namespace isobar::schedules
