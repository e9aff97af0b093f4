#include "allocators/spmd/buckets.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/schedule.hpp"

#include <algorithm>
#include <cmath>

namespace isobar::allocators::spmd {

namespace {

/// Gives a plan parts that begin with the first operator and these ones.
void begin_parts(Plan& plan, const Workload& workload, std::vector<std::size_t> beginnings)
{
  const OperatorPlan divided = operator_plan_of(plan, workload);
  beginnings.push_back(0);
  std::sort(beginnings.begin(), beginnings.end());
  beginnings.erase(std::unique(beginnings.begin(), beginnings.end()), beginnings.end());
  const std::vector<Shard> shards = plan.stages.front().replicas.front().shards;
  plan.stages = stages_of(divided.graph, {std::move(beginnings), divided.division.signatures}, shards);
}

}  // namespace

std::vector<ReplicaGradient> gradients_of(const Plan& plan, const Workload& workload)
{
  const OperatorPlan divided = operator_plan_of(plan, workload);
  std::vector<ReplicaGradient> gradients;
  for (const std::size_t reform : replicas_in_backward(divided.graph, divided.reforms)) {
    const auto& tensor = divided.graph.tensors[divided.reforms[reform].tensor];
    gradients.push_back({tensor.producer, tensor.size});
  }
  return gradients;
}

std::vector<ReplicaGradient> played_gradients(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  auto gradients = gradients_of(plan, workload);
  Plan cut = plan;
  std::vector<std::size_t> parameters;
  for (const auto& gradient : gradients) parameters.push_back(gradient.parameter);
  begin_parts(cut, workload, std::move(parameters));
  std::vector<Seconds> made(cut.stages.size());  // by part, on the last device
  const auto program = schedules::make_program(cut, workload, cluster);
  play_program(*program, nominal_rates(cut, cluster), 1, [&](const Turn& turn, Seconds, Seconds end) {
    if (turn.instruction.opcode != Opcode::Backward) return;
    Seconds& last = made[turn.instruction.stage];
    last = std::max(last, end);
  });
  for (auto& gradient : gradients) {
    const auto stage = std::find_if(cut.stages.begin(), cut.stages.end(),
                                    [&](const Stage& each) { return each.last_layer >= gradient.parameter; });
    gradient.ready = made[static_cast<std::size_t>(stage - cut.stages.begin())];
  }
  return gradients;
}

std::vector<std::size_t> bucket_ends_by_size(const std::vector<ReplicaGradient>& gradients, Bytes first, Bytes others)
{
  std::vector<std::size_t> ends;
  Bytes filled;
  for (const auto& gradient : gradients) {
    filled += gradient.size;
    const Bytes cap = ends.empty() ? first : others;
    if (filled < cap && gradient.parameter != gradients.back().parameter) continue;
    ends.push_back(gradient.parameter);
    filled = {};
  }
  return ends;
}

std::vector<std::size_t> bucket_ends_by_cycle(const std::vector<ReplicaGradient>& gradients, Seconds cycle, Bytes most)
{
  const auto cycle_of = [cycle](const ReplicaGradient& gradient) { return std::ceil(gradient.ready / cycle); };
  std::vector<std::size_t> ends;
  Bytes filled;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    filled += gradients[i].size;
    const bool goes_on = i + 1 < gradients.size() && cycle_of(gradients[i + 1]) == cycle_of(gradients[i]) &&
                         filled + gradients[i + 1].size <= most;
    if (goes_on) continue;
    ends.push_back(gradients[i].parameter);
    filled = {};
  }
  return ends;
}

void end_parts_with_buckets(Plan& plan, const Workload& workload)
{
  begin_parts(plan, workload, plan.sync.bucket_ends);
}

}  // namespace isobar::allocators::spmd
