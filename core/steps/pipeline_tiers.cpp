// What the machines of devices copy and update.

#include "core/steps/pipeline_steps.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/plan/tied_copies.hpp"

#include <algorithm>

namespace isobar {

void PipelineSteps::find_tiers()
{
  has_fences_ = counted_step(plan_).played() > 2;
  noted_.resize(ranks_.size() + 1);
  for (Rank& rank : ranks_) {
    const bool is_moved = std::any_of(rank.seats.begin(), rank.seats.end(), [&](std::size_t seat) {
      return !plan_.stages[seats_[seat].stage].residence.is_on_device();
    });
    if (is_moved) rank.tiers = tiers_of(rank);
  }
  for (Rank& rank : ranks_) {
    const auto& machine = cluster_.devices[rank.device].machine;
    const auto pace = machine ? machine_pace_.find(machine->machine) : machine_pace_.end();
    if (pace != machine_pace_.end()) rank.slows = pace->second;
  }
}

PipelineSteps::RankTiers PipelineSteps::tiers_of(const Rank& rank)
{
  std::vector<MovedPart> parts;
  std::unordered_map<std::size_t, std::size_t> part_of;
  for (const std::size_t seat : rank.seats) {
    part_of[seat] = parts.size();
    parts.push_back(moved_part(seats_[seat]));
  }
  std::vector<PartPass> passes;
  for (const RankPass& pass : rank.passes) passes.push_back({pass.opcode, part_of.at(pass.seat), pass.microbatch});
  RankTiers tiers;
  tiers.needs = tier_needs(passes, parts, needs_gradient_sync(workload_), ranks_.size() > 1);
  add_ways(tiers, machine_rates(plan_, cluster_.devices[rank.device], cluster_));
  return tiers;
}

/// Adds what the tasks of a device's machine share with others: the links of copies, the disk, and the cores.
void PipelineSteps::add_ways(RankTiers& tiers, const MachineRates& rates)
{
  const auto add_way = [&](TierLane lane, const CopyRate& rate, const std::vector<SharedLink>& links) {
    const GraphPath path{rate.latency.value, rate.bandwidth.value, links};
    if (!tiers.needs.lane(lane).empty()) tiers.ways[static_cast<std::size_t>(lane)] = graph_.add_way(path);
  };
  add_way(TierLane::Load, rates.in, rates.in_links);
  add_way(TierLane::Store, rates.out, rates.out_links);
  if (!tiers.needs.lane(TierLane::Load).empty()) {
    tiers.backward_way =
        graph_.add_way({rates.in.latency.value, rates.in.bandwidth.value, rates.in_links}, rates.backward_delay.value);
  }
  if (!tiers.needs.lane(TierLane::Read).empty()) {
    const auto& names = names_of_disk(rates.machine);
    const SharedLink disk{names[0], std::max(rates.read.bandwidth, rates.write.bandwidth)};
    add_way(TierLane::Read, rates.read, {disk, {names[1], rates.read.bandwidth}});
    add_way(TierLane::Write, rates.write, {disk, {names[2], rates.write.bandwidth}});
  }
  if (!tiers.needs.lane(TierLane::Update).empty()) {
    const auto [pace, is_new] = machine_pace_.try_emplace(rates.machine, 0);
    const auto cores = static_cast<double>(rates.cores);
    if (is_new) pace->second = graph_.add_pace(rates.update_speed / rates.busy_update_speed, cores);
    tiers.pace = pace->second;
    tiers.update_speed = rates.update_speed.value;
  }
}

/// Names for what the users of a machine's disk share: the disk, its reads and its writes. No link has such names.
const std::array<std::string, 3>& PipelineSteps::names_of_disk(std::size_t machine)
{
  const auto [names, is_new] = disks_.try_emplace(machine);
  if (is_new) {
    const auto number = std::to_string(machine);
    names->second = {"\ndisk " + number, "\nread " + number, "\nwrite " + number};
  }
  return names->second;
}

/// Adds a task to the graph.
PipelineSteps::Node PipelineSteps::add_task(const RankTiers& tiers, TierLane lane, const TierTask& task)
{
  if (lane == TierLane::Update) {
    return graph_.add_computation(task.size > 0 ? task.size / tiers.update_speed : 0, tiers.pace);
  }
  return graph_.add_copy(task.is_for_backward ? tiers.backward_way : tiers.ways[static_cast<std::size_t>(lane)],
                         task.size);
}

/// Whether the parameters of a layer are elsewhere than on the device between passes.
bool PipelineSteps::passes_through(std::size_t layer) const
{
  return std::any_of(plan_.stages.begin(), plan_.stages.end(), [&](const Stage& stage) {
    return stage.first_layer <= layer && layer <= stage.last_layer && stage.residence.parameters != Tier::Device;
  });
}

MovedPart PipelineSteps::moved_part(const Seat& seat) const
{
  const Stage& stage = plan_.stages[seat.stage];
  const ParameterBytes bytes = parameter_bytes(workload_);
  MovedPart part;
  part.residence = stage.residence;
  part.own_parameters = part.parameters = seat.parameters * bytes.parameter;
  part.gradients = seat.parameters * bytes.gradient;
  part.optimizer = seat.parameters * bytes.optimizer;
  part.is_summed = replicas_of(seat.stage) > 1;
  part.update = seat.parameters * update_flops_per_parameter(workload_.optimizer);
  for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
    const Layer& layer = workload_.layers[k];
    part.activations += layer.activations.value;
  }
  for (const std::size_t owner : matrices_of_earlier_layers(workload_, stage.first_layer, stage.last_layer)) {
    if (!passes_through(owner)) continue;
    part.parameters += static_cast<double>(workload_.layers[owner].parameters) * bytes.parameter;
  }
  return part;
}

