#include "results/explanation.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/program/player.hpp"
#include "results/critical_path.hpp"
#include "results/played_path.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::results {

namespace {

/// Most devices and most links, by largest share, that are tried faster in addition to the bottleneck's.
constexpr std::size_t most_tried = 3;
constexpr double full_fraction = 0.99;

struct Transfer {
  std::size_t from = 0;
  std::size_t to = 0;
  Seconds time;
};

/// Parts of one cost s_i, of a stage or of the data server.
struct Part {
  std::optional<std::size_t> stage;
  std::size_t endpoint = 0;
  Seconds compute;
  std::vector<Transfer> sends;
  Seconds send;
  Seconds cost;
};

std::vector<StagePlacement> placement_of(const Plan& plan, const Cluster& cluster)
{
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) index[cluster.devices[i].name] = i;
  std::vector<StagePlacement> stages;
  for (const auto& stage : plan.stages) {
    stages.push_back({index.at(stage.device()), stage.first_layer, stage.last_layer});
  }
  return stages;
}

std::vector<Part> parts_of(const std::vector<StagePlacement>& stages, const CostModel& cost, const Goal& goal)
{
  std::vector<Part> parts;
  const Cluster& cluster = cost.cluster();
  const auto counted = [&](TransferTimes transfer) { return CostModel::counted(goal.communication, transfer); };
  if (cluster.data_server) {
    const std::size_t server = cluster.data_server_index();
    const std::size_t first = stages.front().device;
    parts.push_back({std::nullopt, server, Seconds(0), {{server, first, counted(cost.input_transfer(first))}}, {}, {}});
  }
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    Part part = {i, device, cost.compute_time(device, first, last), {}, {}, {}};
    if (i > 0) {
      const std::size_t before = stages[i - 1].device;
      part.sends.push_back({device, before, counted(cost.gradient_transfer(before, device, first))});
    }
    if (i + 1 < stages.size()) {
      const std::size_t next = stages[i + 1].device;
      part.sends.push_back({device, next, counted(cost.output_transfer(device, next, last + 1))});
    }
    parts.push_back(std::move(part));
  }
  for (Part& part : parts) {
    for (const auto& transfer : part.sends) part.send += transfer.time;
    part.cost = CostModel::stage_cost(goal.communication, part.compute, part.send);
  }
  return parts;
}

bool compute_counts(const Part& part, Communication communication)
{
  return communication != Communication::Overlapped || part.compute >= part.send;
}

bool transfers_count(const Part& part, Communication communication)
{
  return communication == Communication::Serial || !compute_counts(part, communication);
}

const std::string& name_of_endpoint(const Cluster& cluster, std::size_t endpoint)
{
  return endpoint < cluster.devices.size() ? cluster.devices[endpoint].name : cluster.data_server.value();
}

void add_once(std::vector<std::string>& names, const std::string& name)
{
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

Explanation::Bottleneck bottleneck_of(const std::vector<Part>& parts, const Part& largest, const Cluster& cluster,
                                      Communication communication)
{
  Explanation::Bottleneck bottleneck = {
      .stage = largest.stage,
      .device = name_of_endpoint(cluster, largest.endpoint),
      .cost = largest.cost,
      .compute = largest.compute,
      .send = largest.send,
      .is_transfer = communication != Communication::None && largest.send > largest.compute,
      .links = {},
      .near = 0};
  if (communication != Communication::None) {
    for (const auto& transfer : largest.sends) {
      for (const auto& link : cluster.network->links(transfer.from, transfer.to)) add_once(bottleneck.links, link);
    }
  }
  for (const auto& part : parts) {
    if (&part != &largest && part.stage && part.cost >= 0.99 * largest.cost) ++bottleneck.near;
  }
  return bottleneck;
}

std::vector<Explanation::Share> shares_of(const std::map<std::string, Seconds>& times, Seconds objective)
{
  std::vector<Explanation::Share> shares;
  for (const auto& [name, time] : times) {
    if (time > Seconds(0)) shares.push_back({name, time, time / objective});
  }
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.time > b.time; });
  return shares;
}

