#include "cli/rounds/outer_planning.hpp"

#include "cli/planning/planning.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/clock.hpp"
#include "core/outer/ring_order.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace isobar::cli {

namespace {

/// The devices of each site, in the order of the platform.
std::vector<std::pair<std::string, std::vector<std::string>>> devices_by_site(const Cluster& cluster)
{
  std::vector<std::pair<std::string, std::vector<std::string>>> sites;
  for (const auto& device : cluster.devices) {
    if (device.site.empty()) {
      throw InputError("--outer", fmt::format("device {} has no site, and rounds are of sites; give it one in the "
                                              "platform or its devices file, or leave it out",
                                              device.name));
    }
    auto found = std::ranges::find(sites, device.site, &std::pair<std::string, std::vector<std::string>>::first);
    if (found == sites.end()) found = sites.insert(sites.end(), {device.site, {}});
    found->second.push_back(device.name);
  }
  if (sites.size() < 2) {
    throw InputError("--outer", fmt::format("all devices are at site {}; rounds need two sites or more",
                                            sites.empty() ? "" : sites.front().first));
  }
  return sites;
}

class RoundPlanner {
 public:
  RoundPlanner(const Inputs& inputs, const SiteSearch& search, const OuterOptions& options)
      : inputs_(inputs), search_(search), options_(options), cluster_(inputs.platform.cluster())
  {
  }

  FoundRounds plan()
  {
    base_.outer = options_.outer();
    const std::uint64_t layers = inputs_.workload.layers.size();
    if (base_.outer.fragments > layers) {
      throw InputError("--fragments", fmt::format("{}; the model has {} layers", base_.outer.fragments, layers));
    }
    plan_sites();
    leave_out_full_ones();
    if (base_.workers.size() < 2) return {std::nullopt, reasons()};
    OuterPlan best = best_choice(options_.number_of_steps());
    const auto round = played(best, schedules::most_played_whole);
    best.predicted = round.predicted;
    best.round_bound = round.bound;
    return {std::move(best), {}};
  }

 private:
  void plan_sites()
  {
    for (const auto& [site, devices] : devices_by_site(cluster_)) {
      Inputs own = inputs_;
      std::vector<std::string> others;
      for (const auto& device : cluster_.devices) {
        if (device.site != site) others.push_back(device.name);
      }
      own.without.insert(own.without.end(), others.begin(), others.end());
      own.platform.leave_out(others, "--outer");
      Plan plan = make_best_plan(own, search_.allocator, search_.goal, search_.limits, search_.splits);
      plan.without = own.without;
      if (plan.stages.empty()) {
        base_.left_out.push_back({site, reason_of(plan)});
      } else {
        base_.workers.push_back({site, base_.outer.steps, std::move(plan)});
      }
    }
  }

  /// Leaves out sites whose devices have no room for the outer state.
  void leave_out_full_ones()
  {
    while (base_.workers.size() >= 2) {
      const auto faults = schedules::memory_faults_of(played(base_), cluster_);
      if (faults.empty()) return;
      const auto before = base_.workers.size();
      std::erase_if(base_.workers, [&](const OuterWorker& worker) {
        for (const auto& device : devices_of(worker.plan)) {
          for (const auto& fault : faults) {
            if (!fault.starts_with(fmt::format("device {} ", device)) && !is_of_machine(device, fault)) continue;
            base_.left_out.push_back({worker.name, fault});
            return true;
          }
        }
        return false;
      });
      if (base_.workers.size() == before) return;
    }
  }

  bool is_of_machine(const std::string& device, const std::string& fault) const
  {
    const auto& machine = cluster_.devices[cluster_.device_index(device).value()].machine;
    return machine && fault.starts_with(fmt::format("machine {} ", cluster_.machines[machine->machine].name));
  }

  std::vector<std::string> reasons() const
  {
    std::vector<std::string> lines;
    for (const auto& [site, reason] : base_.left_out) lines.push_back(fmt::format("site {}: {}", site, reason));
    return lines;
  }

  schedules::PlayedRound played(const OuterPlan& plan, std::uint64_t most_whole = 0) const
  {
    const auto workloads = workloads_of(plan, inputs_);
    return schedules::play_round({plan, inputs_.workload, workloads, cluster_}, most_whole);
  }

  /// Codecs, fragments and delays, from those that change the numerics least; only the given ones where there are
  /// options.
  std::vector<Outer> choices(std::uint64_t steps) const
  {
    std::vector<std::string> codecs = {"fp32", "bf16", "int8", "int4"};
    if (options_.codec) codecs = {*options_.codec};
    struct Streaming {
      std::uint64_t fragments;
      std::uint64_t delay;
    };
    // Streaming DiLoCo, section 4: fragments of some layers, and no effect on quality up to a delay of 5 steps.
    std::vector<Streaming> streamings = {{1, 0}, {1, 1}, {4, 5}};
    if (options_.fragments || options_.delay) streamings = {{base_.outer.fragments, base_.outer.delay}};
    std::vector<Outer> all;
    for (const auto& [fragments, delay] : streamings) {
      if (fragments > steps || fragments > inputs_.workload.layers.size() || delay >= steps) continue;
      for (const auto& codec : codecs) {
        Outer outer = base_.outer;
        outer.steps = steps;
        outer.fragments = fragments;
        outer.delay = delay;
        outer.codec = codec_from_text(codec);
        all.push_back(outer);
      }
    }
    return all;
  }

