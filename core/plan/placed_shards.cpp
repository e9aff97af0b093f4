#include "core/plan/placed_shards.hpp"

#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/program/collective.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

namespace isobar {

namespace {

bool has_twice(const Replica& replica, const std::string& device)
{
  return std::count_if(replica.shards.begin(), replica.shards.end(),
                       [&](const Shard& shard) { return shard.device == device; }) > 1;
}

}  // namespace

std::vector<PlacedShard> placed_shards(const Plan& plan)
{
  std::unordered_map<std::string, std::size_t> rank_of;
  std::vector<PlacedShard> placed;
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const auto& replicas = plan.stages[stage].replicas;
    for (std::size_t replica = 0; replica < replicas.size(); ++replica) {
      const auto& shards = replicas[replica].shards;
      for (std::size_t shard = 0; shard < shards.size(); ++shard) {
        const auto rank = rank_of.emplace(shards[shard].device, rank_of.size()).first->second;
        placed.push_back({stage, replica, shard, rank});
      }
    }
  }
  return placed;
}

const Shard& shard_of(const Plan& plan, const PlacedShard& placed)
{
  return plan.stages.at(placed.stage).replicas.at(placed.replica).shards.at(placed.shard);
}

bool has_same_devices(const Stage& a, const Stage& b)
{
  return std::equal(a.replicas.begin(), a.replicas.end(), b.replicas.begin(), b.replicas.end(),
                    [](const Replica& one, const Replica& other) {
                      return std::equal(
                          one.shards.begin(), one.shards.end(), other.shards.begin(), other.shards.end(),
                          [](const Shard& shard, const Shard& of_other) { return shard.device == of_other.device; });
                    });
}

std::vector<std::size_t> pipeline_stages(const Plan& plan)
{
  std::vector<std::size_t> stages;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const bool is_part = i > 0 && has_same_devices(plan.stages[i - 1], plan.stages[i]);
    stages.push_back(i == 0 ? 0 : stages.back() + (is_part ? 0 : 1));
  }
  return stages;
}

std::vector<std::size_t> numbers_in_file(const Plan& plan)
{
  const auto& stages = plan.stages;
  const auto pipeline_stage = pipeline_stages(plan);
  // Parts on the device before those that are not, and which a file counts as resident parts of the same stage.
  std::vector<bool> leads(stages.size(), false);
  for (std::size_t i = stages.size(); i-- > 1;) {
    const bool is_led_to = leads[i] || !stages[i].residence.is_on_device();
    leads[i - 1] = is_led_to && stages[i - 1].residence.is_on_device() && pipeline_stage[i] == pipeline_stage[i - 1];
  }
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const bool moves_alike =
        i > 0 &&
        (leads[i - 1] || (!stages[i].residence.is_on_device() && stages[i].residence == stages[i - 1].residence));
    const bool is_part =
        i > 0 && pipeline_stage[i] == pipeline_stage[i - 1] && !stages[i].starts_chunk &&
        (has_exchanges(plan) || has_shards({stages[i]}) || divides_operators(stages[i]) || moves_alike);
    numbers.push_back(i == 0 ? 0 : numbers.back() + (is_part ? 0 : 1));
  }
  return numbers;
}

bool has_replicas(const std::vector<Stage>& stages)
{
  return std::any_of(stages.begin(), stages.end(), [](const Stage& stage) { return stage.replicas.size() > 1; });
}

bool has_shards(const std::vector<Stage>& stages)
{
  return std::any_of(stages.begin(), stages.end(), [](const Stage& stage) {
    return std::any_of(stage.replicas.begin(), stage.replicas.end(),
                       [](const Replica& replica) { return replica.shards.size() > 1; });
  });
}

bool is_partly_divided(const std::vector<Stage>& stages)
{
  if (!has_shards(stages)) return false;
  std::unordered_map<std::string, bool> divides;  // by device, in its first stage
  for (const auto& stage : stages) {
    for (const auto& replica : stage.replicas) {
      const bool is_divided = replica.shards.size() > 1;
      for (const auto& shard : replica.shards) {
        if (divides.emplace(shard.device, is_divided).first->second != is_divided) return true;
      }
    }
  }
  return false;
}

bool has_shared_stages(const std::vector<Stage>& stages)
{
  return has_replicas(stages) || has_shards(stages);
}

bool uses_machines(const Plan& plan)
{
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const Stage& stage) { return !stage.residence.is_on_device(); });
}