void add_shares(Explanation& explanation, const std::vector<Part>& parts, const Part& largest, const Cluster& cluster,
                const Goal& goal, Seconds objective)
{
  std::map<std::string, Seconds> devices;
  std::map<std::string, Seconds> links;
  for (const auto& part : parts) {
    // How often its cost counts in the objective.
    const Seconds in_sum(&part == &largest ? 1 : 0);
    const double times = CostModel::objective_of(goal.objective, goal.microbatches, in_sum, Seconds(1)).value;
    if (compute_counts(part, goal.communication)) {
      devices[name_of_endpoint(cluster, part.endpoint)] += times * part.compute;
    }
    if (!transfers_count(part, goal.communication)) continue;
    for (const auto& transfer : part.sends) {
      std::vector<std::string> route;
      for (const auto& link : cluster.network->links(transfer.from, transfer.to)) add_once(route, link);
      for (const auto& link : route) links[link] += times * transfer.time;
    }
  }
  explanation.devices = shares_of(devices, objective);
  explanation.links = shares_of(links, objective);
}

StepTimes without_latency(StepTimes times)
{
  times.input.latency = Seconds(0);
  for (auto& stage : times.stages) stage.output.latency = stage.gradient.latency = Seconds(0);
  return times;
}

/// Explains the critical path of a step, and its shares by device and link.
class StepExplainer {
 public:
  StepExplainer(const std::vector<StagePlacement>& stages, const CostModel& cost, const Goal& goal)
      : stages_(stages),
        cluster_(cost.cluster()),
        goal_(goal),
        schedule_(require_chain_schedule(goal.schedule)),
        times_(step_times(cost, stages, goal)),
        path_(critical_path(schedule_, goal.microbatches, times_.input, times_.stages))
  {
  }

  void add_to(Explanation& explanation)
  {
    using Kind = Explanation::PathPart::Kind;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const auto& stage = path_.stages[i];
      add_part({Kind::Compute, i, std::nullopt, name_of(stages_[i].device), "", stage.compute, 0});
      devices_[name_of(stages_[i].device)] += stage.compute;
      if (i + 1 == stages_.size()) continue;
      add_lane(i, stages_[i].device, stages_[i + 1].device, stage.output);
      add_lane(i + 1, stages_[i + 1].device, stages_[i].device, stage.gradient);
    }
    if (cluster_.data_server) {
      add_lane(std::nullopt, cluster_.data_server_index(), stages_.front().device, path_.input);
    }
    std::stable_sort(step_.parts.begin(), step_.parts.end(),
                     [](const auto& a, const auto& b) { return a.time > b.time; });
    add_full_stages();
    const StepTimes free = without_latency(times_);
    step_.saved_without_latency = saved(critical_path(schedule_, goal_.microbatches, free.input, free.stages));
    explanation.step = std::move(step_);
    explanation.devices = shares_of(devices_, path_.step_time);
    explanation.links = shares_of(links_, path_.step_time);
  }

 private:
  const std::string& name_of(std::size_t endpoint) const { return name_of_endpoint(cluster_, endpoint); }

  void add_part(Explanation::PathPart part)
  {
    if (part.time <= Seconds(0)) return;
    part.fraction = part.time / path_.step_time;
    step_.parts.push_back(std::move(part));
  }

  void add_lane(std::optional<std::size_t> stage, std::size_t from, std::size_t to, const CriticalPath::Lane& lane)
  {
    using Kind = Explanation::PathPart::Kind;
    add_part({Kind::Data, stage, std::nullopt, name_of(from), name_of(to), lane.data, 0});
    add_part({Kind::Latency, stage, std::nullopt, name_of(from), name_of(to), lane.latency, 0});
    if (lane.data + lane.latency <= Seconds(0)) return;
    std::vector<std::string> route;
    for (const auto& link : cluster_.network->links(from, to)) add_once(route, link);
    for (const auto& link : route) links_[link] += lane.data + lane.latency;
  }

  void add_full_stages()
  {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const auto& stage = path_.stages[i];
      if (stage.waits_for_room == 0) continue;
      step_.full.push_back({i, name_of(stages_[i].device),
                            microbatches_in_flight(schedule_, stages_.size() - 1 - i, goal_.microbatches),
                            stage.waits_for_room, stage.idle_for_room, std::nullopt});
    }
    std::stable_sort(step_.full.begin(), step_.full.end(),
                     [](const auto& a, const auto& b) { return a.idle > b.idle; });
    for (std::size_t i = 0; i < std::min(most_tried, step_.full.size()); ++i) {
      const MoreInFlight more{step_.full[i].stage + 1};
      step_.full[i].saved_by_one_more =
          saved(critical_path(schedule_, goal_.microbatches, times_.input, times_.stages, more));
    }
  }

  Seconds saved(const CriticalPath& relaxed) const { return std::max(Seconds(0), path_.step_time - relaxed.step_time); }

  const std::vector<StagePlacement>& stages_;
  const Cluster& cluster_;
  const Goal& goal_;
  ChainSchedule schedule_;
  StepTimes times_;
  CriticalPath path_;
  Explanation::StepPath step_;
  std::map<std::string, Seconds> devices_;
  std::map<std::string, Seconds> links_;
};

