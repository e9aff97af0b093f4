#include "allocators/mix/link_shifts.hpp"
#include "allocators/mix/rotation.hpp"
#include "allocators/mix/shared_round.hpp"
#include "cli/mix_simulation.hpp"
#include "cli/output_file.hpp"
#include "cli/share/link_demands.hpp"
#include "cli/share/share_options.hpp"
#include "cli/share/shared_jobs.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/progress_line.hpp"
#include "core/base/quantity_text.hpp"
#include "core/base/standard_streams.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <thread>

namespace isobar::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr Seconds no_limit(1e9);
constexpr std::size_t most_jobs_in_all_orders = 4;
constexpr double rounding = 1e-9;  // of a gap

/// A mix of the jobs to try, and what its simulation said.
struct MixCandidate {
  Mix mix;
  std::string failure;  ///< why there is no result; "" if there is one
  Json result;

  Seconds round() const { return Seconds(result["round_time_s"].get<double>()); }
};

/// What swapping the jobs' memory at each hand-over would take.
struct Swap {
  std::string tier;    ///< "host" or "disk": what holds the jobs that are not on the device
  std::string fault;   ///< why no tier does; "" if one does
  Seconds per_turn{};  ///< of the longest hand-over
  Seconds round{};
};

std::size_t processors()
{
  return std::max(1u, std::thread::hardware_concurrency());
}

std::string turns_of(const Mix& mix)
{
  std::string text;
  for (const auto& turn : mix.turns) {
    text += (text.empty() ? "" : " ") + mix.jobs[turn.job].name;
    if (turn.steps > 1) text += fmt::format("×{}", turn.steps);
  }
  return text;
}

/// The jobs as closed forms see them.
std::vector<JobStepTimes> steps_of(const MixInputs& inputs, const std::vector<SoloRun>& alone)
{
  std::vector<JobStepTimes> steps;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    steps.push_back(profile_of(inputs.mix.jobs[i], inputs.jobs[i], alone[i]).step);
  }
  return steps;
}

