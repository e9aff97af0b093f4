#include "core/plan/tied_copies.hpp"

#include "core/errors.hpp"
#include "core/model/split_text.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <unordered_set>

namespace isobar {

namespace {

/// The stage that has a layer; none, if no stage has.
std::optional<std::size_t> stage_with(std::size_t layer, const std::vector<Stage>& stages)
{
  const auto found =
      std::find_if(stages.begin(), stages.end(), [layer](const Stage& stage) { return layer <= stage.last_layer; });
  if (found == stages.end() || found->first_layer > layer) return std::nullopt;
  return static_cast<std::size_t>(found - stages.begin());
}

/// Calls `visit` with each layer that needs a copy of a matrix, its stage, and the stage whose layer has the matrix.
template <typename Visit>
void for_each_copy(const Workload& workload, const std::vector<Stage>& stages, Visit visit)
{
  std::map<std::size_t, std::vector<std::size_t>> holders;  // stages with a matrix, by the layer that has it first
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const auto& tied_to = workload.layers[layer].tied_to;
    if (!tied_to) continue;
    const auto own = stage_with(layer, stages);
    const auto first = stage_with(*tied_to, stages);
    if (!own || !first) continue;
    auto& with_it = holders[*tied_to];
    if (with_it.empty()) with_it.push_back(*first);
    const bool is_here = std::any_of(with_it.begin(), with_it.end(),
                                     [&](std::size_t stage) { return has_same_devices(stages[stage], stages[*own]); });
    if (is_here) continue;
    with_it.push_back(*own);
    visit(layer, *own, *first);
  }
}

/// Adds to a layer the matrix that it uses, and to its times that part of the update of the layer that has it first.
void add_copy(Workload& workload, std::size_t index)
{
  Layer& layer = workload.layers[index];
  const Layer& owner = workload.layers[*layer.tied_to];
  ensure(owner.parameters >= layer.tied_parameters, "a matrix is among the parameters of its layer");
  const double part =
      owner.parameters == 0 ? 0 : static_cast<double>(layer.tied_parameters) / static_cast<double>(owner.parameters);
  if (layer.update || owner.update) {
    layer.update = update_work(workload, layer) + part * update_work(workload, owner);
  }
  for (auto& [type, times] : workload.times) times[index].update += part * times[*layer.tied_to].update;
  layer.parameters += layer.tied_parameters;
  if (layer.split) layer.split->parameters += layer.tied_parameters;
  layer.has_tied_copy = true;
}

bool have_same_shares(const Replica& a, const Replica& b)
{
  constexpr double tolerance = 1e-9;
  return std::equal(a.shards.begin(), a.shards.end(), b.shards.begin(), b.shards.end(),
                    [](const Shard& x, const Shard& y) { return std::abs(x.share - y.share) <= tolerance; });
}

/// Whether the shards of a replica have the same parts of two layers' units, but for a unit of the second one.
bool have_same_parts(const Layer& layer, const Layer& owner, const Replica& replica)
{
  const std::size_t shards = replica.shards.size();
  if (shards == 1 || !layer.split || !owner.split) return true;
  const std::uint64_t units = layer.split->units;
  const std::uint64_t all = owner.split->units;
  if (units < shards || all < shards) return true;  // which other rules refuse
  const auto parts = units_of_shards(units, replica);
  const auto parts_of_owner = units_of_shards(all, replica);
  return std::equal(parts.begin(), parts.end(), parts_of_owner.begin(), [&](std::uint64_t own, std::uint64_t other) {
    const double in_units_of_owner = static_cast<double>(own) * static_cast<double>(all) / static_cast<double>(units);
    return std::abs(in_units_of_owner - static_cast<double>(other)) <= 1;
  });
}

bool have_common_devices(const Stage& a, const Stage& b)
{
  std::unordered_set<std::string> devices;
  const auto visit_all = [](const Stage& stage, auto visit) {
    for (const auto& replica : stage.replicas) {
      for (const auto& shard : replica.shards) visit(shard.device);
    }
  };
  visit_all(a, [&](const std::string& device) { devices.insert(device); });
  bool have_common = false;
  visit_all(b, [&](const std::string& device) { have_common = have_common || devices.contains(device); });
  return have_common;
}

/// Why the devices of one stage, with a layer, cannot add up the gradients of a matrix with those of another one, with
/// the layer that has it first, as the end of a sentence; none if they can.
std::optional<std::string> why_not_summed(const Workload& workload, std::size_t layer, const Stage& here,
                                          const Stage& there)
{
  const Layer& own_layer = workload.layers[layer];
  const Layer& owner = workload.layers[*own_layer.tied_to];
  if (have_common_devices(here, there))
    return ", some of whose devices are the same; give both the same ones or others";
  if (here.replicas.size() != there.replicas.size()) {
    return fmt::format(" with {}, and here are {}; give both as many", counted(there.replicas.size(), "replica"),
                       here.replicas.size());
  }
  for (std::size_t i = 0; i < here.replicas.size(); ++i) {
    const auto& own = here.replicas[i].shards;
    const auto& other = there.replicas[i].shards;
    if (own.size() != other.size()) {
      return fmt::format(" with {} in replica {}, and here are {}; give both as many", counted(other.size(), "shard"),
                         i, own.size());
    }
    if (!have_same_shares(here.replicas[i], there.replicas[i])) {
      return fmt::format(" with other shares in replica {}; give both the same", i);
    }
    if (!have_same_parts(own_layer, owner, here.replicas[i])) {
      return fmt::format(
          ", whose {} {} the shards of replica {} divide otherwise than the {} {} here; give each the same part of "
          "both",
          owner.split->units, units_in_words(workload, *owner.split), i, own_layer.split->units,
          units_in_words(workload, *own_layer.split));
    }
  }
  return std::nullopt;
}

}  // namespace