std::vector<Explanation::FullMemory> full_memory(const std::vector<StagePlacement>& stages, const CostModel& cost,
                                                 const Goal& goal)
{
  std::vector<Explanation::FullMemory> full;
  const ChainSchedule schedule = require_chain_schedule(goal.schedule);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [index, first, last] = stages[i];
    const Device& device = cost.cluster().devices[index];
    const auto in_flight = microbatches_in_flight(schedule, stages.size() - 1 - i, goal.microbatches);
    const Bytes used = cost.memory(first, last, in_flight);
    const bool one_more_fits = (first > 0 && cost.memory(first - 1, last, in_flight) <= device.memory) ||
                               (last + 1 < cost.layers() && cost.memory(first, last + 1, in_flight) <= device.memory);
    const bool has_neighbours = stages.size() > 1;
    if (used >= full_fraction * device.memory || (has_neighbours && !one_more_fits)) {
      full.push_back({device.name, used, device.memory});
    }
  }
  return full;
}

/// A network in which one link is faster.
class FasterLink : public Network {
 public:
  FasterLink(std::shared_ptr<const Network> network, std::string link)
      : network_(std::move(network)), link_(std::move(link))
  {
  }
  Path path(std::size_t from, std::size_t to) const override
  {
    return network_->path_with(from, to, link_, relaxation);
  }
  std::vector<std::string> links(std::size_t from, std::size_t to) const override { return network_->links(from, to); }
  std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override
  {
    auto links = network_->shared_links(from, to);
    for (auto& link : links) link.bandwidth = link.bandwidth * (link.name == link_ ? relaxation : 1);
    return links;
  }

 private:
  std::shared_ptr<const Network> network_;
  std::string link_;
};

/// The bottleneck's names and those of the largest shares, each once.
std::vector<std::string> candidates(std::vector<std::string> names, const std::vector<Explanation::Share>& shares)
{
  for (std::size_t i = 0; i < std::min(most_tried, shares.size()); ++i) add_once(names, shares[i].name);
  return names;
}

/// `objective_of`: the plan's objective on a cluster.
template <typename ObjectiveOf, typename Change>
std::vector<Explanation::Relaxation> relaxations(const std::vector<std::string>& names, const Cluster& cluster,
                                                 const ObjectiveOf& objective_of, const Change& change)
{
  const Seconds objective = objective_of(cluster);
  std::vector<Explanation::Relaxation> result;
  for (const auto& name : names) {
    Cluster changed = cluster;
    change(changed, name);
    result.push_back({name, std::max(Seconds(0), objective - objective_of(changed))});
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.saves > b.saves; });
  return result;
}

void speed_up(Cluster& cluster, const std::string& name)
{
  const auto index = cluster.device_index(name);
  if (!index) return;  // the data server computes nothing
  Device& device = cluster.devices[*index];
  device.pace *= relaxation;
  device.speed *= relaxation;
  for (auto& [dtype, speed] : device.speed_in) speed *= relaxation;
}

void widen(Cluster& cluster, const std::string& link)
{
  cluster.network = std::make_shared<FasterLink>(cluster.network, link);
}