/// Orders of turns: all cyclic ones of few jobs, else Johnson's, the given one and its reverse. Johnson's comes first.
std::vector<std::vector<std::size_t>> orders_of(const std::vector<JobStepTimes>& steps)
{
  std::vector<std::vector<std::size_t>> orders = {allocators::johnson_order(steps)};
  std::vector<std::size_t> order(steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Two orders are one if turning the first makes it the second.
  const auto add = [&](std::vector<std::size_t> next) {
    auto from_first = [](std::vector<std::size_t> turned) {
      std::rotate(turned.begin(), std::find(turned.begin(), turned.end(), std::size_t{0}), turned.end());
      return turned;
    };
    const bool is_known =
        std::ranges::any_of(orders, [&](const auto& known) { return from_first(known) == from_first(next); });
    if (!is_known) orders.push_back(std::move(next));
  };
  if (steps.size() > most_jobs_in_all_orders) {
    add(order);
    std::ranges::reverse(order);
    add(order);
    return orders;
  }
  do add(order);
  while (std::next_permutation(order.begin() + 1, order.end()));
  return orders;
}

std::map<std::string, std::vector<std::size_t>> jobs_by_device(const MixInputs& inputs)
{
  std::map<std::string, std::vector<std::size_t>> jobs;
  for (std::size_t i = 0; i < inputs.jobs.size(); ++i) {
    for (const auto& device : devices_of(inputs.jobs[i].plan)) jobs[device].push_back(i);
  }
  return jobs;
}

class MixSearch {
 public:
  MixSearch(const ShareOptions& options, SharedJobs& jobs)
      : options_(options),
        inputs_(jobs.inputs()),
        base_(jobs.inputs().mix),
        alone_(simulate_alone(inputs_, options.rounds, processors())),
        bound_(bound_of(inputs_, alone_))
  {
  }

  const std::vector<SoloRun>& alone() const { return alone_; }
  const results::RoundBound& bound() const { return bound_; }
  const std::vector<MixCandidate>& candidates() const { return candidates_; }
  const MixCandidate* best() const { return best_ ? &candidates_[*best_] : nullptr; }
  const std::vector<double>& excess() const { return excess_; }
  const LinkDemands& demands() const { return demands_; }

  /// For jobs with devices in common: the orders of turns under strict rotation, then other rules in the best of them.
  void try_turns()
  {
    for (const auto& order : orders_of(steps_of(inputs_, alone_))) {
      Mix mix = base_;
      mix.turns.clear();
      for (const std::size_t job : order) mix.turns.push_back({job, 1});
      candidates_.push_back({std::move(mix), "", {}});
    }
    simulate();
    const Mix in_best_order = best() != nullptr ? best()->mix : candidates_.front().mix;
    const auto add = [&](Discipline discipline, HandOver hand_over, LinkSharing links) {
      Mix mix = in_best_order;
      mix.discipline = discipline;
      mix.hand_over = hand_over;
      mix.links = links;
      candidates_.push_back({std::move(mix), "", {}});
    };
    add(Discipline::Conserving, HandOver::Step, LinkSharing::Fifo);
    add(Discipline::Conserving, HandOver::Instruction, LinkSharing::Fifo);
    add(Discipline::Strict, HandOver::Step, LinkSharing::Fair);
    add(Discipline::None, HandOver::Step, LinkSharing::Fair);
    simulate();
  }

  /// For jobs with devices of their own that meet on links: as they are, with the best shifts, and in the order of
  /// asking.
  void try_shifts()
  {
    demands_ = link_demands(inputs_, processors());
    if (demands_.links.empty()) {
      throw InputError("JOB", "no two jobs have a device or a link in common, so they share nothing");
    }
    const auto shifts = allocators::best_shifts(demands_.jobs, demands_.links.size());
    excess_ = shifts.excess;
    Mix mix = base_;
    mix.links = LinkSharing::Fair;
    candidates_.push_back({mix, "", {}});
    Mix shifted = mix;
    for (std::size_t i = 0; i < shifted.jobs.size(); ++i) {
      shifted.jobs[i].start = demands_.tick * static_cast<double>(shifts.shifts[i]);
    }
    if (shifted != mix) candidates_.push_back({shifted, "", {}});
    mix.links = LinkSharing::Fifo;
    candidates_.push_back({mix, "", {}});
    simulate();
  }

 private:
  /// Those without a result.
  void simulate()
  {
    std::vector<std::size_t> which;
    std::vector<std::function<std::string()>> work;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      MixCandidate& candidate = candidates_[i];
      if (!candidate.failure.empty() || !candidate.result.is_null()) continue;
      inputs_.mix = candidate.mix;
      if (const auto faults = memory_faults_of(inputs_); !faults.empty()) {
        candidate.failure = faults.front();
        continue;
      }
      which.push_back(i);
      work.emplace_back([this, &candidate] {
        inputs_.mix = candidate.mix;  // of the child
        return simulate_mix(inputs_, alone_, options_.rounds, "");
      });
    }
    ProgressLine progress("mixes", work.size());
    std::size_t ended = 0;
    run_in_children(work, processors(), no_limit, [&](std::size_t index, const ChildResult& result) {
      MixCandidate& candidate = candidates_[which[index]];
      if (result.failure) {
        candidate.failure = result.failure->text;
      } else {
        candidate.result = Json::parse(result.output);
      }
      progress.done(++ended);
    });
    inputs_.mix = base_;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      constexpr double much_less = 1 - 1e-9;  // of equal rounds, the first
      if (!candidates_[i].failure.empty()) continue;
      if (!best_ || candidates_[i].round() < candidates_[*best_].round() * much_less) best_ = i;
    }
  }

  const ShareOptions& options_;
  MixInputs& inputs_;
  Mix base_;
  std::vector<SoloRun> alone_;
  results::RoundBound bound_;
  std::vector<MixCandidate> candidates_;
  std::optional<std::size_t> best_;
  LinkDemands demands_;
  std::vector<double> excess_;
};

