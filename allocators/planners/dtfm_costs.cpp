#include "allocators/planners/dtfm_costs.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/plan_stages.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/layer_graph.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr double bytes_of_gradient = 4;  // float32, as replicas add them up whatever the workload computes in

/// The layers of a chain in that many stages, as even as whole ones allow, the first stages with the remainder.
std::vector<StagePlacement> even_stages(std::size_t layers, std::size_t count)
{
  std::vector<StagePlacement> stages;
  std::size_t first = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = first + layers / count + (i < layers % count ? 1 : 0);
    stages.push_back({0, first, end - 1});
    first = end;
  }
  return stages;
}

DtFmCosts costs_of(const Workload& workload, const Cluster& cluster, const DtFmShape& shape, std::uint64_t microbatches,
                   const std::vector<std::pair<std::size_t, std::size_t>>& layers)
{
  const Boundaries cuts = boundaries_of(workload);
  double gradients = 0;
  Bytes transfer;
  for (const auto& [first, last] : layers) {
    double parameters = 0;
    for (std::size_t k = first; k <= last; ++k) parameters += static_cast<double>(workload.layers[k].parameters);
    gradients = std::max(gradients, parameters * bytes_of_gradient);
    if (first > 0) transfer = std::max({transfer, cuts.output[first], cuts.gradient[first]});
  }
  return {cluster, shape, Bytes(gradients),
          transfer * (static_cast<double>(microbatches) / static_cast<double>(shape.replicas))};
}

/// Finds a partner for a device among those of the next stage, moving other devices to other partners if need be.
bool find_partner(const DtFmCosts& costs, const std::vector<std::size_t>& from, const std::vector<std::size_t>& to,
                  double limit, std::size_t device, std::vector<bool>& is_tried, std::vector<std::size_t>& device_of)
{
  for (std::size_t j = 0; j < to.size(); ++j) {
    if (is_tried[j] || costs.pass(from[device], to[j]) > limit) continue;
    is_tried[j] = true;
    const bool is_free = device_of[j] == from.size();
    if (is_free || find_partner(costs, from, to, limit, device_of[j], is_tried, device_of)) {
      device_of[j] = device;
      return true;
    }
  }
  return false;
}

}  // namespace

DtFmCosts::DtFmCosts(const Cluster& cluster, DtFmShape shape, Bytes gradients, Bytes transfers)
    : shape_(shape), devices_(cluster.devices.size()), sync_(devices_ * devices_), pass_(devices_ * devices_)
{
  const Bytes part = gradients / static_cast<double>(shape.replicas);
  for (std::size_t i = 0; i < devices_; ++i) {
    for (std::size_t j = 0; j < devices_; ++j) {
      if (i == j) continue;
      const Path path = cluster.path(i, j);
      sync_[i * devices_ + j] = 2 * path.transfer_time(part).value;
      pass_[i * devices_ + j] = path.transfer_time(transfers).value;
    }
  }
}

double DtFmCosts::sync_of(std::span<const std::size_t> stage) const
{
  double longest = 0;
  for (const std::size_t device : stage) {
    double time = 0;
    for (const std::size_t other : stage) time += sync(device, other);
    longest = std::max(longest, time);
  }
  return longest;
}

double DtFmCosts::least_sync() const
{
  std::vector<double> of_device;
  std::vector<double> exchanges;
  for (std::size_t i = 0; i < devices_; ++i) {
    exchanges.clear();
    for (std::size_t j = 0; j < devices_; ++j) {
      if (j != i) exchanges.push_back(sync(i, j));
    }
    std::sort(exchanges.begin(), exchanges.end());
    double least = 0;
    for (std::size_t j = 0; j + 1 < replicas(); ++j) least += exchanges[j];
    of_device.push_back(least);
  }
  // So many devices are used, at best those with the shortest times.
  std::sort(of_device.begin(), of_device.end());
  return of_device[stages() * replicas() - 1];
}

double DtFmCosts::least_pass() const
{
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < devices_; ++i) {
    for (std::size_t j = 0; j < devices_; ++j) {
      if (j != i) least = std::min(least, pass(i, j));
    }
  }
  return least;
}