/// Multiplier of each device: the largest of all rungs or, for the bottleneck, its fraction of the last rung's sum.
std::vector<double> multipliers_of(const Plan& plan, std::size_t devices)
{
  std::vector<double> result(devices, 0);
  const auto& rungs = plan.certificate.rungs;
  if (plan.goal.objective == Objective::Bottleneck) {
    const auto& last = rungs.back().multipliers;
    const double all = std::accumulate(last.begin(), last.end(), 0.0);
    for (std::size_t i = 0; i < devices && all > 0; ++i) result[i] = last[i] / all;
    return result;
  }
  for (const auto& rung : rungs) {
    for (std::size_t i = 0; i < devices; ++i) result[i] = std::max(result[i], rung.multipliers[i]);
  }
  return result;
}

void add_prices(Explanation& explanation, const Plan& plan, const std::vector<StagePlacement>& stages,
                const Cluster& cluster)
{
  if (plan.certificate.kind != CertificateKind::Path || plan.certificate.rungs.empty()) return;
  std::vector<bool> is_used(cluster.devices.size(), false);
  for (const auto& stage : stages) is_used[stage.device] = true;
  const Seconds bound = plan.objective_bound.value_or(Seconds(0));
  const auto multipliers = multipliers_of(plan, cluster.devices.size());
  for (std::size_t i = 0; i < multipliers.size(); ++i) {
    const std::string& name = cluster.devices[i].name;
    const double u = multipliers[i];
    if (u > 0) {
      const bool is_fraction = plan.goal.objective == Objective::Bottleneck;
      const Seconds saves = is_fraction ? bound * (u / (1 + u)) : Seconds(u);
      const bool is_informative = saves < bound;  // no device saves more than all
      if (is_informative) explanation.prices.push_back({name, u, saves, !is_used[i]});
    } else if (!is_used[i]) {
      explanation.not_worth_using.push_back(name);
    }
  }
  std::stable_sort(explanation.prices.begin(), explanation.prices.end(),
                   [](const auto& a, const auto& b) { return a.multiplier > b.multiplier; });
}

}  // namespace

Explanation explain(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  ensure(!plan.stages.empty(), "only a plan with stages can be explained");
  const CostModel cost(workload, cluster);
  const Goal& goal = plan.goal;
  const auto stages = placement_of(plan, cluster);
  const Seconds objective = cost.evaluate(stages, goal).objective;
  const auto parts = parts_of(stages, cost, goal);
  const Part& largest =
      *std::max_element(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.cost < b.cost; });

  Explanation explanation;
  explanation.bottleneck = bottleneck_of(parts, largest, cluster, goal.communication);
  if (goal.objective == Objective::Step) {
    StepExplainer(stages, cost, goal).add_to(explanation);
  } else {
    add_shares(explanation, parts, largest, cluster, goal, objective);
  }
  explanation.full = full_memory(stages, cost, goal);
  const bool max_counts = goal.objective == Objective::Bottleneck || goal.objective == Objective::Pipeline;
  std::vector<std::string> binding_devices;
  std::vector<std::string> binding_links;
  if (max_counts) {
    if (largest.stage) binding_devices.push_back(explanation.bottleneck->device);
    binding_links = explanation.bottleneck->links;
  }
  const auto objective_of = [&](const Cluster& changed) {
    return CostModel(workload, changed).evaluate(stages, goal).objective;
  };
  explanation.faster_devices =
      relaxations(candidates(binding_devices, explanation.devices), cluster, objective_of, speed_up);
  explanation.faster_links = relaxations(candidates(binding_links, explanation.links), cluster, objective_of, widen);
  add_prices(explanation, plan, stages, cluster);
  explanation.gap = plan.objective.value_or(objective) - plan.objective_bound.value_or(Seconds(0));
  explanation.devices_used = stages.size();
  explanation.worth_using = devices_worth_using(cost, goal);
  return explanation;
}

namespace {

/// The critical path of a played step, summed by part, and its shares by device and link.
class PlayedExplainer {
 public:
  PlayedExplainer(const Plan& plan, const Cluster& cluster)
      : cluster_(cluster), stages_(pipeline_stages(plan)), names_(devices_of(plan))
  {
    if (plan.data_server) names_.push_back(*plan.data_server);
    for (const auto& name : names_) endpoints_.push_back(endpoint_of(name));
  }

