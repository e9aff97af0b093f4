#include "allocators/mix/link_shifts.hpp"
#include "allocators/mix/rotation.hpp"
#include "allocators/mix/shared_round.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/mix_simulation.hpp"
#include "cli/share/joint_placement.hpp"
#include "cli/share/link_demands.hpp"
#include "cli/share/share_options.hpp"
#include "cli/share/shared_jobs.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/progress_line.hpp"
#include "core/base/standard_streams.hpp"
#include "core/plan/plan.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
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
  std::size_t placement;  ///< of MixSearch::placements
  std::string failure;    ///< why there is no result; "" if there is one
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
    steps.push_back(profile_of(inputs.mix.jobs[i], inputs.jobs[i], alone[i], inputs.platform.cluster()).step);
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

/// The order of turns that closed forms say is best.
std::vector<MixTurn> turns_in(const std::vector<std::size_t>& order)
{
  std::vector<MixTurn> turns;
  for (const std::size_t job : order) turns.push_back({job, 1});
  return turns;
}

std::map<std::string, std::vector<std::size_t>> jobs_by_device(const std::vector<MixJobInputs>& jobs)
{
  std::map<std::string, std::vector<std::size_t>> by_device;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    for (const auto& device : devices_of(jobs[i].plan)) by_device[device].push_back(i);
  }
  return by_device;
}

bool has_common_device(const std::vector<MixJobInputs>& jobs)
{
  return std::ranges::any_of(jobs_by_device(jobs), [](const auto& device) { return device.second.size() > 1; });
}

class MixSearch {
 public:
  MixSearch(const ShareOptions& options, SharedJobs& jobs) : options_(options), jobs_(jobs), inputs_(jobs.inputs())
  {
    auto alone = simulate_alone(inputs_, options.rounds, processors());
    for (const auto& run : alone) placing_.serial += run.step_time;
    const auto bound = bound_of(inputs_, alone);
    placements_.push_back({inputs_.mix, inputs_.jobs, std::move(alone), bound});
    placing_.bound = bound.time;
  }

  /// The first: the jobs on the devices of their plans. Then those that divide the devices and were simulated.
  const std::vector<PlacedJobs>& placements() const { return placements_; }
  const std::vector<SoloRun>& alone() const { return placements_.front().alone; }
  const JointPlacing& placing() const { return placing_; }
  /// Of all placements.
  results::RoundBound bound() const
  {
    // What binds the first placement, unless another one may take less.
    const auto least = std::ranges::min_element(placements_, {}, [](const auto& placed) { return placed.bound.time; });
    results::RoundBound bound = placements_.front().bound;
    if (least->bound.time < bound.time * worth_dividing) bound = least->bound;
    bound.time = std::min(bound.time, placing_.bound);
    return bound;
  }
  /// The steps of all jobs one after the other, each alone with the best of its plans.
  Seconds serial() const { return placing_.serial; }
  double speedup_of(const MixCandidate& candidate) const { return serial() / candidate.round(); }
  double gap_of(const MixCandidate& candidate) const { return 1 - bound().time / candidate.round(); }
  const std::vector<MixCandidate>& candidates() const { return candidates_; }
  const MixCandidate* best() const { return best_ ? &candidates_[*best_] : nullptr; }
  const std::vector<double>& excess() const { return excess_; }
  const LinkDemands& demands() const { return demands_; }

  /// For jobs with devices in common: the orders of turns under strict rotation, then other rules in the best of them.
  void try_turns()
  {
    const Mix& given = placements_.front().mix;
    for (const auto& order : orders_of(steps_of(inputs_, alone()))) {
      Mix mix = given;
      mix.turns = turns_in(order);
      candidates_.push_back({std::move(mix), 0, "", {}});
    }
    simulate();
    try_rules(best() != nullptr ? *best() : candidates_.front());
  }

