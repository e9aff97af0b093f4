#include "cli/planning/mix_simulation.hpp"

#include "cli/inputs.hpp"
#include "cli/planning/planning.hpp"
#include "cli/platform_files.hpp"
#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/device_profile.hpp"
#include "core/program/chrome_trace.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/plan_file.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

namespace isobar::cli {

namespace {

/// The names of a job's ranks: its devices, and the data server.
std::vector<std::string> hosts_of(const MixInputs& inputs, std::size_t job)
{
  auto hosts = devices_of(inputs.jobs[job].plan);
  const auto& server = inputs.platform.cluster().data_server;
  if (server) hosts.push_back(*server);
  return hosts;
}

/// The steps that a job has in `rounds` rounds.
std::uint64_t steps_of(const Mix& mix, std::size_t job, std::uint64_t rounds)
{
  const std::uint64_t all = rounds * steps_per_round(mix, job);
  return std::min(mix.jobs[job].steps.value_or(all), all);
}

/// The steps of a job that are simulated: a round more, so that no job is alone while others end the last round.
std::uint64_t simulated_steps(const Mix& mix, std::size_t job, std::uint64_t rounds)
{
  return steps_of(mix, job, rounds + 1);
}

/// The end of each round of these jobs: when all of them that take part in it have ended their steps of it.
/// `step_times`: by job of the mix.
std::vector<Seconds> round_ends(const Mix& mix, const std::vector<std::vector<Seconds>>& step_times,
                                const std::vector<std::size_t>& jobs)
{
  std::vector<Seconds> ends;
  for (const std::size_t job : jobs) {
    const std::uint64_t per_round = steps_per_round(mix, job);
    Seconds time = mix.jobs[job].start;
    for (std::size_t step = 0; step < step_times[job].size(); ++step) {
      time += step_times[job][step];
      const std::size_t round = step / per_round;
      if (round == ends.size()) ends.emplace_back();
      ends[round] = std::max(ends[round], time);
    }
  }
  return ends;
}

/// The mean time of the rounds after the first; of the first where there is no other. Without turns, jobs may run ahead
/// of each other, and what they are ahead in the first round would count as done in no time: the mean of all rounds.
Seconds mean_round(const std::vector<Seconds>& ends, bool takes_turns)
{
  if (ends.size() == 1 || !takes_turns) return ends.back() / static_cast<double>(ends.size());
  return (ends.back() - ends.front()) / static_cast<double>(ends.size() - 1);
}

/// The jobs that wait for each other on devices: two with a device in common are in one set.
std::vector<std::vector<std::size_t>> jobs_in_common_turns(const MixInputs& inputs)
{
  struct Set {
    std::vector<std::size_t> jobs;
    std::set<std::string> devices;
  };
  std::vector<Set> sets;
  for (std::size_t job = 0; job < inputs.jobs.size(); ++job) {
    const auto devices = devices_of(inputs.jobs[job].plan);
    Set joined{{}, {devices.begin(), devices.end()}};
    std::vector<Set> others;
    for (auto& set : sets) {
      const bool meets = std::ranges::any_of(devices, [&](const auto& name) { return set.devices.contains(name); });
      if (!meets) {
        others.push_back(std::move(set));
        continue;
      }
      joined.jobs.insert(joined.jobs.end(), set.jobs.begin(), set.jobs.end());
      joined.devices.merge(set.devices);
    }
    joined.jobs.push_back(job);
    others.push_back(std::move(joined));
    sets = std::move(others);
  }
  std::vector<std::vector<std::size_t>> jobs;
  for (auto& set : sets) jobs.push_back(std::move(set.jobs));
  return jobs;
}

/// The mean time of a job's steps in the rounds that count, as mean_round has it.
Seconds mean_step(const std::vector<Seconds>& steps, std::uint64_t per_round, std::uint64_t rounds, bool takes_turns)
{
  std::vector<Seconds> ends;
  Seconds end;
  for (std::size_t step = 0; step < std::min<std::size_t>(steps.size(), per_round * rounds); ++step) {
    end += steps[step];
    if ((step + 1) % per_round == 0) ends.push_back(end);
  }
  if (ends.empty()) return end / static_cast<double>(steps.size());  // it ends within the first round
  return mean_round(ends, takes_turns) / static_cast<double>(per_round);
}

/// What the jobs of a mix do on each device.
class MixMeter {
 public:
  struct Device {
    Seconds compute;
    Seconds waiting;
    std::map<std::size_t, Bytes> memory;  // by job, now
    Bytes peak_memory;
  };
  struct Job {
    std::map<std::string, Bytes> peak_memory;
    Seconds longest_wait;
  };