/// Keeps what the next step may wait for, before its passes are added.
void PipelineSteps::keep_nodes_of_step()
{
  last_facts_ = facts_;
  for (Rank& rank : ranks_) {
    if (!rank.tiers) continue;
    rank.tiers->nodes_before = std::exchange(rank.tiers->nodes, {});
    rank.tiers->passes_before.clear();
    if (!rank.ready) continue;  // the first step
    for (const RankPass& pass : rank.passes) rank.tiers->passes_before.push_back(pass.node);
  }
}

void PipelineSteps::add_tiers()
{
  for (Rank& rank : ranks_) {
    if (rank.tiers) add_tier_tasks(rank);
  }
}

void PipelineSteps::add_tier_tasks(Rank& rank)
{
  RankTiers& tiers = *rank.tiers;
  for (std::size_t lane = 0; lane < tier_lanes; ++lane) {
    for (const TierTask& task : tiers.needs.lanes[lane]) {
      const Node node = add_task(tiers, static_cast<TierLane>(lane), task);
      if (tiers.last[lane]) graph_.add_wait(node, *tiers.last[lane]);
      tiers.last[lane] = node;
      tiers.nodes[lane].push_back(node);
      note(static_cast<std::size_t>(&rank - ranks_.data()), node);
    }
  }
  const auto wait = [&](Node node, const TierWait& on) {
    if (const auto other = awaited(rank, on)) graph_.add_wait(node, *other);
  };
  for (std::size_t lane = 0; lane < tier_lanes; ++lane) {
    for (std::size_t i = 0; i < tiers.nodes[lane].size(); ++i) {
      for (const TierWait& on : tiers.needs.lanes[lane][i].waits) wait(tiers.nodes[lane][i], on);
    }
  }
  for (const auto& [position, on] : tiers.needs.waits_of_passes) wait(rank.passes[position].node, on);
}

/// The node that a wait is for; none before the first step.
std::optional<PipelineSteps::Node> PipelineSteps::awaited(const Rank& rank, const TierWait& wait) const
{
  const RankTiers& tiers = *rank.tiers;
  const bool is_before = wait.steps_back > 0;
  if (is_before && tiers.passes_before.empty()) return std::nullopt;
  switch (wait.lane) {
    case TierLane::Pass:
      return is_before ? tiers.passes_before.at(wait.index) : rank.passes.at(wait.index).node;
    case TierLane::Sum:
      return seats_[rank.seats.at(wait.index)].sums.back();
    case TierLane::Facts:
      return is_before ? last_facts_ : facts_;
    default:
      return (is_before ? tiers.nodes_before : tiers.nodes)[static_cast<std::size_t>(wait.lane)].at(wait.index);
  }
}

/// Of three and more steps, a lane enters a step once all lanes of its device have ended the step before the last.
void PipelineSteps::note(std::size_t rank, Node node)
{
  if (!has_fences_) return;
  noted_[rank].push_back(node);
  constexpr std::size_t back = 2;
  if (fences_.size() >= back) graph_.add_wait(node, fences_[fences_.size() - back][rank]);
}

void PipelineSteps::end_step()
{
  if (!has_fences_) return;
  auto& fences = fences_.emplace_back();
  for (auto& nodes : noted_) {
    fences.push_back(graph_.add_computation(0));
    for (const Node node : nodes) graph_.add_wait(fences.back(), node);
    nodes.clear();
  }
}

}  // namespace isobar
