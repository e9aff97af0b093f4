#include "cli/report/report_data.hpp"

#include "allocators/registry.hpp"
#include "cli/inputs.hpp"
#include "cli/planning/planning.hpp"
#include "cli/platform_files.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/progress_line.hpp"
#include "core/base/standard_streams.hpp"
#include "core/compute/as_trained.hpp"
#include "core/text/quantity_text.hpp"
#include "results/report/mix_report.hpp"
#include "results/report/schedule_report.hpp"
#include "results/trace/timeline.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <thread>

namespace isobar::cli {

namespace {

using results::Result;
using results::WhatIf;
using results::WhatIfAnswer;

/// One result.
struct Run {
  std::string file;
  Result result;
  Workload workload;  ///< with the micro-batch and recomputation of its plan
};

void require_same_inputs(const Run& run, const Run& first)
{
  const auto require_same = [&](const char* what, const Fingerprint& here, const Fingerprint& there) {
    if (here.hash == there.hash) return;
    throw InputError(run.file, fmt::format("inputs.{0}: {1} (hash {2}); {3} has {4} (hash {5}); a report shows plans "
                                           "of one {0}",
                                           what, shown(text_of(here)), shown(here.hash), on_one_line(first.file),
                                           shown(text_of(there)), shown(there.hash)));
  };
  const auto& here = run.result.inputs;
  const auto& there = first.result.inputs;
  require_same("platform", here.platform, there.platform);
  require_same("workload", here.workload, there.workload);
  require_same("profile", here.profile.value_or(unmeasured), there.profile.value_or(unmeasured));
}

/// Finds an input of a result: under its recorded name, otherwise under its file name next to the result, as after
/// sending both to someone. `name` may be "".
std::string find_input(const std::string& result, const char* what, const std::string& name)
{
  std::error_code unknown;
  if (name.empty() || std::filesystem::exists(name, unknown)) return name;
  const auto beside = std::filesystem::path(result).parent_path() / std::filesystem::path(name).filename();
  if (std::filesystem::exists(beside, unknown)) return beside.string();
  throw InputError(result, fmt::format("inputs.{}: {} does not exist, nor next to this file; put it there, or simulate "
                                       "again",
                                       what, shown(name)));
}

void require_unchanged(const std::string& result, const char* what, const Fingerprint& then, const Fingerprint& now)
{
  if (then.hash == now.hash) return;
  throw InputError(result, fmt::format("inputs.{}: {} had hash {} when it was simulated and has {} now; simulate again",
                                       what, shown(text_of(then)), shown(then.hash), now.hash));
}

/// Loads the inputs of a result, which must not have changed since it was simulated.
Inputs inputs_of(const Run& run)
{
  const auto& named = run.result.inputs;
  InputOptions files;
  files.platform = find_input(run.file, "platform", named.platform.name);
  files.devices = find_input(run.file, "devices", named.devices.value_or(""));
  files.workload = find_input(run.file, "workload", named.workload.name);
  files.settings = named.workload.set;
  if (named.profile) {
    for (const auto& file : files_of(*named.profile)) files.profiles.push_back(find_input(run.file, "profile", file));
  }
  // On a platform without routes of these devices, the other results leave them out, too.
  Inputs inputs = load(files, {}, {run.result.plan.without, run.file + ": plan.without"});
  require_unchanged(run.file, "platform", named.platform, inputs.platform_fingerprint);
  require_unchanged(run.file, "workload", named.workload, inputs.workload_fingerprint);
  require_unchanged(run.file, "profile", named.profile.value_or(unmeasured),
                    inputs.profile_fingerprint.value_or(unmeasured));
  return inputs;
}

std::vector<Run> read_runs(const std::vector<std::string>& files)
{
  std::vector<Run> runs;
  for (const auto& file : files) {
    runs.push_back({file, results::result_from_json(read_file(file), file), {}});
    require_same_inputs(runs.back(), runs.front());
  }
  return runs;
}

/// The cluster without the devices that the plan leaves out.
Cluster cluster_of(const Run& run, const sim::Platform& platform)
{
  return without_devices(platform.cluster(), run.result.plan.without, run.file + ": plan.without");
}

/// Refuses a plan that does not hold.
void check_plan(Run& run, const Inputs& inputs)
{
  const Plan& plan = run.result.plan;
  run.workload = as_planned(inputs, plan, run.file + ": plan.");
  auto faults = all_faults_of(plan, run.workload, cluster_of(run, inputs.platform));
  for (auto& fault : faults) fault = run.file + ": plan: " + fault;
  if (!faults.empty()) throw InputError(faults);
}

/// Simulates a plan's program in this process. @returns the time of the first step that counts.
Seconds play(const sim::Platform& platform, const Plan& plan, const compute::AsTrained& trained, const Program& program,
             TraceSink* sink)
{
  const auto hosts = sim::rank_hosts(plan, trained.cluster());
  const CountedStep counted = counted_step(plan);
  return sim::simulate(platform, program, hosts, counted.played(), sink).step_times.at(counted.before);
}

results::MeasuredStep read_measured(const std::string& file, const Run& run, const Program& program)
{
  const auto trace = results::read_trace(file);
  auto devices = devices_of(run.result.plan);
  if (run.result.plan.data_server) devices.push_back(*run.result.plan.data_server);
  if (trace.devices != devices) throw InputError(file, "has other devices than the plan of " + on_one_line(run.file));
  const auto timeline = results::Timeline::of(trace, program);
  const auto times = timeline.step_times();
  results::MeasuredStep measured;
  measured.file = file;
  measured.step = results::typical_step(times);
  measured.time = times[measured.step];
  results::StepRecorder recorder(program, results::most_drawn);
  results::record_step(timeline, measured.step, recorder);
  measured.recorded = recorder.recorded();
  return measured;
}

/// The work of a child: simulates the run's first step that counts again and returns what the page shows of it.
std::string record_run(const Run& run, const sim::Platform& platform, const std::string& measured_file)
{
  const Result& result = run.result;
  if (result.network != sim::network_settings()) {
    throw InputError(run.file, "network: simulated with other options than this Isobar's; simulate again");
  }
  const compute::AsTrained trained(result.plan, run.workload, platform.cluster());
  const auto program = schedules::make_program(result.plan, trained.workload(), trained.cluster());
  results::StepRecorder recorder(*program, results::most_drawn, counted_step(result.plan).before);
  const Seconds again = play(platform, result.plan, trained, *program, &recorder);
  const Seconds recorded = result.step_times.front();
  if (std::abs(again.value - recorded.value) > 1e-9 * recorded.value) {
    throw InputError(run.file,
                     fmt::format("step_times_s: the first is {}, and {} when it is simulated again (by "
                                 "SimGrid {}; this is {}); simulate again",
                                 recorded.value, again.value, shown(result.simgrid_version), sim::simgrid_version()));
  }
  std::optional<results::MeasuredStep> measured;
  if (!measured_file.empty()) measured = read_measured(measured_file, run, *program);
  return results::run_to_json({run.file, result, run.workload, cluster_of(run, platform), recorder.recorded(),
                               measured ? &*measured : nullptr});
}

sim::Property property_of(WhatIf::Property property)
{
  switch (property) {
    case WhatIf::Property::Speed:
      return sim::Property::Speed;
    case WhatIf::Property::Memory:
      return sim::Property::Memory;
    case WhatIf::Property::UpdateSpeed:
      return sim::Property::UpdateSpeed;
    case WhatIf::Property::Bandwidth:
      return sim::Property::Bandwidth;
    case WhatIf::Property::Latency:
      return sim::Property::Latency;
  }
  throw std::logic_error("unknown property");
}

/// The work of a child: simulates the plan, or a new one by its allocator, on the changed platform. Returns the step
/// time.
std::string answer(const Run& run, sim::Platform& platform, const WhatIf& what_if, bool replan)
{
  if (what_if.names.empty()) platform.scale(property_of(what_if.property), what_if.factor);
  for (const auto& name : what_if.names) platform.scale(property_of(what_if.property), what_if.factor, name);
  Plan plan = run.result.plan;
  if (replan) {
    platform.leave_out(plan.without, run.file + ": plan.without");
    plan = allocators::allocate(plan.allocator, run.workload, platform.cluster(), plan.goal, {});
    if (plan.stages.empty()) throw InputError(reason_of(plan));
  }
  const compute::AsTrained trained(plan, run.workload, platform.cluster());
  const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
  return nlohmann::json(play(platform, plan, trained, *program, nullptr).value).dump();
}

/// The simulations of a report: work for child processes, and functions that take their answers.
class Simulations {
 public:
  void add(std::function<std::string()> work, std::function<void(const ChildResult&)> take)
  {
    work_.push_back(std::move(work));
    take_.push_back(std::move(take));
  }
  void run()
  {
    constexpr Seconds no_limit(1e9);
    ProgressLine progress("report", work_.size());
    std::size_t ended = 0;
    run_in_children(work_, std::thread::hardware_concurrency(), no_limit,
                    [&](std::size_t index, const ChildResult& result) {
                      take_[index](result);
                      progress.done(++ended);
                    });
  }