Workload with_tied_copies(const Workload& workload, const Plan& plan)
{
  Workload result = workload;
  for_each_copy(workload, plan.stages, [&](std::size_t layer, std::size_t /*stage*/, std::size_t /*first*/) {
    if (!result.layers[layer].has_tied_copy) add_copy(result, layer);
  });
  return result;
}

bool needs_tied_copies(const Workload& workload, const Plan& plan)
{
  bool needs = false;
  for_each_copy(workload, plan.stages, [&](std::size_t layer, std::size_t /*stage*/, std::size_t /*first*/) {
    needs = needs || !workload.layers[layer].has_tied_copy;
  });
  return needs;
}

std::vector<TiedMatrix> tied_matrices(const Workload& workload, const Plan& plan)
{
  std::map<std::size_t, TiedMatrix> matrices;  // by the layer that has it first
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const Layer& own = workload.layers[layer];
    if (!own.has_tied_copy) continue;
    TiedMatrix& matrix = matrices[*own.tied_to];
    if (matrix.layers.empty()) matrix.layers.push_back(*own.tied_to);
    matrix.layers.push_back(layer);
  }
  std::vector<TiedMatrix> all;
  for (auto& [owner, matrix] : matrices) {
    for (const std::size_t layer : matrix.layers) matrix.stages.push_back(stage_with(layer, plan.stages).value());
    all.push_back(std::move(matrix));
  }
  return all;
}

std::vector<std::size_t> matrices_of_earlier_layers(const Workload& workload, std::size_t first, std::size_t last)
{
  std::set<std::size_t> owners;
  for (std::size_t layer = first; layer <= last; ++layer) {
    const auto& tied_to = workload.layers[layer].tied_to;
    if (tied_to && *tied_to < first) owners.insert(*tied_to);
  }
  return {owners.begin(), owners.end()};
}

std::optional<StageFault> fault_of_ties(const Workload& workload, const Plan& plan)
{
  std::optional<StageFault> fault;
  for_each_copy(workload, plan.stages, [&](std::size_t layer, std::size_t stage, std::size_t first) {
    if (fault) return;
    const auto uses = [&] {
      const std::size_t owner = *workload.layers[layer].tied_to;
      return fmt::format("layer {} ({}) uses the matrix of layer {} ({}) in stages[{}]", layer,
                         shown(workload.layers[layer].name), owner, shown(workload.layers[owner].name),
                         numbers_in_file(plan)[first]);
    };
    const Stage& here = plan.stages[stage];
    const Stage& there = plan.stages[first];
    if (divides_operators(plan)) return;
    if (uses_machines(plan)) {
      fault = {stage, "",
               uses() +
                   ", and a stage lives elsewhere than on its devices; put both on the same devices, or "
                   "leave out residence"};
    } else if (plan.sync.sharded == Sharding::Parameters && here.replicas.size() > 1) {
      fault = {stage, "", uses() + ", whose copies cannot be divided as parameters; write sync.sharded: gradients"};
    } else if (const auto why_not = why_not_summed(workload, layer, here, there)) {
      fault = {stage, "", uses() + *why_not};
    }
  });
  return fault;
}

}  // namespace isobar