  OuterPlan best_choice(std::optional<std::uint64_t> number)
  {
    if (number) return with_best_sites(base_.outer);  // what was not said has its default
    constexpr std::uint64_t most_steps = 500;         // below it little is gained (DiLoCo, section 4)
    std::optional<OuterPlan> best;
    for (const std::uint64_t steps : {std::uint64_t{50}, std::uint64_t{100}, most_steps}) {
      for (const Outer& outer : choices(steps)) {
        OuterPlan plan = with_best_sites(outer);
        const double part = plan.predicted.utilization_fraction();
        if (!best || part > best->predicted.utilization_fraction()) best = plan;
        if (part >= wanted_utilization) return plan;
      }
    }
    return std::move(best).value();
  }

  /// The plan with the sites that give the most samples per second by `estimated_rate`: first the fastest sites,
  /// however many, and then without one after the other.
  OuterPlan with_best_sites(const Outer& outer) const
  {
    OuterPlan plan = base_;
    plan.outer = outer;
    set_steps(plan);
    arrange(plan);
    keep_fastest(plan);
    leave_out_singly(plan);
    arrange(plan);
    const auto round = played(plan);
    plan.predicted = round.predicted;
    plan.round_bound = round.bound;
    return plan;
  }

  void keep_fastest(OuterPlan& plan) const
  {
    std::vector<Seconds> times;
    for (const auto& worker : plan.workers) times.push_back(step_time_of(worker));
    std::ranges::sort(times);
    const double rate_of_all = estimated_rate(plan);
    double rate = rate_of_all;
    OuterPlan best = plan;
    for (std::size_t kept = 2; kept < times.size(); ++kept) {
      OuterPlan fewer = plan;
      std::erase_if(fewer.workers, [&](const OuterWorker& worker) { return step_time_of(worker) > times[kept - 1]; });
      set_steps(fewer);
      if (estimated_rate(fewer) <= rate) continue;
      rate = estimated_rate(fewer);
      best = std::move(fewer);
    }
    for (const auto& worker : plan.workers) {
      if (std::ranges::find(best.workers, worker.name, &OuterWorker::name) != best.workers.end()) continue;
      best.left_out.push_back({worker.name, reason_of_rates(rate, rate_of_all)});
    }
    plan = std::move(best);
  }

  void leave_out_singly(OuterPlan& plan) const
  {
    double rate = estimated_rate(plan);
    while (plan.workers.size() > 2) {
      std::optional<std::pair<double, OuterPlan>> better;
      for (const std::size_t each : worth_leaving_out(plan)) {
        OuterPlan other = plan;
        other.left_out.push_back({plan.workers[each].name, ""});
        other.workers.erase(other.workers.begin() + static_cast<std::ptrdiff_t>(each));
        set_steps(other);
        const double own = estimated_rate(other);
        if (own > (better ? better->first : rate)) better.emplace(own, std::move(other));
      }
      if (!better) return;
      better->second.left_out.back().reason = reason_of_rates(better->first, rate);
      rate = better->first;
      plan = std::move(better->second);
    }
  }

  static std::string reason_of_rates(double without, double with)
  {
    return fmt::format("the others have {:.4g} samples/s, and {:.4g} with it", without, with);
  }

  void set_steps(OuterPlan& plan) const
  {
    Seconds fastest(std::numeric_limits<double>::infinity());
    for (const auto& worker : plan.workers) fastest = std::min(fastest, step_time_of(worker));
    for (auto& worker : plan.workers) {
      worker.steps = plan.outer.steps;
      if (!options_.steps_by_speed) continue;
      const double share = fastest / step_time_of(worker);
      const auto own = static_cast<std::uint64_t>(static_cast<double>(plan.outer.steps) * share);
      worker.steps = std::max({own, plan.outer.delay + 1, plan.outer.fragments});
    }
  }

  /// Gives workers the order of the ring.
  void arrange(OuterPlan& plan) const
  {
    const auto order = ring_order(plan.workers.size(), [&](std::size_t from, std::size_t to) {
      return hop_time(plan, plan.workers[from], plan.workers[to]).value;
    });
    std::vector<OuterWorker> ordered;
    for (const std::size_t each : order) ordered.push_back(std::move(plan.workers[each]));
    plan.workers = std::move(ordered);
  }

  static Seconds step_time_of(const OuterWorker& worker) { return worker.plan.predicted->step_time; }