/// Each turn swaps the residents of the job before for its own, over the copy lanes of its slowest device.
Swap swap_of(const MixInputs& inputs, const std::vector<SoloRun>& alone)
{
  const Cluster& cluster = inputs.platform.cluster();
  std::vector<JobProfile> profiles;
  for (std::size_t i = 0; i < inputs.jobs.size(); ++i) {
    profiles.push_back(profile_of(inputs.mix.jobs[i], inputs.jobs[i], alone[i]));
  }
  Swap swap{"host", "", {}, {}};
  std::vector<JobStepTimes> steps;
  for (const auto& profile : profiles) steps.push_back(profile.step);
  std::map<std::size_t, Bytes> in_machine;
  for (const auto& [name, jobs] : jobs_by_device(inputs)) {
    const Device& device = cluster.devices[cluster.device_index(name).value()];
    if (jobs.size() < 2) continue;
    if (!device.machine) {
      swap.fault = fmt::format("{} is in no machine that could hold them", shown(name));
      return swap;
    }
    Bytes& held = in_machine[device.machine->machine];
    for (const std::size_t job : jobs) held += profiles[job].resident;
    const Machine& machine = cluster.machines[device.machine->machine];
    BytesPerSecond rate = std::min(device.machine->in.bandwidth, device.machine->out.bandwidth);
    if (held > machine.memory) {
      const Bytes all = machine.memory + (machine.disk ? machine.disk->capacity : Bytes(0));
      if (held > all) {
        swap.fault = fmt::format("{} would hold {}; it has {}{}", shown(machine.name), text_of(held), text_of(all),
                                 machine.disk ? " with its disk" : " and no disk");
        return swap;
      }
      swap.tier = "disk";
      rate = std::min({rate, machine.disk->read, machine.disk->write});
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const JobProfile& before = profiles[jobs[(i + jobs.size() - 1) % jobs.size()]];
      const Seconds takes = allocators::swap_time(before.resident, profiles[jobs[i]].resident, rate);
      swap.per_turn = std::max(swap.per_turn, takes);
      const auto longer = allocators::with_hand_over(profiles[jobs[i]].step, takes);
      if (longer.alone > steps[jobs[i]].alone) steps[jobs[i]] = longer;
    }
  }
  swap.round = allocators::shared_round_time(steps, allocators::RoundForm::Overlap);
  return swap;
}

Json json_of(const ShareOptions& options, const SharedJobs& jobs, const MixSearch& search)
{
  Json json = {{"schema", "isobar-share/1"},
               {"platform", options.platform},
               {"rounds", options.rounds},
               {"bound_s", search.bound().time.value},
               {"binds", {{"kind", results::name_of(search.bound().kind)}, {"name", search.bound().name}}},
               {"candidates", Json::array()}};
  for (const auto& candidate : search.candidates()) {
    Json row = {{"mix", Json::parse(mix_to_json(jobs.as_written(candidate.mix)))},
                {"best", &candidate == search.best()}};
    for (const char* key : {"round_time_s", "speedup", "gap_fraction"}) {
      row[key] = candidate.failure.empty() ? candidate.result[key] : Json(nullptr);
    }
    row["reason"] = candidate.failure;
    json["candidates"].push_back(std::move(row));
  }
  json["shifts"] = Json::array();
  for (std::size_t i = 0; i < search.excess().size(); ++i) {
    json["shifts"].push_back({{"link", search.demands().links[i]}, {"excess", search.excess()[i]}});
  }
  json["result"] = search.best() != nullptr ? search.best()->result : Json(nullptr);
  json["plans"] = jobs.made();
  return json;
}

std::string candidates_to_text(const MixSearch& search)
{
  const bool has_shifts = !search.excess().empty();
  std::vector<std::string> header = {
      "", has_shifts ? "starts, s" : "turns", "discipline", "hand-over", "links", "round", "speed-up", "gap"};
  std::vector<std::vector<std::string>> rows;
  for (const auto& candidate : search.candidates()) {
    const Mix& mix = candidate.mix;
    std::string starts;
    for (const auto& job : mix.jobs) starts += fmt::format("{}{:.4g}", starts.empty() ? "" : " ", job.start.value);
    std::vector<std::string> row = {&candidate == search.best() ? "*" : "", has_shifts ? starts : turns_of(mix),
                                    std::string(name_of(mix.discipline)),
                                    mix.discipline == Discipline::None ? "–" : std::string(name_of(mix.hand_over)),
                                    std::string(name_of(mix.links))};
    if (candidate.failure.empty()) {
      row.push_back(text_of(candidate.round()));
      row.push_back(fmt::format("{:.3f}", candidate.result["speedup"].get<double>()));
      const double gap = candidate.result["gap_fraction"].get<double>();
      row.push_back(fmt::format("{:.2f} %", std::abs(gap) < rounding ? 0 : 100 * gap));
    } else {
      row.insert(row.end(), {"–", "–", "–"});
    }
    rows.push_back(std::move(row));
  }
  return results::table_of(header, rows, 5);
}