  std::map<std::string, Device> devices;
  std::vector<Job> jobs;
};

/// Passes the events of one job on to the meter and, if there is one, to the trace. Only the first job passes on the
/// changes of links, which all jobs get.
class JobSink : public TraceSink {
 public:
  JobSink(MixMeter& meter, std::size_t job, std::vector<std::string> hosts, ChromeTraceWriter* writer)
      : meter_(&meter), job_(job), hosts_(std::move(hosts)), writer_(writer)
  {
  }
  void record(const TraceEvent& event) override
  {
    if (is_on_device(event.instruction)) meter_->devices[hosts_[event.rank]].compute += event.end - event.begin;
    if (writer_ != nullptr) writer_->sink_of(job_).record(event);
  }
  void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override
  {
    if (tier == Tier::Device) count_memory(hosts_[rank], memory);
    if (writer_ != nullptr) writer_->sink_of(job_).memory_changed(rank, tier, time, memory);
  }
  void link_changed(const std::string& link, Seconds time, std::size_t transfers) override
  {
    if (writer_ != nullptr && job_ == 0) writer_->link_changed(link, time, transfers);
  }
  void device_held(std::size_t rank, Seconds asked, Seconds got, Seconds given_back) override
  {
    meter_->devices[hosts_[rank]].waiting += got - asked;
    Seconds& longest = meter_->jobs[job_].longest_wait;
    longest = std::max(longest, got - asked);
    if (writer_ != nullptr) writer_->sink_of(job_).device_held(rank, asked, got, given_back);
  }

 private:
  void count_memory(const std::string& host, Bytes memory)
  {
    auto& device = meter_->devices[host];
    device.memory[job_] = memory;
    Bytes all;
    for (const auto& [job, bytes] : device.memory) all += bytes;
    device.peak_memory = std::max(device.peak_memory, all);
    Bytes& own = meter_->jobs[job_].peak_memory[host];
    own = std::max(own, memory);
  }

  MixMeter* meter_;
  std::size_t job_;
  std::vector<std::string> hosts_;
  ChromeTraceWriter* writer_;
};

/// The work of a step on each device, at nominal speed.
std::map<std::string, Seconds> compute_of(const MixInputs& inputs, std::size_t job)
{
  const auto& [plan, workload] = inputs.jobs[job];
  const compute::AsTrained trained(plan, workload, inputs.platform.cluster());
  const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
  const auto ranks = sim::rank_hosts(plan, trained.cluster());
  std::map<std::string, Seconds> compute;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Seconds time;
    for (std::uint64_t position = 0; position < program->length(rank, compute_lane); ++position) {
      time += program->at(rank, compute_lane, position).time;
    }
    if (time > Seconds(0)) compute[ranks[rank].host] = time;
  }
  return compute;
}

/// What a job alone takes per step, as JSON; in a process of its own.
std::string simulate_one_alone(const MixInputs& inputs, std::size_t job, std::uint64_t rounds)
{
  const auto& [plan, workload] = inputs.jobs[job];
  const compute::AsTrained trained(plan, workload, inputs.platform.cluster());
  const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
  const auto ranks = sim::rank_hosts(plan, trained.cluster());
  const std::uint64_t steps = simulated_steps(inputs.mix, job, rounds);
  const auto report = sim::simulate(inputs.platform, *program, ranks, steps, nullptr);

  Mix own;
  own.jobs.resize(1);
  own.turns = {{0, steps_per_round(inputs.mix, job)}};
  auto ends = round_ends(own, {report.step_times}, {0});
  ends.resize(std::min<std::size_t>(ends.size(), rounds));
  const Seconds step = mean_round(ends, true) / static_cast<double>(steps_per_round(own, 0));
  nlohmann::json answer = {{"step_time_s", step.value}, {"transfer_s", nlohmann::json::object()}};
  for (const auto& link : report.links) {
    const Bytes bytes = link.bytes / static_cast<double>(steps);
    answer["transfer_s"][link.name] = (bytes / link.bandwidth).value;
  }
  return answer.dump();
}

/// Jobs of which one run tells all.
bool are_equal(const MixInputs& inputs, std::size_t a, std::size_t b)
{
  const auto& jobs = inputs.mix.jobs;
  return hash_of(inputs.jobs[a].plan) == hash_of(inputs.jobs[b].plan) && jobs[a].workload == jobs[b].workload &&
         steps_per_round(inputs.mix, a) == steps_per_round(inputs.mix, b) &&
         inputs.mix.jobs[a].steps == inputs.mix.jobs[b].steps;
}

std::string list_of(const std::vector<std::string>& names)
{
  std::string list = names.size() == 1 ? "job " : "jobs ";
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? " and " : ", ";
    list += names[i];
  }
  return list;
}

