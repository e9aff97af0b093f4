#include "schedules/rounds/played_round.hpp"

#include "core/compute/as_trained.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/program/round_time.hpp"
#include "core/program/walk.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/rounds/round_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace isobar::schedules {

namespace {

/// The rates of the ranks of several plans, one after the other. Transfers pass over the network of the cluster.
class JoinedRates {
 public:
  explicit JoinedRates(const Cluster& cluster) : cluster_(cluster) {}

  void add(const Plan& plan, const Cluster& own)
  {
    PlayerRates more = nominal_rates(plan, own);
    const auto append = [](auto& all, auto& added) { all.insert(all.end(), added.begin(), added.end()); };
    const std::size_t ranks = more.sites.size();
    more.machines.resize(ranks);
    more.interference.resize(ranks, 1);
    append(rates_.sites, more.sites);
    append(rates_.machines, more.machines);
    append(rates_.interference, more.interference);
    append(rates_.collective_starts, more.collective_starts);
    const auto indices = indices_of_devices(plan, cluster_);
    endpoints_.insert(endpoints_.end(), indices.begin(), indices.end());
    if (plan.data_server) endpoints_.push_back(cluster_.data_server_index());
  }

  PlayerRates take()
  {
    if (std::ranges::all_of(rates_.interference, [](double each) { return each == 1; })) rates_.interference.clear();
    rates_.transfer = [endpoints = endpoints_, network = cluster_.network](std::size_t from, std::size_t to,
                                                                           Bytes size) {
      const Path path = network->path(endpoints.at(from), endpoints.at(to));
      return TransferTimes{path.latency, path.data_time(size)};
    };
    rates_.shared_links = [endpoints = endpoints_, network = cluster_.network](std::size_t from, std::size_t to) {
      return network->shared_links(endpoints.at(from), endpoints.at(to));
    };
    return std::move(rates_);
  }

 private:
  const Cluster& cluster_;
  PlayerRates rates_;
  std::vector<std::size_t> endpoints_;
};

/// What a step of a worker takes in a run of them.
Seconds time_of_steps(const Program& step, const Plan& plan, const Cluster& cluster)
{
  constexpr std::uint64_t steps = 3;
  return play_program(step, nominal_rates(plan, cluster), steps).periods.back().step_time;
}

std::vector<OuterRank> outer_ranks(const Plan& plan, const Cluster& cluster)
{
  std::vector<OuterRank> ranks;
  for (const std::size_t index : indices_of_devices(plan, cluster)) {
    const Device& device = cluster.devices[index];
    const bool on_machine = device.machine && cluster.machines[device.machine->machine].update_speed.value > 0;
    const FlopsPerSecond speed =
        on_machine ? machine_rates(plan, device, cluster).update_speed : device.speed_at(DType::Float32);
    ranks.push_back({Flops(encode_flops) / speed, Flops(outer_update_flops) / speed, on_machine});
  }
  return ranks;
}

/// The flows of the sync of `values` values of each worker; none of 0 values.
std::vector<Round> rounds_of_sync(const Outer& outer, std::size_t workers, std::uint64_t values)
{
  if (values == 0) return {};
  const std::vector<Bytes> sizes(workers, encoded_size(outer.codec, values));
  return rounds_of(is_sparse(outer.codec) ? Opcode::AllGather : Opcode::AllReduce, sizes, outer.algorithm);
}

std::vector<OuterTraffic> traffic_of(const OuterPlan& plan, const OuterDivision& division)
{
  const std::size_t workers = plan.workers.size();
  std::vector<Bytes> sent(workers * workers);
  for (const auto& piece : division.pieces) {
    for (const std::uint64_t values : piece.values) {
      for (const Round& round : rounds_of_sync(plan.outer, workers, values)) {
        for (const Flow& flow : round) sent[flow.from * workers + flow.to] += flow.size();
      }
    }
  }
  std::vector<OuterTraffic> traffic;
  for (std::size_t from = 0; from < workers; ++from) {
    for (std::size_t to = 0; to < workers; ++to) {
      const Bytes bytes = sent[from * workers + to];
      if (bytes > Bytes(0)) traffic.push_back({plan.workers[from].name, plan.workers[to].name, bytes});
    }
  }
  return traffic;
}

/// The least time of a round; `whole` has every step.
Seconds bound_of(const OuterPlan& plan, const BuiltRound& whole, const std::vector<Seconds>& busy,
                 double profile_speedup)
{
  const EndNetwork network = network_between_ranks(whole.rates);
  std::vector<Seconds> least = busy;
  Seconds bound;
  std::vector<std::vector<Seconds>> waits(busy.size(), std::vector<Seconds>(plan.outer.fragments));
  for (const auto& piece : whole.division.pieces) {
    std::vector<std::size_t> ends;
    for (std::size_t worker = 0; worker < piece.ranks.size(); ++worker) {
      ends.push_back(whole.first_rank[worker] + piece.ranks[worker]);
    }
    const EndNetwork between = network_between(ends, network);
    Seconds all;
    for (std::size_t f = 0; f < plan.outer.fragments; ++f) {
      const Seconds time = collective_time(rounds_of_sync(plan.outer, ends.size(), piece.values[f]), between);
      all += time;
      for (const std::size_t end : ends) waits[end][f] = std::max(waits[end][f], time);
    }
    bound = std::max(bound, all);
  }
  for (std::size_t rank = 0; rank < busy.size(); ++rank) {
    for (const Seconds wait : waits[rank]) {
      if (plan.outer.delay == 0) least[rank] += wait;
    }
    bound = std::max(bound, least[rank]);
  }
  return bound / profile_speedup;
}

/// What the compute lane of each rank computes in a round with all its steps.
std::vector<Seconds> busy_times(const OuterPlan& plan, const std::vector<std::unique_ptr<Program>>& steps)
{
  std::vector<Seconds> busy;
  for (std::size_t worker = 0; worker < steps.size(); ++worker) {
    for (std::size_t rank = 0; rank < steps[worker]->ranks(); ++rank) {
      Seconds time;
      for (std::uint64_t i = 0; i < steps[worker]->length(rank, compute_lane); ++i) {
        time += steps[worker]->at(rank, compute_lane, i).time;
      }
      busy.push_back(static_cast<double>(plan.workers[worker].steps) * time);
    }
  }
  return busy;
}

struct BuiltSteps {
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<Seconds> step_times;
};

/// The Program of each worker's step, and what it takes in a run of them.
BuiltSteps build_steps(const OuterPlan& plan, const std::vector<Workload>& workloads, const Cluster& cluster)
{
  BuiltSteps steps;
  for (std::size_t k = 0; k < plan.workers.size(); ++k) {
    const Plan& own = plan.workers[k].plan;
    const compute::AsTrained trained(own, workloads.at(k), cluster);
    steps.programs.push_back(make_program(own, trained.workload(), trained.cluster()));
    steps.step_times.push_back(time_of_steps(*steps.programs.back(), own, trained.cluster()));
  }
  return steps;
}

}  // namespace