  /// Divides the devices among the jobs, where that may take less than what was tried.
  void try_placements()
  {
    placing_ = place_together(options_, jobs_, placements_.front(), processors());
    for (auto& placed : placing_.placements) {
      if (best() != nullptr && placed.bound.time >= best()->round() * worth_dividing) break;
      for (std::size_t job = 0; job < placed.mix.jobs.size(); ++job) {
        std::string& plan = placed.mix.jobs[job].plan;
        if (plan != placements_.front().mix.jobs[job].plan)
          plan = jobs_.keep(options_, plan, placed.mix.jobs[job].name);
      }
      placements_.push_back(std::move(placed));
      inputs_.jobs = placements_.back().jobs;
      inputs_.mix = placements_.back().mix;
      Mix mix = placements_.back().mix;
      mix.turns = turns_in(allocators::johnson_order(steps_of(inputs_, placements_.back().alone)));
      candidates_.push_back({std::move(mix), placements_.size() - 1, "", {}});
      simulate();
    }
    placing_.placements.clear();
    if (best() != nullptr && best()->placement > 0) try_rules(*best());
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
    Mix mix = placements_.front().mix;
    mix.links = LinkSharing::Fair;
    candidates_.push_back({mix, 0, "", {}});
    Mix shifted = mix;
    for (std::size_t i = 0; i < shifted.jobs.size(); ++i) {
      shifted.jobs[i].start = demands_.tick * static_cast<double>(shifts.shifts[i]);
    }
    if (shifted != mix) candidates_.push_back({shifted, 0, "", {}});
    mix.links = LinkSharing::Fifo;
    candidates_.push_back({mix, 0, "", {}});
    simulate();
  }

 private:
  static constexpr double much_less = 1 - 1e-9;  // of equal rounds, the first counts
  static constexpr double worth_dividing = 1 - 1e-3;

  /// The other rules in the order of turns of a mix.
  void try_rules(const MixCandidate& in_order)
  {
    const Mix in_best_order = in_order.mix;
    const std::size_t placement = in_order.placement;
    const auto add = [&](Discipline discipline, HandOver hand_over, LinkSharing links) {
      Mix mix = in_best_order;
      mix.discipline = discipline;
      mix.hand_over = hand_over;
      mix.links = links;
      candidates_.push_back({std::move(mix), placement, "", {}});
    };
    const bool has_turns = has_common_device(placements_[placement].jobs);
    if (has_turns) {
      add(Discipline::Conserving, HandOver::Step, LinkSharing::Fifo);
      add(Discipline::Conserving, HandOver::Instruction, LinkSharing::Fifo);
    }
    add(Discipline::Strict, HandOver::Step, LinkSharing::Fair);
    if (has_turns) add(Discipline::None, HandOver::Step, LinkSharing::Fair);
    simulate();
  }