/// The inputs of a job with this plan, which it checks.
Inputs load_job(const MixInputs& inputs, const MixJob& job, const Plan& plan)
{
  InputOptions options;
  options.platform = inputs.platform_fingerprint.name;
  options.devices = inputs.devices_file.value_or("");
  options.workload = job.workload;
  if (inputs.profile) options.profiles = {inputs.profile->name};
  Inputs own = load(options, inputs.platform, plan, job.plan);
  if (own.workload.prices != nullptr) {
    throw InputError(options.workload,
                     "compute: operators gives devices other speeds for each job; jobs of a mix "
                     "share them, so write rate");
  }
  check_plan(plan, job.plan, own);
  if (plan.stages.empty()) {
    throw InputError(job.plan,
                     fmt::format("there is no placement to simulate ({}): {}", name_of(plan.outcome), reason_of(plan)));
  }
  return own;
}

}  // namespace

std::vector<std::string> MixInputs::files() const
{
  std::vector<std::string> files = platform.files();
  for (const auto& job : mix.jobs) {
    files.push_back(job.plan);
    files.push_back(job.workload);
  }
  if (profile) files.push_back(profile->name);
  return files;
}

MixInputs load_mix(const std::string& platform, const std::string& devices_file, const std::string& profile,
                   const Mix& mix, const std::string& name)
{
  std::vector<Plan> plans;
  for (const auto& job : mix.jobs) plans.push_back(schedules::read_scheduled_plan(job.plan));
  sim::Platform loaded = load_platform(platform, devices_file);
  print_notes(loaded);
  MixInputs inputs{std::move(loaded),
                   {platform, ""},
                   devices_file.empty() ? std::nullopt : std::optional(devices_file),
                   {},
                   name,
                   mix,
                   {}};
  inputs.platform_fingerprint.hash = inputs.platform.hash();
  if (!profile.empty()) {
    const DeviceProfile measured = read_profile(profile);
    if (measured.has_layers()) inputs.platform.set_measured_speed(measured.device, measured.speed);
    inputs.profile = Fingerprint{profile, fingerprint(read_file(profile))};
  }
  for (std::size_t job = 0; job < plans.size(); ++job) {
    Inputs own = load_job(inputs, mix.jobs[job], plans[job]);
    note_approximations(own);
    inputs.jobs.push_back({std::move(plans[job]), std::move(own.workload)});
  }
  return inputs;
}

MixJobInputs load_mix_job(const MixInputs& inputs, const MixJob& job)
{
  Plan plan = schedules::read_scheduled_plan(job.plan);
  Inputs own = load_job(inputs, job, plan);
  return {std::move(plan), std::move(own.workload)};
}