bool takes_whole_runs(const Plan& plan)
{
  // Whatever the numbers of the schedule are.
  const bool joins_neighbours = chain_schedule(ScheduleChoice{.name = plan.goal.schedule.name}).has_value();
  std::unordered_map<std::size_t, std::pair<std::size_t, std::uint64_t>> last;  // stage and micro-batches of a rank
  for (const auto& placed : placed_shards(plan)) {
    const std::uint64_t microbatches = plan.stages[placed.stage].replicas[placed.replica].microbatches;
    const auto [entry, is_first] = last.emplace(placed.rank, std::pair(placed.stage, microbatches));
    if (is_first) continue;
    if (!joins_neighbours || entry->second != std::pair(placed.stage - 1, microbatches)) return false;
    entry->second.first = placed.stage;
  }
  return true;
}

std::vector<std::uint64_t> units_of_shards(std::uint64_t units, const Replica& replica)
{
  const auto& shards = replica.shards;
  ensure(units >= shards.size(), "a layer has a unit for each shard");
  std::vector<std::uint64_t> taken;
  std::vector<std::pair<double, std::size_t>> missing;  // by shard: how much of a unit was rounded off, negative
  std::uint64_t left = units;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const double ideal = static_cast<double>(units) * shards[i].share;
    // What other shards need at least is not there to be taken.
    const std::uint64_t most = left - (shards.size() - 1 - i);
    taken.push_back(std::clamp<std::uint64_t>(static_cast<std::uint64_t>(ideal), 1, most));
    left -= taken.back();
    missing.emplace_back(static_cast<double>(taken.back()) - ideal, i);
  }
  std::sort(missing.begin(), missing.end());
  for (std::size_t i = 0; left > 0; i = (i + 1) % missing.size(), --left) ++taken[missing[i].second];
  return taken;
}

UnitRange units_of_shard(const Layer& layer, const Replica& replica, std::size_t shard)
{
  if (replica.shards.size() == 1) return {};
  ensure(layer.split.has_value(), "a layer of several shards has a split");
  const auto units = units_of_shards(layer.split->units, replica);
  const auto own = units.begin() + static_cast<std::ptrdiff_t>(shard);
  const std::uint64_t begin = std::accumulate(units.begin(), own, std::uint64_t{0});
  return {begin, begin + *own, layer.split->units};
}

Layer layer_of_shard(const Layer& layer, const Stage& stage, std::size_t replica, std::size_t shard)
{
  const Replica& all = stage.replicas.at(replica);
  if (all.shards.size() == 1) return layer;
  if (stage.grid.is_grid()) return layer_of_grid(layer, stage.grid);
  const UnitRange units = units_of_shard(layer, all, shard);
  const Split& split = *layer.split;
  const double fraction = static_cast<double>(units.end - units.begin) / static_cast<double>(units.all);
  Layer part = layer;
  part.forward = fraction * layer.forward;
  part.backward = fraction * layer.backward;
  part.backward_weight = fraction * layer.backward_weight;
  part.parameters = shared_parameters(layer) + units.part_of(split.parameters);
  part.tied_parameters = units.part_of(layer.tied_parameters);
  if (part.experts) part.experts->parameters = units.part_of(part.experts->parameters);
  if (layer.update && layer.parameters > 0) {
    part.update = static_cast<double>(part.parameters) / static_cast<double>(layer.parameters) * *layer.update;
  }
  const Bytes not_divided = (layer.activations - split.activations) / static_cast<double>(stage.grid.blocks());
  part.activations = fraction * split.activations + not_divided;
  if (layer.workspace > Bytes(0)) {
    part.workspace =
        fraction * split.workspace + (layer.workspace - split.workspace) / static_cast<double>(stage.grid.blocks());
  }
  return part;
}

std::uint64_t shared_parameters(const Layer& layer, const ShardGrid& grid)
{
  if (!shared_axis(grid)) return 0;
  if (grid.form == ShardGrid::Form::TwoAndAHalfD) return layer_of_grid(layer, grid).parameters;
  return layer.parameters - (layer.split ? layer.split->parameters : 0);
}

