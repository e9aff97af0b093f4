#include "core/compute/prediction_interval.hpp"

#include "core/cluster/nodes.hpp"
#include "core/compute/measurements.hpp"
#include "core/compute/pricing.hpp"
#include "core/costs/layer_times.hpp"
#include "core/errors.hpp"
#include "core/model/framework.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::compute {

namespace {

/// Half a width at 80 %, in the logarithm of the time.
struct CauseWidth {
  std::string_view cause;
  double half_width;
};

constexpr CauseWidth cause_widths[] = {
#include "generated/core/compute/interval_widths.inc"
};

double width_of(std::string_view cause)
{
  const auto found = std::ranges::find(cause_widths, cause, &CauseWidth::cause);
  ensure(found != std::end(cause_widths), "results/fidelity/interval.csv lacks a cause");
  return found->half_width;
}

double width_of(DeviceSource source)
{
  switch (source) {
    case DeviceSource::Runs:
    case DeviceSource::Layers:
      return 0;
    case DeviceSource::SameChip:
      return width_of("same_chip");
    case DeviceSource::Operators:
      return width_of("operators");
    case DeviceSource::Tables:
      return width_of("tables");
    case DeviceSource::StandIn:
      return width_of("stand_in");
  }
  return 0;
}

double network_width_of(const StepBasis& basis)
{
  return width_of(basis.spans_nodes ? "between" : "inside");
}

/// The causes of a width, each weighted by the part of the step that it concerns.
struct Causes {
  double run;
  double device;
  double system;
  double network;
  double experts;
};

Causes causes_of(const StepBasis& basis)
{
  return {width_of("run"), (1 - basis.exposed_fraction) * width_of(basis.device),
          basis.pair == PairSource::Other ? (1 - basis.measured_fraction) * width_of("system") : 0,
          basis.exposed_fraction * network_width_of(basis),
          (1 - basis.exposed_fraction) * basis.experts_fraction * width_of("experts")};
}

double root_of_squares(std::initializer_list<double> widths)
{
  double sum = 0;
  for (const double width : widths) sum += width * width;
  return std::sqrt(sum);
}

std::string_view source_text(DeviceSource source)
{
  switch (source) {
    case DeviceSource::Runs:
    case DeviceSource::Layers:
      return "";
    case DeviceSource::SameChip:
      return "constants of the same chip with another memory";
    case DeviceSource::Operators:
      return "operators measured outside of training";
    case DeviceSource::Tables:
      return "constants of kernels measured outside of training";
    case DeviceSource::StandIn:
      return "constants of another chip or of a data sheet";
  }
  return "";
}

/// How a type is known, the pair whose runs its constants are of, and which part of its computation was measured.
struct TypeBasis {
  DeviceSource device;
  PairSource pair;
};

TypeBasis basis_of_type(const std::string& type, DType dtype, const Measurements& measurements,
                        const FrameworkChoice& software)
{
  const DeviceConstants constants = measurements.constants_of(type);
  const bool stands_in = !software.note.empty();
  PairSource pair = PairSource::Other;
  if (!stands_in) pair = source_of_pair(constants.type, *software.framework);
  if (!stands_in && pair == PairSource::Other && !constants.fitted_as.empty()) {
    pair = source_of_pair(constants.fitted_as, *software.framework);
  }
  if (measurements.layers_of(type) != nullptr) return {DeviceSource::Layers, pair};
  const bool has_operators = measurements.operators_of(type, dtype) != nullptr;
  return {has_operators && constants.known_by > DeviceSource::Operators ? DeviceSource::Operators : constants.known_by,
          pair};
}

/// A device of a pipeline: what a micro-batch takes there without transfers and collectives, and the update.
struct StageTimes {
  double parts = 0;  ///< of the plan, apart from each other
  double microbatches = 1;
  Seconds computes;
  Seconds products;  ///< and attention
  Seconds update;
};

std::map<std::string, StageTimes> stage_times_of(const Plan& plan, const AsTrained& trained, const Cluster& cluster)
{
  // By the first device of shards that have all stages together, or else by each.
  std::map<std::string, StageTimes> stages;
  const auto number = pipeline_stages(plan);
  const bool divides_some = is_partly_divided(plan.stages);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const auto& shards = stage.replicas.front().shards;
    const PassParts& passes = trained.parts()[i];
    const auto replicas = static_cast<double>(stage.replicas.size());
    const double holders = static_cast<double>(shards.size()) * (plan.sync.sharded == Sharding::None ? 1 : replicas);
    const bool is_shared = divides_some && shards.size() > 1;  // by devices that have others alone
    for (const Shard& shard : shards) {
      StageTimes& times = stages[shard.device];
      if (!is_shared && (i == 0 || number[i] != number[i - 1])) ++times.parts;
      times.microbatches = static_cast<double>(plan.goal.microbatches) / replicas;
      times.computes += passes.products + passes.attention + passes.memory_bound + passes.launch;
      times.products += passes.products + passes.attention;
      const Device& device = cluster.devices[cluster.device_index(shard.device).value()];
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        times.update += times_on(trained.workload(), layer, device).update / holders;
      }
      if (!divides_some) break;
    }
  }
  return stages;
}

}  // namespace