  void add_to(Explanation& explanation, const PlayedPath& path, Seconds step_without_latency)
  {
    for (const auto& part : path.parts) add(part);
    Explanation::StepPath step;
    for (auto& [key, part] : parts_) {
      part.fraction = part.time / path.step_time;
      step.parts.push_back(std::move(part));
    }
    std::stable_sort(step.parts.begin(), step.parts.end(),
                     [](const auto& a, const auto& b) { return a.time > b.time; });
    step.saved_without_latency = std::max(Seconds(0), path.step_time - step_without_latency);
    explanation.step = std::move(step);
    explanation.devices = shares_of(devices_, path.step_time);
    explanation.links = shares_of(links_, path.step_time);
  }

 private:
  using Key =
      std::tuple<PlayedPath::Kind, std::size_t, std::optional<Payload>, std::size_t, std::optional<std::size_t>>;

  std::size_t endpoint_of(const std::string& name) const
  {
    return cluster_.device_index(name).value_or(cluster_.devices.size());
  }

  void add(const PlayedPath::Part& part)
  {
    const std::size_t stage = stages_[part.stage];
    const Key key(part.kind, stage, part.collective, part.from, part.to);
    auto& sum = parts_[key];
    const bool is_of_data_server = endpoints_[part.from] >= cluster_.devices.size();
    sum.kind = static_cast<Explanation::PathPart::Kind>(part.kind);
    if (!is_of_data_server) sum.stage = stage;
    sum.collective = part.collective;
    sum.from = names_[part.from];
    if (part.to) sum.to = names_[*part.to];
    sum.time += part.time;
    if (!part.to) {
      if (part.kind == PlayedPath::Kind::Compute) devices_[sum.from] += part.time;
      return;
    }
    std::vector<std::string> route;
    for (const auto& link : cluster_.network->links(endpoints_[part.from], endpoints_[*part.to])) add_once(route, link);
    for (const auto& link : route) links_[link] += part.time;
  }

  const Cluster& cluster_;
  std::vector<std::size_t> stages_;     // of the pipeline, by stage
  std::vector<std::string> names_;      // by rank
  std::vector<std::size_t> endpoints_;  // likewise, in the network
  std::map<Key, Explanation::PathPart> parts_;
  std::map<std::string, Seconds> devices_;
  std::map<std::string, Seconds> links_;
};

}  // namespace

Explanation explain_by_playing(const Plan& plan,
                               const std::function<std::unique_ptr<Program>(const Cluster&)>& program_on,
                               const Workload& workload, const Cluster& cluster)
{
  ensure(plan.goal.objective == Objective::Step, "only the step of a plan can be played");
  const auto made = program_on(cluster);
  const Program& program = *made;
  const PlayerRates rates = nominal_rates(plan, cluster);
  const PlayedProgram played = play_program(program, rates);
  const Seconds step_time = played.periods.front().step_time;
  PlayerRates without_latency = rates;
  without_latency.collective_starts.clear();
  if (rates.transfer) {
    without_latency.transfer = [&rates](std::size_t from, std::size_t to, Bytes size) {
      return TransferTimes{Seconds(0), rates.transfer(from, to, size).data};
    };
  }
  Explanation explanation;
  PlayedExplainer(plan, cluster)
      .add_to(explanation, played_path(program, rates),
              play_program(program, without_latency).periods.front().step_time);
  const auto devices = devices_of(plan);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const Bytes used = played.peak_memory[rank][static_cast<std::size_t>(Tier::Device)];
    const Bytes has = cluster.devices[cluster.device_index(devices[rank]).value()].memory;
    if (used >= full_fraction * has) explanation.full.push_back({devices[rank], used, has});
  }
  const auto step_of = [&](const Cluster& changed) {
    return play_program(*program_on(changed), nominal_rates(plan, changed)).periods.front().step_time;
  };
  explanation.faster_devices = relaxations(candidates({}, explanation.devices), cluster, step_of, speed_up);
  explanation.faster_links = relaxations(candidates({}, explanation.links), cluster, step_of, widen);
  explanation.gap = plan.objective.value_or(step_time) - plan.objective_bound.value_or(Seconds(0));
  explanation.devices_used = devices.size();
  if (chain_schedule(plan.goal.schedule)) {
    explanation.worth_using = devices_worth_using(CostModel(workload, cluster), plan.goal);
  }
  return explanation;
}

}  // namespace isobar::results