std::optional<StageFault> fault_of_shards(const std::vector<Stage>& stages)
{
  constexpr double tolerance = 1e-9;
  struct Use {
    const Replica* replica;
    const ShardGrid* grid;
  };
  std::unordered_map<std::string, Use> first_use;  // of a device among several shards
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const ShardGrid& grid = stages[i].grid;
    if (i > 0 && grid != stages[i - 1].grid) {
      return StageFault{i, "grid",
                        fmt::format("{} after {}; neighbouring stages are divided alike", text_of(grid),
                                    text_of(stages[i - 1].grid))};
    }
    for (std::size_t k = 0; k < stages[i].replicas.size(); ++k) {
      const Replica& replica = stages[i].replicas[k];
      const auto fault = [&](std::string text) {
        return StageFault{i, fmt::format("replicas[{}].shards", k), std::move(text)};
      };
      double sum = 0;
      for (const auto& shard : replica.shards) sum += shard.share;
      if (replica.shards.size() > 1 && std::abs(sum - 1) > tolerance) {
        return fault(fmt::format("their shares sum to {:.9g}; those of a replica sum to 1", sum));
      }
      const auto is_alike = [](const Shard& a, const Shard& b) { return std::abs(a.share - b.share) <= tolerance; };
      if (grid.form == ShardGrid::Form::Sequence && replica.shards.size() != grid.side) {
        return fault(fmt::format("{}; each replica divides the sequence among as many as the first, {}",
                                 replica.shards.size(), grid.side));
      }
      if (grid.blocks() > 1 && replica.shards.size() != grid.blocks()) {
        return fault(fmt::format("{}; the stage's {} has {}", replica.shards.size(), text_of(grid), grid.blocks()));
      }
      const auto has_its_part = [&](const Shard& shard) { return is_alike(shard, replica.shards.front()); };
      if (grid.is_grid() && !std::all_of(replica.shards.begin(), replica.shards.end(), has_its_part)) {
        return fault(fmt::format("with different shares; shards of {} have equal ones", name_of(grid.form)));
      }
      if (replica.shards.size() == 1) continue;
      for (const auto& shard : replica.shards) {
        const auto [use, is_new] = first_use.emplace(shard.device, Use{&replica, &grid});
        const auto& [other, other_grid] = use->second;
        const auto is_same = [](const Shard& a, const Shard& b) { return a.device == b.device && a.share == b.share; };
        if (is_new || (*other_grid == grid && std::equal(other->shards.begin(), other->shards.end(),
                                                         replica.shards.begin(), replica.shards.end(), is_same))) {
          if (other != &replica || !has_twice(replica, shard.device)) continue;
          return fault(fmt::format("device {} twice; each shard has a device of its own", shown(shard.device)));
        }
        return fault(
            fmt::format("device {} has other shards beside it elsewhere; it divides all stages that it divides with "
                        "the same others, in one order and with the same shares",
                        shown(shard.device)));
      }
    }
  }
  return std::nullopt;
}

std::vector<std::string> sites_of(const Stage& stage, std::size_t shard)
{
  std::vector<std::string> sites;
  for (const auto& replica : stage.replicas) {
    if (shard < replica.shards.size()) sites.push_back(replica.shards[shard].site.value_or(""));
  }
  return sites;
}

std::optional<std::string> why_not_divided(const Sync& sync, const Stage& stage, const std::vector<std::string>& sites)
{
  if (sync.sharded == Sharding::None) return std::nullopt;
  if (!are_divided_alike(stage)) {
    return fmt::format("{} needs replicas of a stage with as many shards of the same shares; use none",
                       name_of(sync.sharded));
  }
  if (sync.algorithm == Algorithm::Hierarchical && !are_equal_sites(sites)) {
    return fmt::format(
        "{} with algorithm hierarchical needs as many replicas of a stage in each site; use ring, tree "
        "or direct",
        name_of(sync.sharded));
  }
  const bool takes_alike = std::all_of(stage.replicas.begin(), stage.replicas.end(), [&](const Replica& replica) {
    return replica.microbatches == stage.replicas.front().microbatches;
  });
  if (sync.sharded == Sharding::Parameters && !takes_alike) {
    return "parameters, which replicas gather for each micro-batch, needs replicas that take as many; use gradients";
  }
  return std::nullopt;
}

void require_on_devices(const Plan& plan, const std::string& file, const std::string& command)
{
  if (!uses_machines(plan)) return;
  throw InputError(file, fmt::format("residence: stages that live elsewhere than on their devices, which {} does not "
                                     "know yet; isobar verify, simulate and report do",
                                     command));
}

}  // namespace isobar