namespace {

/// Whether a plan has devices of several sites, or of several nodes of one.
bool spans_nodes(const Plan& plan, const Cluster& cluster)
{
  std::set<std::size_t> used;
  std::set<std::string> sites;
  for (const auto& name : devices_of(plan)) {
    const std::size_t device = cluster.device_index(name).value();
    used.insert(device);
    sites.insert(cluster.devices[device].site);
  }
  if (sites.size() > 1) return true;
  const auto nodes = nodes_of(cluster);
  return std::ranges::count_if(nodes, [&](const auto& node) {
           return std::ranges::any_of(node, [&](std::size_t device) { return used.contains(device); });
         }) > 1;
}

}  // namespace

std::optional<StepBasis> basis_of(const Plan& plan, const AsTrained& trained, const Workload& workload,
                                  const Cluster& cluster, Seconds step)
{
  if (trained.parts().empty() || !(step > Seconds(0))) return std::nullopt;
  const Measurements& measurements = measurements_of(workload);
  const FrameworkChoice software = framework_named(workload.framework);
  StepBasis basis;
  basis.system = workload.framework;
  for (const auto& name : devices_of(plan)) {
    const Device& device = cluster.devices[cluster.device_index(name).value()];
    if (!basis.types.insert(device.type).second) continue;
    TypeBasis type = basis_of_type(device.type, workload.dtype, measurements, software);
    // Products in fewer bits follow from the data sheet's peaks.
    const bool follows_sheet = workload.recipe != ProductRecipe::None && type.device != DeviceSource::Layers;
    if (follows_sheet) type.device = DeviceSource::StandIn;
    const bool is_less_known = std::pair(type.device, type.pair) > std::pair(basis.device, basis.pair);
    if (is_less_known || basis.least_known_type.empty()) basis.least_known_type = device.type;
    basis.device = std::max(basis.device, type.device);
    basis.pair = std::max(basis.pair, type.pair);
  }
  basis.spans_nodes = spans_nodes(plan, cluster);
  Flops all;
  Flops of_experts;
  for (const auto& layer : workload.layers) {
    all += layer.forward;
    if (layer.experts) of_experts += layer.experts->forward;
  }
  if (all > Flops(0)) basis.experts_fraction = of_experts / all;

  // A step is the passes of the stage that computes most, its wait for a micro-batch of the others, and the update.
  const auto stages = stage_times_of(plan, trained, cluster);
  const auto all_passes = [](const StageTimes& stage) { return stage.microbatches * stage.computes; };
  const auto& slowest =
      std::ranges::max_element(stages, {}, [&](const auto& each) { return all_passes(each.second); })->second;
  Seconds others;
  for (const auto& [device, stage] : stages) {
    if (&stage != &slowest) others += stage.computes;
  }
  const Seconds computes = all_passes(slowest) + others / slowest.parts + slowest.update;
  basis.exposed_fraction = std::clamp(1 - computes / step, 0.0, 1.0);
  const bool has_layers = basis.device == DeviceSource::Layers;
  if (has_layers || basis.device == DeviceSource::Operators) {
    const Seconds measured = has_layers ? slowest.computes : slowest.products;
    basis.measured_fraction = (1 - basis.exposed_fraction) * (measured / slowest.computes);
  }
  return basis;
}

double half_width_of(const StepBasis& basis)
{
  const Causes causes = causes_of(basis);
  return root_of_squares({causes.run, causes.device, causes.system, causes.network, causes.experts});
}

StepInterval interval_of(const StepBasis& basis, Seconds step)
{
  const double factor = std::exp(half_width_of(basis));
  StepInterval interval{step / factor, step * factor};
  const Causes causes = causes_of(basis);
  const auto add = [&](double width, const std::string& text) {
    constexpr double visible = 0.005;
    if (width >= visible) interval.because.push_back(fmt::format("{}: ±{:.0f} %", text, 100 * width));
  };
  add(causes.run, "any run");
  const std::string type = shown(basis.least_known_type);
  add(causes.device, fmt::format("{}: {}", type, source_text(basis.device)));
  add(causes.system, fmt::format("{} under {}: no known run of this pair", type, shown(basis.system)));
  add(causes.experts, fmt::format("products of experts, {:.0f} % of the work, to which no training run is fitted",
                                  100 * basis.experts_fraction));
  add(causes.network, fmt::format("communication {}, {:.0f} % of the step",
                                  basis.spans_nodes ? "between nodes" : "inside a node", 100 * basis.exposed_fraction));
  return interval;
}

double ranking_width_of(const StepBasis& a, const StepBasis& b)
{
  const double network =
      std::abs(a.exposed_fraction - b.exposed_fraction) * std::max(network_width_of(a), network_width_of(b));
  if (a.types == b.types) return root_of_squares({width_of("ranking"), network});
  const Causes of_a = causes_of(a);
  const Causes of_b = causes_of(b);
  return root_of_squares({of_a.run, of_b.run, of_a.device, of_b.device, network});
}

}  // namespace isobar::compute
