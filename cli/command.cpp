#include "cli/command.hpp"

#include "allocators/registry.hpp"
#include "core/base/files.hpp"
#include "core/base/quantity_text.hpp"
#include "core/base/standard_streams.hpp"
#include "core/model/device_profile.hpp"
#include "core/program/chrome_trace.hpp"
#include "results/result.hpp"
#include "results/utilization.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>

namespace isobar::cli {

namespace {

/// The value of an option that takes one word of a list.
template <typename Value, typename FromName>
Value chosen(const std::string& option, const std::string& word, FromName from_name,
             const std::vector<std::string>& words)
{
  if (const std::optional<Value> value = from_name(word)) return *value;
  const std::string nearest = nearest_word(word, words);
  throw InputError(option, fmt::format("{} is none of {}{}", in_quotes(word), fmt::join(words, ", "),
                                       nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

std::optional<std::uint64_t> whole_number(std::string_view text)
{
  std::uint64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

void require_layer(const std::string& where, std::size_t layer, const Workload& workload)
{
  if (layer < workload.layers.size()) return;
  throw InputError(
      where, fmt::format("layer {}; workload {} has layers 0 to {}", layer, workload.name, workload.layers.size() - 1));
}

/// "none", "all", or layers and ranges of them in order, such as "3-10,12".
std::vector<std::size_t> layers_from_option(const std::string& option, const std::string& text,
                                            const Workload& workload)
{
  std::vector<std::size_t> layers;
  if (text == "none") return layers;
  if (text == "all") {
    layers.resize(workload.layers.size());
    std::iota(layers.begin(), layers.end(), std::size_t{0});
    return layers;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item(text.data() + begin, end - begin);
    const std::size_t dash = item.find('-');
    const auto first = whole_number(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : whole_number(item.substr(dash + 1));
    if (!first || !last || *first > *last || (!layers.empty() && *first <= layers.back())) {
      throw InputError(option,
                       fmt::format("{} is neither none, all, nor layers in order, such as 3-10,12", in_quotes(text)));
    }
    require_layer(option, *last, workload);
    for (std::size_t layer = *first; layer <= *last; ++layer) layers.push_back(layer);
    begin = end + 1;
  }
  return layers;
}

Inputs read_inputs(const InputOptions& options, const std::vector<std::string>& left_out)
{
  const std::string workload_text = read_file(options.workload);
  Workload workload = workload_from_text(workload_text, options.workload);
  sim::Platform platform = load_platform(options.platform, options.devices, left_out);
  say_notes(platform);
  std::optional<Fingerprint> measured;
  if (!options.profile.empty()) {
    const DeviceProfile profile = read_profile(options.profile);
    apply_profile(profile, options.profile, workload);
    platform.set_measured_speed(profile.device, profile.speed);
    measured = Fingerprint{options.profile, fingerprint(read_file(options.profile))};
  }
  Fingerprint platform_fingerprint{options.platform, platform.hash()};
  return {std::move(platform),
          std::move(workload),
          std::move(platform_fingerprint),
          {options.workload, fingerprint(workload_text)},
          std::move(measured),
          options.devices.empty() ? std::nullopt : std::optional(options.devices)};
}

/// Passes each event on to several sinks.
class Tee : public TraceSink {
 public:
  explicit Tee(std::vector<TraceSink*> sinks) : sinks_(std::move(sinks)) {}
  void record(const TraceEvent& event) override
  {
    for (TraceSink* sink : sinks_) sink->record(event);
  }
  void memory_changed(std::size_t rank, Seconds time, Bytes memory) override
  {
    for (TraceSink* sink : sinks_) sink->memory_changed(rank, time, memory);
  }
  void link_changed(const std::string& link, Seconds time, std::size_t transfers) override
  {
    for (TraceSink* sink : sinks_) sink->link_changed(link, time, transfers);
  }

 private:
  std::vector<TraceSink*> sinks_;
};

}  // namespace

void InputOptions::add_to(CLI::App& command)
{
  add_file(command, "PLATFORM", platform, "SimGrid platform file (XML)")->required();
  add_file(command, "WORKLOAD", workload, "workload file (YAML)")->required();
  add_file(command, "--devices", devices,
           "props for the platform's hosts (YAML); default: NAME.devices.yaml beside it");
  add_file(command, "--profile", profile, "measured times of the workload's layers (JSON, made by isobar profile)");
}

sim::Platform load_platform(const std::string& file, const std::string& devices_file,
                            const std::vector<std::string>& left_out)
{
  return sim::Platform::load(
      file, devices_file.empty() ? std::nullopt : std::optional<std::filesystem::path>(devices_file), left_out);
}

void say_notes(const sim::Platform& platform)
{
  for (const auto& note : platform.notes()) say(note);
}

Inputs load(const InputOptions& options, const GoalOptions& goal, const std::vector<std::string>& left_out)
{
  Inputs inputs = read_inputs(options, left_out);
  recompute_layers(inputs.workload, "--recompute", goal.recompute);
  return inputs;
}

Inputs load(const InputOptions& options, const Plan& plan, const std::string& plan_file)
{
  Inputs inputs = read_inputs(options, plan.without);
  if (plan.micro_batch) inputs.workload = at_micro_batch(inputs, *plan.micro_batch, plan_file + ": micro_batch");
  recompute(inputs.workload, plan.recompute, plan_file + ": recompute");
  inputs.platform.leave_out(plan.without, plan_file + ": without");
  return inputs;
}

void note_missing_rates(const Inputs& inputs)
{
  const DType dtype = inputs.workload.dtype;
  if (dtype == DType::Float32 || inputs.profile_fingerprint) return;
  std::map<std::string, std::size_t> lacking;  // devices of each type
  for (const auto& device : inputs.platform.cluster().devices) {
    if (!device.speed_in.contains(dtype)) ++lacking[device.type.empty() ? "devices without a type" : device.type];
  }
  if (lacking.empty()) return;
  std::string list;
  for (const auto& [type, count] : lacking) {
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", shown(type), count);
  }
  say(fmt::format("{}: no {} rate of {}; their float32 rate is used; set speed.{}",
                  on_one_line(inputs.platform_fingerprint.name), name_of(dtype), list, name_of(dtype)));
}

Workload at_micro_batch(const Inputs& inputs, std::uint64_t micro_batch, const std::string& where)
{
  const Workload& workload = inputs.workload;
  if (micro_batch == workload.micro_batch) return workload;
  if (std::holds_alternative<std::monostate>(workload.model)) {
    throw InputError(where, fmt::format("workload {} lists its layers, for micro-batches of {} samples; other sizes "
                                        "need a generator, such as model: gpt",
                                        workload.name, workload.micro_batch));
  }
  if (inputs.profile_fingerprint) {
    throw InputError(where, fmt::format("{} was measured with micro-batches of {} samples; leave --profile out",
                                        inputs.profile_fingerprint->name, workload.micro_batch));
  }
  return with_micro_batch(workload, micro_batch);
}

Workload workload_of(const Inputs& inputs, const Plan& plan)
{
  return at_micro_batch(inputs, plan.micro_batch.value_or(inputs.workload.micro_batch), "micro_batch");
}

void recompute_layers(Workload& workload, const std::string& option, const std::string& layers)
{
  recompute(workload, layers_from_option(option, layers, workload), option);
}

void recompute(Workload& workload, const std::vector<std::size_t>& layers, const std::string& where)
{
  if (layers.empty()) return;
  if (workload.memory_model == MemoryModel::Sky) {
    throw InputError(where, "memory_model sky knows nothing of recomputation; write memory_model: training");
  }
  require_layer(where, layers.back(), workload);
  workload = with_recomputation(workload, layers);
}

std::vector<std::string> Inputs::files() const
{
  std::vector<std::string> files = platform.files();
  files.push_back(workload_fingerprint.name);
  if (profile_fingerprint) files.push_back(profile_fingerprint->name);
  return files;
}

std::string program_of(const std::string& allocator)
{
  constexpr std::string_view external = "exec:";
  return allocator.starts_with(external) ? allocator.substr(external.size()) : "";
}

std::string platform_files_json(const std::string& file, const std::string& devices_file)
{
  const sim::Platform platform = load_platform(file, devices_file);
  say_notes(platform);
  const nlohmann::json answer = {{"hash", platform.hash()}, {"files", platform.files()}};
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

PlatformFiles platform_files_from(const std::string& json)
{
  const auto answer = nlohmann::json::parse(json);
  return {answer.at("hash"), answer.at("files")};
}

OutputFile::OutputFile(const std::string& name) : is_standard_output_(name == standard_output)
{
  if (!name.empty() && !is_standard_output_) file_.emplace(name);
}

void OutputFile::write(const std::string& content)
{
  if (is_standard_output_) print(content);
  if (!file_) return;
  file_->write(content);
  file_->keep();
}

void GoalOptions::add_to(CLI::App& command)
{
  command.add_option("--communication", communication,
                     "how transfers count: for objective step played or none, for the others none, overlapped or "
                     "serial (default: played for step, serial for sequential, else overlapped)");
  command.add_option("--schedule", schedule,
                     "sequential, gpipe, 1f1b (default: sequential for objective sequential, else 1f1b)");
  add_count(command, "--microbatches", microbatches,
            "micro-batches of a step (default: 1 for objective sequential, else 8)");
  add_count(command, "--budget", budget,
            "work that a search may do, in the allocator's own units; same result everywhere");
  command.add_option("--time-limit", time_limit, "time that a search may take, such as 30s");
  add_count(command, "--seed", seed, "start of the random numbers of allocators that draw any (default: 1)");
  command.add_option("--recompute", recompute,
                     "layers that recompute their activations in the backward pass: none, all, or a list such as "
                     "3-10,12 (default: none)");
  command.add_flag("--polish", polish,
                   "minimize the step at the end, whatever the objective; always so for objective step "
                   "(allocator local-search)");
}

void GoalOptions::add_global_batch_to(CLI::App& command)
{
  add_count(command, "--global-batch", global_batch,
            "samples of a step: plans for several micro-batch sizes that divide it, keeps the least objective "
            "(objectives step and pipeline; default: the workload's micro-batch, --microbatches times)");
}

Goal GoalOptions::goal(const std::string& objective) const
{
  Goal goal = Goal::with_defaults(chosen<Objective>("--objective", objective, objective_from_name, objective_names()));
  if (communication) {
    goal.communication =
        chosen<Communication>("--communication", *communication, communication_from_name, communication_names());
  }
  if (schedule) goal.schedule = chosen<Schedule>("--schedule", *schedule, schedule_from_name, schedule_names());
  if (microbatches) goal.microbatches = *microbatches;
  if (!are_compatible(goal.objective, goal.communication)) {
    throw InputError("--communication",
                     fmt::format("{} does not go with objective {}; {}", name_of(goal.communication), objective,
                                 goal.objective == Objective::Step ? "use played or none, or another objective"
                                                                   : "played is for objective step alone"));
  }
  if (goal.microbatches < 1 || goal.microbatches > most_microbatches_by_recurrence) {
    throw InputError("--microbatches",
                     fmt::format("{} is not in 1 to {}; a step is predicted micro-batch by micro-batch",
                                 goal.microbatches, most_microbatches_by_recurrence));
  }
  return goal;
}

allocators::SearchLimits GoalOptions::limits() const
{
  allocators::SearchLimits limits;
  limits.budget = budget;
  limits.seed = seed;
  limits.polish = polish;
  if (time_limit) limits.time_limit = seconds_from_option("--time-limit", *time_limit);
  return limits;
}

void GoalOptions::check_polish(const std::vector<std::string>& allocators) const
{
  if (!polish) return;
  for (const auto& allocator : allocators) allocators::require_improver("--polish", allocator);
}

Seconds seconds_from_option(const std::string& option, const std::string& text)
{
  try {
    return seconds_from_text(text);
  } catch (const std::invalid_argument& fault) {
    throw InputError(option, fault.what());
  }
}

Plan make_plan(const Inputs& inputs, const std::string& allocator, const Goal& goal,
               const allocators::SearchLimits& limits)
{
  Plan plan = allocators::allocate(allocator, inputs.workload, inputs.platform.cluster(), goal, limits);
  name_inputs(plan, inputs, inputs.workload.micro_batch);
  return plan;
}

void name_inputs(Plan& plan, const Inputs& inputs, std::uint64_t micro_batch)
{
  plan.platform = inputs.platform_fingerprint;
  plan.workload = inputs.workload_fingerprint;
  plan.profile = inputs.profile_fingerprint;
  if (micro_batch != inputs.workload.micro_batch) plan.micro_batch = micro_batch;
}

std::string simulate_plan(const Inputs& inputs, const Plan& plan, std::uint64_t iterations,
                          const std::string& trace_file)
{
  const Cluster& cluster = inputs.platform.cluster();
  const Workload workload = workload_of(inputs, plan);
  const auto program = schedules::make_program(plan, workload);
  std::vector<std::string> devices;
  for (const auto& stage : plan.stages) devices.push_back(stage.device());
  std::vector<std::string> hosts = devices;
  std::vector<std::string> sites;
  for (const auto& device : devices) sites.push_back(cluster.devices[cluster.device_index(device).value()].site);
  if (cluster.data_server) {
    hosts.push_back(*cluster.data_server);
    sites.emplace_back();
  }

  results::StageMeter meter(program->ranks());
  std::vector<TraceSink*> sinks = {&meter};
  std::ofstream trace_stream;
  std::optional<ChromeTraceWriter> writer;
  if (!trace_file.empty()) {
    trace_stream.open(trace_file, std::ios::binary);
    if (!trace_stream) throw EnvironmentError(trace_file, "cannot write there");
    sinks.push_back(&writer.emplace(trace_stream, hosts, sites));
  }
  Tee tee(sinks);
  const auto report =
      sim::simulate(inputs.platform, *program, sim::rank_hosts(plan, workload, cluster), iterations, &tee);
  if (writer) {
    writer->finish();
    if (!trace_stream) throw EnvironmentError(trace_file, "cannot write the trace; is the disk full?");
  }

  results::Result result;
  result.step_times = report.step_times;
  const Seconds total = std::accumulate(report.step_times.begin(), report.step_times.end(), Seconds(0));
  result.step_time = total / static_cast<double>(iterations);
  result.step_bound = plan.step_bound.value();
  result.stages = meter.stages(devices, iterations, result.step_time);
  result.utilization = results::utilization_of(workload, inputs.profile_fingerprint.has_value(), cluster, result.stages,
                                               plan.goal.microbatches, result.step_time);
  for (const auto& link : report.links) {
    result.links.push_back({link.name, link.bytes / static_cast<double>(iterations), link.busy_time / total});
  }
  result.activities = report.activities;
  result.network = sim::network_settings();
  result.simgrid_version = sim::simgrid_version();
  result.plan = plan;
  result.inputs = {inputs.platform_fingerprint, inputs.devices_file, inputs.workload_fingerprint,
                   inputs.profile_fingerprint};
  result.simulate_time = report.wall_time;
  return result_to_json(result);
}

Stamp stamp_of(const std::string& result_json, const Plan& plan, const Inputs& inputs)
{
  const auto result = nlohmann::json::parse(result_json);
  Stamp stamp;
  stamp.step_time = Seconds(result["step_time_s"].get<double>());
  for (const auto& stage : result["stages"]) {
    stamp.peak_memory[stage["device"].get<std::string>()] = Bytes(stage["peak_memory_bytes"].get<double>());
  }
  stamp.platform_hash = inputs.platform_fingerprint.hash;
  stamp.workload_hash = inputs.workload_fingerprint.hash;
  stamp.plan_hash = hash_of(plan);
  stamp.version = ISOBAR_VERSION;
  stamp.simgrid_version = result["simgrid_version"].get<std::string>();
  return stamp;
}

std::string reason_of(const Plan& plan)
{
  constexpr std::size_t longest = 500;
  return shown(plan.reason, longest);
}

void print(const std::string& text)
{
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw EnvironmentError("cannot write to standard output");
  }
}

}  // namespace isobar::cli