  /// What one message of the ring takes from a worker to another.
  Seconds hop_time(const OuterPlan& plan, const OuterWorker& from, const OuterWorker& to) const
  {
    std::uint64_t values = 0;
    for (const auto& layer : inputs_.workload.layers) values += layer.parameters;
    const Bytes size = encoded_size(plan.outer.codec, values);
    const auto index_of = [&](const OuterWorker& worker) {
      return cluster_.device_index(devices_of(worker.plan).front()).value();
    };
    return cluster_.path(index_of(from), index_of(to))
        .transfer_time(size / static_cast<double>(plan.workers.size() * plan.outer.fragments));
  }

  /// Samples per second by the closed form of a ring whose slowest hop counts (docs/rounds.md).
  double estimated_rate(const OuterPlan& plan) const
  {
    const std::size_t workers = plan.workers.size();
    Seconds steps;
    Seconds slowest_hop;
    for (std::size_t k = 0; k < workers; ++k) {
      steps = std::max(steps, static_cast<double>(plan.workers[k].steps) * step_time_of(plan.workers[k]));
      slowest_hop = std::max(slowest_hop, hop_time(plan, plan.workers[k], plan.workers[(k + 1) % workers]));
    }
    const Seconds sync = 2 * static_cast<double>(workers - 1) * slowest_hop;
    const Seconds step = steps / static_cast<double>(plan.outer.steps);
    const Seconds exposed = std::max(Seconds(0), sync - static_cast<double>(plan.outer.delay) * step);
    const Seconds round = steps + static_cast<double>(plan.outer.fragments) * exposed;
    return static_cast<double>(samples_of_round(plan, inputs_.workload.micro_batch)) / round.value;
  }

  /// The slowest worker, and the two ends of the slowest hop: without others the round is as long.
  std::vector<std::size_t> worth_leaving_out(const OuterPlan& plan) const
  {
    const std::size_t workers = plan.workers.size();
    std::size_t slowest = 0;
    std::size_t hop = 0;
    const auto time_of = [&](std::size_t k) {
      return static_cast<double>(plan.workers[k].steps) * step_time_of(plan.workers[k]);
    };
    const auto hop_of = [&](std::size_t k) { return hop_time(plan, plan.workers[k], plan.workers[(k + 1) % workers]); };
    for (std::size_t k = 1; k < workers; ++k) {
      if (time_of(k) > time_of(slowest)) slowest = k;
      if (hop_of(k) > hop_of(hop)) hop = k;
    }
    return {slowest, hop, (hop + 1) % workers};
  }

  const Inputs& inputs_;
  const SiteSearch& search_;
  const OuterOptions& options_;
  const Cluster& cluster_;
  OuterPlan base_;  // a worker for each site that has a plan
};

}  // namespace

FoundRounds plan_rounds(const Inputs& inputs, const SiteSearch& search, const OuterOptions& options)
{
  const Seconds begin = steady_time();
  FoundRounds found = RoundPlanner(inputs, search, options).plan();
  if (found.plan) found.plan->search_time = steady_time() - begin;
  return found;
}

std::vector<Workload> workloads_of(const OuterPlan& plan, const Inputs& inputs)
{
  std::vector<Workload> workloads;
  for (const auto& worker : plan.workers) workloads.push_back(as_planned(inputs, worker.plan));
  return workloads;
}

double tokens_per_second(const OuterPlan& plan, Seconds round_time, const Workload& workload)
{
  const auto samples = static_cast<double>(samples_of_round(plan, workload.micro_batch));
  return samples * static_cast<double>(workload.sequence) / round_time.value;
}

std::string summary_of(const OuterPlan& plan, const Workload& workload)
{
  const Outer& outer = plan.outer;
  const PredictedRound& predicted = plan.predicted;
  std::string text = fmt::format(
      "{}: rounds of {} steps at {} sites; {} in {} fragment{}, delay {}, summed by {}\n"
      "predicted round {:.6g} s, none below {:.6g} s; {:.6g} s a step\n"
      "{:.1f} tokens/s, {:.1f} % of the time in steps, {} samples a round\n{}\n\n",
      plan.allocator, outer.steps, plan.workers.size(), text_of(outer.codec), outer.fragments,
      outer.fragments == 1 ? "" : "s", outer.delay, name_of(outer.algorithm), predicted.round_time.value,
      plan.round_bound.value, predicted.round_time.value / static_cast<double>(outer.steps),
      tokens_per_second(plan, predicted.round_time, workload), 100 * predicted.utilization_fraction(),
      samples_of_round(plan, workload.micro_batch), numerics_note(outer));
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, steps, own] : plan.workers) {
    Bytes sent;
    for (const auto& each : predicted.traffic) {
      if (each.from == name) sent += each.bytes;
    }
    rows.push_back({name, fmt::format("{}", devices_of(own).size()), fmt::format("{}", steps),
                    text_of(own.predicted->step_time), text_of(sent), text_of(sent / predicted.round_time)});
  }
  text += results::table_of({"site", "devices", "steps", "step", "sends a round", "on average"}, rows);
  for (const auto& [site, reason] : plan.left_out) text += fmt::format("left out: {}: {}\n", site, reason);
  return text;
}

}  // namespace isobar::cli