std::vector<std::string> memory_faults_of(const MixInputs& inputs)
{
  struct Need {
    std::vector<std::string> jobs;
    Bytes residents;
    Bytes activations;  // of the job with the most
    Bytes peaks;
  };
  const Cluster& cluster = inputs.platform.cluster();
  std::map<std::string, Need> needs;  // of devices and machines
  for (std::size_t job = 0; job < inputs.jobs.size(); ++job) {
    const auto& [plan, workload] = inputs.jobs[job];
    const compute::AsTrained trained(plan, workload, cluster);
    const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
    std::map<std::string, Bytes> residents;
    const auto devices = devices_of(plan);
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      residents[devices[rank]] = program->resident(rank, Tier::Device);
    }
    if (!plan.predicted) continue;
    for (const auto& [place, peak] : plan.predicted->peak_memory) {
      Need& need = needs[place];
      need.jobs.push_back(inputs.mix.jobs[job].name);
      need.peaks += peak;
      const Bytes resident = residents.contains(place) ? residents[place] : peak;
      need.residents += resident;
      need.activations = std::max(need.activations, peak - resident);
    }
  }
  const bool takes_turns = inputs.mix.discipline != Discipline::None && inputs.mix.hand_over == HandOver::Step;
  std::vector<std::string> faults;
  const auto check = [&](const char* kind, const std::string& place, Bytes memory) {
    const auto found = needs.find(place);
    if (found == needs.end()) return;
    const Need& need = found->second;
    const Bytes sum = takes_turns ? need.residents + need.activations : need.peaks;
    if (need.jobs.size() < 2 || sum <= memory) return;
    faults.push_back(fmt::format("{}: {} {}: {} need {} together, and it has {}; move one of them to other devices",
                                 on_one_line(inputs.name), kind, place, list_of(need.jobs), text_of(sum),
                                 text_of(memory)));
  };
  for (const auto& device : cluster.devices) check("device", device.name, device.memory);
  for (const auto& machine : cluster.machines) check("machine", machine.name, machine.memory);
  return faults;
}

std::vector<SoloRun> simulate_alone(const MixInputs& inputs, std::uint64_t rounds, std::size_t parallel)
{
  std::vector<std::size_t> run_of;  // by job
  std::vector<std::size_t> first;   // job of each run
  for (std::size_t job = 0; job < inputs.jobs.size(); ++job) {
    const auto same = std::ranges::find_if(first, [&](std::size_t other) { return are_equal(inputs, job, other); });
    run_of.push_back(static_cast<std::size_t>(same - first.begin()));
    if (same == first.end()) first.push_back(job);
  }
  std::vector<std::function<std::string()>> work;
  for (const std::size_t job : first) {
    work.emplace_back([&inputs, job, rounds] { return simulate_one_alone(inputs, job, rounds); });
  }
  constexpr Seconds no_limit(1e9);
  std::vector<SoloRun> runs;
  const auto results = run_in_children(work, parallel, no_limit);
  for (std::size_t run = 0; run < results.size(); ++run) {
    const auto answer = nlohmann::json::parse(results[run].output_or_throw());
    SoloRun solo{Seconds(answer["step_time_s"].get<double>()), compute_of(inputs, first[run]), {}};
    for (const auto& [link, time] : answer["transfer_s"].items()) solo.transfer[link] = Seconds(time.get<double>());
    runs.push_back(std::move(solo));
  }
  std::vector<SoloRun> alone;
  for (const std::size_t run : run_of) alone.push_back(runs[run]);
  return alone;
}

results::RoundBound bound_of(const MixInputs& inputs, const std::vector<SoloRun>& alone)
{
  std::map<std::string, Seconds> devices;
  std::map<std::string, Seconds> links;
  results::RoundBound bound;
  const auto take = [&bound](Seconds time, results::Binding kind, const std::string& name) {
    if (time > bound.time) bound = {time, kind, name};
  };
  for (std::size_t job = 0; job < alone.size(); ++job) {
    const auto steps = static_cast<double>(steps_per_round(inputs.mix, job));
    for (const auto& [device, time] : alone[job].compute) devices[device] += steps * time;
    for (const auto& [link, time] : alone[job].transfer) links[link] += steps * time;
  }
  for (const auto& [device, time] : devices) take(time, results::Binding::Device, device);
  for (const auto& [link, time] : links) take(time, results::Binding::Link, link);
  for (std::size_t job = 0; job < alone.size(); ++job) {
    const auto steps = static_cast<double>(steps_per_round(inputs.mix, job));
    take(steps * alone[job].step_time, results::Binding::Job, inputs.mix.jobs[job].name);
  }
  return bound;
}