 private:
  std::vector<std::function<std::string()>> work_;
  std::vector<std::function<void(const ChildResult&)>> take_;
};

void add_answer(Simulations& simulations, const Run& run, sim::Platform& platform, WhatIfAnswer& question, bool replan)
{
  simulations.add([&, replan] { return answer(run, platform, question.what_if, replan); },
                  [&question, replan](const ChildResult& result) {
                    if (result.failure) {
                      question.fault = result.failure->text;
                      return;
                    }
                    const Seconds time(nlohmann::json::parse(result.output).get<double>());
                    (replan ? question.planned_anew : question.kept) = time;
                  });
}

std::vector<WhatIfAnswer> questions_on(const Run& run, const Cluster& cluster, const ReportInputs& inputs)
{
  std::vector<WhatIfAnswer> questions;
  if (!inputs.asks_what_if) return questions;
  for (auto& what_if : results::what_ifs_of(run.result, results::site_map_of(run.result.plan, cluster))) {
    if (inputs.replans || !what_if.needs_planning) questions.push_back({std::move(what_if), {}, {}, ""});
  }
  return questions;
}

/// Prints for how many changes the kept plan is better than the new one, and by how much.
void note_worse_plans(const std::string& file, const std::vector<WhatIfAnswer>& answers)
{
  std::size_t worse = 0;
  const WhatIfAnswer* worst = nullptr;
  for (const auto& answer : answers) {
    if (answer.saved_by_keeping() <= 0) continue;
    ++worse;
    if (worst == nullptr || answer.saved_by_keeping() > worst->saved_by_keeping()) worst = &answer;
  }
  if (worst == nullptr) return;
  say(fmt::format("{}: for {} of {} the kept plan is better than the new one; its step is up to {:.3g} % shorter ({})",
                  on_one_line(file), worse, counted(answers.size(), "change"), 100 * worst->saved_by_keeping(),
                  worst->what_if.text));
}

const char* describe(Reported kind)
{
  return kind == Reported::Schedules ? "holds jobs of a schedule"
         : kind == Reported::Mix     ? "is a result of a mix"
                                     : "is a result of a plan";
}

/// The report of files of jobs.
std::string report_schedules(const ReportInputs& inputs)
{
  if (!inputs.measured.empty())
    throw InputError("--measured", "is a trace of a plan; the files hold jobs of a schedule");
  if (inputs.replans) throw InputError("--plan-anew", "plans; the files hold jobs of a schedule");
  refuse_overwriting(inputs.results, {inputs.target});
  std::vector<std::string> schedules;
  for (const auto& file : inputs.results) schedules.push_back(results::schedule_to_json({file, read_file(file)}));
  return results::schedule_report_to_json(ISOBAR_VERSION, schedules);
}

/// The report of one result of a mix.
std::string report_mix(const ReportInputs& inputs)
{
  if (inputs.results.size() > 1) throw InputError(inputs.results[1], "is a second result; a page shows one mix");
  if (!inputs.measured.empty()) throw InputError("--measured", "is a trace of a plan; the file is a result of a mix");
  if (inputs.replans) throw InputError("--plan-anew", "plans; the file is a result of a mix");
  if (inputs.trace.empty()) {
    throw InputError("--trace", "missing; name the trace that isobar simulate --mix --trace wrote with the result");
  }
  const results::NamedText result{inputs.results.front(), read_file(inputs.results.front())};
  const auto named = results::platform_of(result);
  const std::string file = find_input(result.name, "platform", named.name);
  const std::string devices = find_input(result.name, "devices", named.devices);
  refuse_overwriting({result.name, inputs.trace, file, devices}, {inputs.target});
  const auto platform = load_platform(file, devices);
  require_unchanged(result.name, "platform", {named.name, named.hash}, {file, platform.hash()});
  const Cluster& cluster = platform.cluster();
  const auto links_between = [&](const std::string& from, const std::string& to) {
    const auto here = cluster.device_index(from);
    const auto there = cluster.device_index(to);
    if (!here || !there)
      throw InputError(inputs.trace, fmt::format("has device {}, and {} has not", shown(here ? to : from), file));
    return cluster.network->links(*here, *there);
  };
  const std::string mix = results::mix_to_report(result, {inputs.trace, read_file(inputs.trace)}, links_between);
  return results::mix_report_to_json(ISOBAR_VERSION, mix);
}

}  // namespace

Reported reported_in(const std::vector<std::string>& files)
{
  std::optional<Reported> found;
  for (const auto& file : files) {
    const std::string text = read_file(file);
    const auto kind = results::is_jobs_file(text)    ? Reported::Schedules
                      : results::is_mix_result(text) ? Reported::Mix
                                                     : Reported::Plans;
    if (found && *found != kind) {
      throw InputError(file, fmt::format("{}; {} {}; a report shows one or the other", describe(kind),
                                         on_one_line(files.front()), describe(*found)));
    }
    found = kind;
  }
  return found.value();
}

std::string make_report(const ReportInputs& inputs)
{
  const Reported kind = reported_in(inputs.results);
  if (kind == Reported::Mix) return report_mix(inputs);
  if (!inputs.trace.empty()) {
    throw InputError("--trace", fmt::format("goes with a result of a mix; {} {}", on_one_line(inputs.results.front()),
                                            describe(kind)));
  }
  if (kind == Reported::Schedules) return report_schedules(inputs);
  if (!inputs.measured.empty() && inputs.results.size() > 1) {
    throw InputError("--measured", "is a trace of one plan; name only one result");
  }
  auto runs = read_runs(inputs.results);
  Inputs files = inputs_of(runs.front());
  auto read = files.files();
  read.insert(read.end(), inputs.results.begin(), inputs.results.end());
  read.push_back(inputs.measured);
  refuse_overwriting(read, {inputs.target});
  for (auto& run : runs) check_plan(run, files);

  Simulations simulations;
  std::vector<results::RunAndAnswers> answers(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    auto& [run_json, questions] = answers[i];
    simulations.add([&] { return record_run(run, files.platform, inputs.measured); },
                    [&run_json = run_json](const ChildResult& result) { run_json = result.output_or_throw(); });
    questions = questions_on(run, cluster_of(run, files.platform), inputs);
    for (auto& question : questions) {
      if (!question.what_if.needs_planning) add_answer(simulations, run, files.platform, question, false);
      if (inputs.replans) add_answer(simulations, run, files.platform, question, true);
    }
  }
  simulations.run();
  for (std::size_t i = 0; i < runs.size(); ++i) note_worse_plans(runs[i].file, answers[i].answers);
  return report_to_json(runs.front().result, ISOBAR_VERSION, answers);
}

}  // namespace isobar::cli