double slowest_pass(const DtFmCosts& costs, const std::vector<std::size_t>& from, const std::vector<std::size_t>& to,
                    std::vector<std::size_t>* partners)
{
  std::vector<double> limits;
  for (const std::size_t i : from) {
    for (const std::size_t j : to) limits.push_back(costs.pass(i, j));
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  std::vector<std::size_t> device_of;  // the index in `from` for each of `to`
  const auto is_enough = [&](double limit) {
    device_of.assign(to.size(), from.size());
    std::vector<bool> is_tried;
    for (std::size_t i = 0; i < from.size(); ++i) {
      is_tried.assign(to.size(), false);
      if (!find_partner(costs, from, to, limit, i, is_tried, device_of)) return false;
    }
    return true;
  };
  const auto least =
      std::partition_point(limits.begin(), limits.end() - 1, [&](double limit) { return !is_enough(limit); });
  if (partners != nullptr) {
    is_enough(*least);
    partners->resize(from.size());
    for (std::size_t j = 0; j < to.size(); ++j) (*partners)[device_of[j]] = to[j];
  }
  return *least;
}

std::vector<DtFmShape> dtfm_shapes(const HybridProblem& problem)
{
  const auto& given = problem.limits.grid;
  const std::size_t devices = problem.cluster.devices.size();
  std::vector<DtFmShape> shapes;
  const auto add = [&](std::uint64_t stages, std::uint64_t replicas) {
    const bool is_possible = stages > 0 && stages <= problem.view.workload.layers.size() && replicas > 0 &&
                             replicas <= devices && stages <= devices / replicas;
    if (is_possible && problem.goal.microbatches % replicas == 0) shapes.push_back({stages, replicas});
  };
  if (given.pipeline) {
    add(*given.pipeline, given.replicas.value_or(devices / *given.pipeline));
  } else if (given.replicas) {
    add(devices / *given.replicas, *given.replicas);
  } else {
    for (std::size_t stages = 1; stages <= devices; ++stages) {
      if (devices % stages == 0) add(stages, devices / stages);
    }
  }
  return shapes;
}

std::string reason_of_no_shape(const HybridProblem& problem)
{
  const auto& given = problem.limits.grid;
  std::string shape;
  if (given.pipeline) shape += fmt::format(" in {}", counted(*given.pipeline, "stage"));
  if (given.replicas) shape += fmt::format(" with {}", counted(*given.replicas, "replica"));
  return fmt::format(
      "there is no placement{} of {} on {} whose replicas divide {}; change --pipeline, --replicas or --microbatches",
      shape, counted(problem.view.workload.layers.size(), "layer"), counted(problem.cluster.devices.size(), "device"),
      counted(problem.goal.microbatches, "micro-batch", "es"));
}

DtFmCosts dtfm_costs(const HybridProblem& problem, const DtFmShape& shape)
{
  std::vector<std::pair<std::size_t, std::size_t>> layers;
  const auto stages = even_stages(problem.view.workload.layers.size(), shape.stages);
  for (const auto& stage : over_layers_of(problem.view, stages)) {
    layers.emplace_back(stage.first_layer, stage.last_layer);
  }
  return costs_of(problem.workload, problem.cluster, shape, problem.goal.microbatches, layers);
}

Plan dtfm_plan(const HybridProblem& problem, const DtFmCosts& costs, DtFmGroups groups)
{
  for (std::size_t i = 1; i < groups.size(); ++i) {
    std::vector<std::size_t> partners;
    slowest_pass(costs, groups[i - 1], groups[i], &partners);
    groups[i] = std::move(partners);
  }
  const CostModel cost(problem.workload, problem.cluster);
  Plan plan;
  plan.goal = problem.goal;
  const auto stages = over_layers_of(problem.view, even_stages(problem.view.workload.layers.size(), groups.size()));
  const std::uint64_t taken = costs.replicas() == 1 ? 0 : problem.goal.microbatches / costs.replicas();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Stage& stage = plan.stages.emplace_back();
    stage.first_layer = stages[i].first_layer;
    stage.last_layer = stages[i].last_layer;
    for (const std::size_t device : groups[i]) stage.replicas.push_back({taken, {shard_on(cost, device)}});
  }
  return plan;
}

bool claim_dtfm_cost(Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const std::size_t replicas = plan.stages.front().replicas.size();
  DtFmGroups groups;
  std::vector<std::pair<std::size_t, std::size_t>> layers;
  for (const auto& stage : plan.stages) {
    layers.emplace_back(stage.first_layer, stage.last_layer);
    auto& group = groups.emplace_back();
    for (const auto& [taken, shards] : stage.replicas) {
      const bool is_equal = replicas == 1 || taken * replicas == plan.goal.microbatches;
      if (shards.size() != 1 || !is_equal) return false;
      group.push_back(cluster.device_index(shards.front().device).value());
    }
    if (group.size() != replicas) return false;
  }
  if (devices_of(plan).size() != groups.size() * replicas) return false;
  const DtFmCosts costs = costs_of(workload, cluster, {groups.size(), replicas}, plan.goal.microbatches, layers);
  double sync = 0;
  double passes = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    sync = std::max(sync, costs.sync_of(groups[i]));
    double slowest = 0;
    for (std::size_t k = 0; i > 0 && k < replicas; ++k) {
      slowest = std::max(slowest, costs.pass(groups[i - 1][k], groups[i][k]));
    }
    passes += slowest;
  }
  plan.objective = Seconds(sync + 2 * passes);
  if (!plan.objective_bound) {
    const auto hops = static_cast<double>(groups.size() - 1);
    plan.objective_bound = Seconds(costs.least_sync() + (hops > 0 ? 2 * hops * costs.least_pass() : 0));
    plan.certificate = {.kind = CertificateKind::DtFm};
  }
  plan.objective_bound = std::min(*plan.objective_bound, *plan.objective);
  if (*plan.objective_bound >= *plan.objective * (1 - tolerance)) plan.outcome = Outcome::Optimal;
  return true;
}

}  // namespace isobar::allocators