std::string simulate_mix(const MixInputs& inputs, const std::vector<SoloRun>& alone, std::uint64_t rounds,
                         const std::string& trace_file)
{
  const Cluster& cluster = inputs.platform.cluster();
  const Mix& mix = inputs.mix;
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<std::vector<sim::RankHost>> ranks;
  std::vector<TracedProgram> traced;
  for (std::size_t job = 0; job < inputs.jobs.size(); ++job) {
    const auto& [plan, workload] = inputs.jobs[job];
    const compute::AsTrained trained(plan, workload, cluster);
    programs.push_back(schedules::make_program(plan, trained.workload(), trained.cluster()));
    ranks.push_back(sim::rank_hosts(plan, trained.cluster()));
    traced.push_back({programs.back().get(), {}, {}});
    for (const auto& host : hosts_of(inputs, job)) {
      const auto device = cluster.device_index(host);
      traced.back().ranks.push_back(mix.jobs[job].name + ": " + host);
      traced.back().sites.push_back(device ? cluster.devices[*device].site : "");
    }
  }
  std::ofstream trace_stream;
  std::optional<ChromeTraceWriter> writer;
  if (!trace_file.empty()) {
    trace_stream.open(trace_file, std::ios::binary);
    if (!trace_stream) throw EnvironmentError("the timeline cannot be written");
    writer.emplace(trace_stream, traced);
  }
  MixMeter meter;
  meter.jobs.resize(inputs.jobs.size());
  std::vector<std::unique_ptr<JobSink>> sinks;
  std::vector<sim::SimulatedJob> jobs;
  for (std::size_t job = 0; job < inputs.jobs.size(); ++job) {
    sinks.push_back(std::make_unique<JobSink>(meter, job, hosts_of(inputs, job), writer ? &*writer : nullptr));
    jobs.push_back({*programs[job], ranks[job], simulated_steps(mix, job, rounds), sinks.back().get()});
  }
  const sim::MixReport report = [&] {
    try {
      return sim::simulate(inputs.platform, jobs, mix);
    } catch (const sim::DeadlockOfTurns& deadlock) {
      throw InputError(inputs.name, deadlock.what());
    }
  }();
  if (writer) {
    writer->finish();
    if (!trace_stream) throw EnvironmentError("the timeline cannot be written; is the disk full?");
  }

  results::MixResult result;
  std::vector<std::size_t> all_jobs(mix.jobs.size());
  std::iota(all_jobs.begin(), all_jobs.end(), std::size_t{0});
  auto ends = round_ends(mix, report.step_times, all_jobs);
  const auto simulated = static_cast<double>(ends.size());
  const Seconds whole = *std::ranges::max_element(ends);
  ends.resize(std::min<std::size_t>(ends.size(), rounds));
  for (std::size_t round = 0; round < ends.size(); ++round) {
    result.round_times.push_back(round == 0 ? ends[0] : ends[round] - ends[round - 1]);
  }
  // Jobs without a common device run ahead of each other. Those with the longest rounds are the last in the end, but
  // need not be in the first round, from which the mean counts.
  for (const auto& set : jobs_in_common_turns(inputs)) {
    auto own = round_ends(mix, report.step_times, set);
    own.resize(std::min<std::size_t>(own.size(), rounds));
    result.round_time = std::max(result.round_time, mean_round(own, mix.discipline != Discipline::None));
  }
  result.total = *std::ranges::max_element(ends);
  result.bound = bound_of(inputs, alone);
  for (std::size_t job = 0; job < inputs.jobs.size(); ++job) {
    const std::uint64_t per_round = steps_per_round(mix, job);
    const Seconds step = mean_step(report.step_times[job], per_round, rounds, mix.discipline != Discipline::None);
    const Seconds solo = alone[job].step_time;
    result.serial += static_cast<double>(per_round) * solo;
    result.jobs.push_back({mix.jobs[job].name, per_round, steps_of(mix, job, rounds), step, solo, solo / step,
                           meter.jobs[job].longest_wait, meter.jobs[job].peak_memory});
  }
  for (const auto& device : cluster.devices) {
    const auto found = meter.devices.find(device.name);
    if (found == meter.devices.end()) continue;
    const auto& [compute, waiting, memory, peak] = found->second;
    result.devices.push_back({device.name, compute / simulated, waiting / simulated, compute / whole, peak});
  }
  for (const auto& link : report.links) {
    result.links.push_back({link.name, link.bytes / simulated, link.busy_time / whole});
  }
  result.activities = report.activities;
  result.network = sim::network_settings();
  result.simgrid_version = sim::simgrid_version();
  result.mix = mix;
  result.platform = inputs.platform_fingerprint;
  result.devices_file = inputs.devices_file;
  result.profile = inputs.profile;
  result.simulate_time = report.wall_time;
  return mix_result_to_json(result);
}

}  // namespace isobar::cli