BuiltRound build_round(const RoundInputs& inputs, RoundSteps steps)
{
  const auto& [plan, workload, workloads, cluster] = inputs;
  BuiltRound built;
  built.division = divide_outer(plan.workers, workload, plan.outer.fragments);
  JoinedRates rates(cluster);
  std::vector<RoundWorker> workers;
  for (std::size_t k = 0; k < plan.workers.size(); ++k) {
    const Plan& own = plan.workers[k].plan;
    if (own.goal.has_free_transfers()) {
      throw InputError(fmt::format("workers[{}].plan.communication", k), "is none; rounds need played");
    }
    const compute::AsTrained trained(own, workloads.at(k), cluster);
    RoundWorker& worker = workers.emplace_back();
    worker.step = make_program(own, trained.workload(), trained.cluster());
    worker.ranks = outer_ranks(own, trained.cluster());
    worker.steps = plan.workers[k].steps;
    if (steps == RoundSteps::InOne) worker.step_time = time_of_steps(*worker.step, own, trained.cluster());
    built.first_rank.push_back(built.devices.size());
    for (const auto& device : devices_of(own)) built.devices.push_back(device);
    if (own.data_server) built.devices.push_back(*own.data_server);
    rates.add(own, trained.cluster());
  }
  built.rates = rates.take();
  built.program = make_round_program(std::move(workers), plan.outer, built.division);
  return built;
}

PlayedRound play_round(const RoundInputs& inputs, std::uint64_t most_whole)
{
  const auto& [plan, workload, workloads, cluster] = inputs;
  BuiltRound built = build_round(inputs, RoundSteps::All);
  if (instructions_of(*built.program) > most_whole) built = build_round(inputs, RoundSteps::InOne);
  const auto played = play_program(*built.program, built.rates, rounds_to_play);
  const BuiltSteps steps = build_steps(plan, workloads, cluster);
  PlayedRound result;
  result.predicted.round_time = played.periods.back().step_time;
  for (std::size_t k = 0; k < plan.workers.size(); ++k) {
    const Seconds time = static_cast<double>(plan.workers[k].steps) * steps.step_times[k];
    result.predicted.slowest_steps = std::max(result.predicted.slowest_steps, time);
  }
  result.predicted.traffic = traffic_of(plan, built.division);
  result.bound = bound_of(plan, built, busy_times(plan, steps.programs), cluster.profile_speedup);
  for (std::size_t rank = 0; rank < built.devices.size(); ++rank) {
    const auto index = cluster.device_index(built.devices[rank]);
    if (!index) continue;  // the data server
    result.peak_memory[built.devices[rank]] = played.peak_memory[rank][static_cast<std::size_t>(Tier::Device)];
    if (const auto& machine = cluster.devices[*index].machine) {
      result.machine_memory[cluster.machines[machine->machine].name] +=
          played.peak_memory[rank][static_cast<std::size_t>(Tier::Host)];
    }
  }
  return result;
}

std::vector<std::string> memory_faults_of(const PlayedRound& played, const Cluster& cluster)
{
  std::vector<std::string> faults;
  const auto check = [&](const std::string& kind, const std::string& name, Bytes needed, Bytes has) {
    if (needed <= has) return;
    faults.push_back(fmt::format("{} {} needs {} with what outer updates hold, and has {}", kind, name, text_of(needed),
                                 text_of(has)));
  };
  for (const auto& device : cluster.devices) {
    const auto found = played.peak_memory.find(device.name);
    if (found != played.peak_memory.end()) check("device", device.name, found->second, device.memory);
  }
  for (const auto& machine : cluster.machines) {
    const auto found = played.machine_memory.find(machine.name);
    if (found != played.machine_memory.end()) check("machine", machine.name, found->second, machine.memory);
  }
  return faults;
}

}  // namespace isobar::schedules