std::string jobs_to_text(const Json& result)
{
  std::vector<std::vector<std::string>> rows;
  for (const auto& job : result["jobs"]) {
    const auto seconds = [&](const char* key) { return text_of(Seconds(job[key].get<double>())); };
    rows.push_back({job["name"].get<std::string>(), seconds("solo_step_time_s"), seconds("step_time_s"),
                    fmt::format("{:.3f}", job["normalised_rate"].get<double>()), seconds("longest_wait_s")});
  }
  return results::table_of({"job", "alone", "shared", "rate", "longest wait"}, rows);
}

std::string memory_to_text(const Json& result, const Cluster& cluster)
{
  std::vector<std::vector<std::string>> rows;
  for (const auto& device : result["devices"]) {
    const auto name = device["name"].get<std::string>();
    const auto index = cluster.device_index(name);
    rows.push_back({name, fmt::format("{:.1f} %", 100 * device["busy_fraction"].get<double>()),
                    text_of(Bytes(device["peak_memory_bytes"].get<double>())),
                    index ? text_of(cluster.devices[*index].memory) : "–"});
  }
  return results::table_of({"device", "busy", "holds", "has"}, rows);
}

std::string text_of(const SharedJobs& jobs, const MixSearch& search)
{
  const MixInputs& inputs = jobs.inputs();
  Seconds serial;
  for (const auto& run : search.alone()) serial += run.step_time;
  std::string text =
      fmt::format("{}: a step of each takes {} one after the other; no round below {} ({} {})\n",
                  counted(inputs.jobs.size(), "job"), isobar::text_of(serial), isobar::text_of(search.bound().time),
                  results::name_of(search.bound().kind), shown(search.bound().name));
  for (std::size_t i = 0; i < search.excess().size(); ++i) {
    text += fmt::format("{}: with the best shifts {:.1f} % more than its bandwidth is wanted at times (score {:.3f})\n",
                        shown(search.demands().links[i]), 100 * search.excess()[i], 1 - search.excess()[i]);
  }
  text += "\n" + candidates_to_text(search);
  std::set<std::string> failures;
  for (const auto& candidate : search.candidates()) {
    if (!candidate.failure.empty()) failures.insert(candidate.failure);
  }
  for (const auto& failure : failures) text += fmt::format("– {}\n", on_one_line(failure));
  if (search.best() == nullptr) return text;
  return text + "\n" + jobs_to_text(search.best()->result) + "\n" +
         memory_to_text(search.best()->result, inputs.platform.cluster());
}

/// What remains where no candidate fits in memory.
std::string swap_to_text(const Swap& swap, Seconds serial)
{
  if (!swap.fault.empty()) return fmt::format("They cannot be swapped at a hand-over either: {}\n", swap.fault);
  return fmt::format(
      "Swapping them at each hand-over, over the {} tier, takes up to {} a turn: no round below {}, "
      "{:.3f} of the time one after the other\n",
      swap.tier, isobar::text_of(swap.per_turn), isobar::text_of(swap.round), swap.round / serial);
}

}  // namespace

ExitCode share_devices(const ShareOptions& options)
{
  OutputFile output(options.output);
  std::optional<SharedJobs> jobs;
  try {
    jobs.emplace(options);
  } catch (const NoPlan& none) {
    say(none.what());
    return ExitCode::Infeasible;
  }
  refuse_overwriting(jobs->inputs().files(), {options.output});
  const auto by_device = jobs_by_device(jobs->inputs());
  const bool share_devices =
      std::ranges::any_of(by_device, [](const auto& device) { return device.second.size() > 1; });
  MixSearch search(options, *jobs);
  share_devices ? search.try_turns() : search.try_shifts();
  Json json = json_of(options, *jobs, search);
  std::string text = text_of(*jobs, search);
  if (search.best() == nullptr) {
    const Swap swap = swap_of(jobs->inputs(), search.alone());
    Seconds serial;
    for (const auto& run : search.alone()) serial += run.step_time;
    text += "\n" + swap_to_text(swap, serial);
    json["swap"] = {{"tier", swap.tier},
                    {"reason", swap.fault},
                    {"per_turn_s", swap.per_turn.value},
                    {"round_bound_s", swap.round.value}};
  } else {
    output.write(mix_to_json(jobs->as_written(search.best()->mix)));
  }
  if (!output.is_standard_output()) {
    print(options.json ? json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : text);
  }
  return search.best() == nullptr ? ExitCode::Infeasible : ExitCode::Done;
}

}  // namespace isobar::cli