  /// Those without a result.
  void simulate()
  {
    std::vector<std::size_t> which;
    std::vector<std::function<std::string()>> work;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      MixCandidate& candidate = candidates_[i];
      if (!candidate.failure.empty() || !candidate.result.is_null()) continue;
      set_inputs(candidate);
      if (const auto faults = memory_faults_of(inputs_); !faults.empty()) {
        candidate.failure = faults.front();
        continue;
      }
      which.push_back(i);
      work.emplace_back([this, &candidate] {
        set_inputs(candidate);  // of the child
        return simulate_mix(inputs_, placements_[candidate.placement].alone, options_.rounds, "");
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
    inputs_.mix = placements_.front().mix;
    inputs_.jobs = placements_.front().jobs;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (!candidates_[i].failure.empty()) continue;
      const bool divides = best_ && candidates_[i].placement != candidates_[*best_].placement;
      const double less = divides ? worth_dividing : much_less;
      if (!best_ || candidates_[i].round() < candidates_[*best_].round() * less) best_ = i;
    }
  }

  void set_inputs(const MixCandidate& candidate)
  {
    inputs_.mix = candidate.mix;
    inputs_.jobs = placements_[candidate.placement].jobs;
  }

  const ShareOptions& options_;
  SharedJobs& jobs_;
  MixInputs& inputs_;
  std::vector<PlacedJobs> placements_;
  JointPlacing placing_;
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
    profiles.push_back(profile_of(inputs.mix.jobs[i], inputs.jobs[i], alone[i], inputs.platform.cluster()));
  }
  Swap swap{"host", "", {}, {}};
  std::vector<JobStepTimes> steps;
  for (const auto& profile : profiles) steps.push_back(profile.step);
  std::map<std::size_t, Bytes> in_machine;
  for (const auto& [name, jobs] : jobs_by_device(inputs.jobs)) {
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
               {"groups", search.placing().groups},
               {"has_all_groups", search.placing().has_all_groups},
               {"placements", Json::array()},
               {"candidates", Json::array()}};
  for (const auto& placed : search.placements()) {
    Json devices = Json::object();
    for (std::size_t job = 0; job < placed.jobs.size(); ++job) {
      devices[placed.mix.jobs[job].name] = devices_of(placed.jobs[job].plan);
    }
    json["placements"].push_back({{"bound_s", placed.bound.time.value}, {"devices", std::move(devices)}});
  }
  for (const auto& candidate : search.candidates()) {
    Json row = {{"mix", Json::parse(mix_to_json(jobs.as_written(candidate.mix)))},
                {"placement", candidate.placement},
                {"best", &candidate == search.best()}};
    const bool has_result = candidate.failure.empty();
    row["round_time_s"] = has_result ? candidate.result["round_time_s"] : Json(nullptr);
    row["speedup"] = has_result ? Json(search.speedup_of(candidate)) : Json(nullptr);
    row["gap_fraction"] = has_result ? Json(search.gap_of(candidate)) : Json(nullptr);
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

/// The name of a placement in the table.
std::string letter_of(std::size_t placement)
{
  return std::string(1, static_cast<char>('A' + placement));
}

/// The devices of each job in each placement, a line each.
std::string placements_to_text(const MixSearch& search)
{
  std::string text;
  for (std::size_t i = 0; i < search.placements().size(); ++i) {
    const PlacedJobs& placed = search.placements()[i];
    std::string line;
    for (std::size_t job = 0; job < placed.jobs.size(); ++job) {
      constexpr std::size_t most_names = 4;
      const auto devices = devices_of(placed.jobs[job].plan);
      std::string names;
      for (std::size_t device = 0; device < std::min(devices.size(), most_names); ++device) {
        names += (names.empty() ? "" : ", ") + shown(devices[device]);
      }
      if (devices.size() > most_names) names += fmt::format(" and {} more", devices.size() - most_names);
      line += fmt::format("{}{} on {}", line.empty() ? "" : "; ", placed.mix.jobs[job].name, names);
    }
    text += fmt::format("{}: {}\n", letter_of(i), line);
  }
  return text;
}

/// What the bound is over, where jobs were planned on groups of the devices.
std::string scope_of_placing(const JointPlacing& placing)
{
  if (placing.groups == 0) return "";
  if (placing.has_all_groups) {
    return fmt::format("That bound is over all placements of the jobs on any of the {} groups of devices\n",
                       placing.groups);
  }
  return fmt::format("That bound is over placements of the jobs on {} groups of devices; others were not tried\n",
                     placing.groups);
}

std::string candidates_to_text(const MixSearch& search)
{
  const bool has_shifts = !search.excess().empty();
  const bool has_placements = search.placements().size() > 1;
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
      row.push_back(fmt::format("{:.3f}", search.speedup_of(candidate)));
      const double gap = search.gap_of(candidate);
      row.push_back(fmt::format("{:.2f} %", std::abs(gap) < rounding ? 0 : 100 * gap));
    } else {
      row.insert(row.end(), {"–", "–", "–"});
    }
    if (has_placements) row.insert(row.begin() + 1, letter_of(candidate.placement));
    rows.push_back(std::move(row));
  }
  if (!has_placements) return results::table_of(header, rows, 5);
  header.insert(header.begin() + 1, "devices");
  return results::table_of(header, rows, 6) + placements_to_text(search);
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

std::string mix_text(const SharedJobs& jobs, const MixSearch& search)
{
  const MixInputs& inputs = jobs.inputs();
  const auto bound = search.bound();
  std::string text = fmt::format("{}: a step of each takes {} one after the other; no round below {} ({} {})\n",
                                 counted(inputs.jobs.size(), "job"), isobar::text_of(search.serial()),
                                 isobar::text_of(bound.time), results::name_of(bound.kind), shown(bound.name));
  for (std::size_t i = 0; i < search.excess().size(); ++i) {
    text += fmt::format("{}: with the best shifts {:.1f} % more than its bandwidth is wanted at times (score {:.3f})\n",
                        shown(search.demands().links[i]), 100 * search.excess()[i], 1 - search.excess()[i]);
  }
  text += "\n" + candidates_to_text(search) + scope_of_placing(search.placing());
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
  MixSearch search(options, *jobs);
  has_common_device(jobs->inputs().jobs) ? search.try_turns() : search.try_shifts();
  search.try_placements();
  Json json = json_of(options, *jobs, search);
  std::string text = mix_text(*jobs, search);
  if (search.best() == nullptr) {
    const Swap swap = swap_of(jobs->inputs(), search.alone());
    text += "\n" + swap_to_text(swap, search.serial());
    json["swap"] = {{"tier", swap.tier},
                    {"reason", swap.fault},
                    {"per_turn_s", swap.per_turn.value},
                    {"round_bound_s", swap.round.value}};
  } else {
    output.write(mix_to_json(jobs->as_written(search.best()->mix)));
  }
  if (!output.is_standard_output()) {
    print(options.json ? json_lines(json) : text);
  }
  return search.best() == nullptr ? ExitCode::Infeasible : ExitCode::Done;
}

}  // namespace isobar::cli
