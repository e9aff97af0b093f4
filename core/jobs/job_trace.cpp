#include "core/jobs/job_trace.hpp"

#include "core/base/files.hpp"
#include "core/base/pcg64.hpp"
#include "core/errors.hpp"
#include "core/jobs/measured_models.hpp"
#include "core/jobs/trace_numbers.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/document.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

namespace isobar {

namespace {

constexpr std::size_t most_cells = 200'000'000;
constexpr std::uint64_t most_devices_of_a_job = 1'000'000;

enum class Format { Muri, Helios, Pai, Philly };

struct Input {
  std::string name;
  std::string text;
  FaultList& faults;
};

/// A job of a trace that tells how long it ran, but not what it computed.
struct TimedJob {
  std::string name;
  std::uint64_t devices = 0;
  Seconds arrival;
  Seconds duration;
};

template <typename Value>
Value or_fault(const std::optional<Value>& value, int line, const char* column, const std::string& cell,
               const char* wanted, FaultList& faults)
{
  if (!value) faults.add(line, column, fmt::format("{} is not {}", in_quotes(cell), wanted));
  return value.value_or(Value{});
}

/// Cells of a row by the name of their column.
class Cells {
 public:
  Cells(const std::vector<std::string>& columns, const CsvTable::Row& row, FaultList& faults)
      : columns_(columns), row_(row), faults_(faults)
  {
  }

  int line() const { return row_.line; }
  const std::string& text(std::string_view column) const
  {
    static const std::string none;
    const auto place = std::find(columns_.begin(), columns_.end(), column);
    return place == columns_.end() ? none : row_.cells[static_cast<std::size_t>(place - columns_.begin())];
  }
  bool is_missing(const char* column) const
  {
    const std::string& cell = text(column);
    return cell.empty() || cell == "None" || cell == "NaN" || cell == "nan" || cell == "null";
  }
  std::uint64_t count(const char* column, std::uint64_t lowest = 0) const
  {
    auto value = count_in(text(column));
    if (value && *value < lowest) value.reset();
    return or_fault(value, row_.line, column, text(column), lowest == 0 ? "a whole number" : "a whole number from 1",
                    faults_);
  }
  double number(const char* column) const
  {
    return or_fault(number_in(text(column)), row_.line, column, text(column), "a number from 0 to 1e15", faults_);
  }
  Seconds milliseconds(const char* column) const { return Seconds(number(column) / 1000); }
  Seconds moment(const char* column) const
  {
    return or_fault(moment_in(text(column)), row_.line, column, text(column), "a time; write it as 2020-04-01 15:17:00",
                    faults_);
  }

 private:
  const std::vector<std::string>& columns_;
  const CsvTable::Row& row_;
  FaultList& faults_;
};

std::vector<Job> read_muri(const Input& input)
{
  const auto table = CsvTable::by_hand(input.text,
                                       {"job_id", "num_gpu", "submit_time", "iterations", "model_name",
                                        "iteration_time", "resource_time_0", "resource_time_1", "resource_time_2"},
                                       {"batch_size", "duration", "interval", "priority", "start_cost"}, input.faults);
  std::vector<Job> jobs;
  for (const auto& row : table.rows()) {
    const Cells cells(table.columns(), row, input.faults);
    Job& job = jobs.emplace_back();
    job.name = cells.text("job_id");
    job.model = cells.text("model_name");
    job.devices = cells.count("num_gpu", 1);
    job.arrival = cells.milliseconds("submit_time");
    job.steps = static_cast<double>(cells.count("iterations", 1));
    job.step.alone = cells.milliseconds("iteration_time");
    if (number_in(cells.text("iteration_time")) == 0.0)
      input.faults.add(row.line, "iteration_time", "is 0; a step takes time");
    job.step.busy = {cells.milliseconds("resource_time_0"), cells.milliseconds("resource_time_1"),
                     cells.milliseconds("resource_time_2")};
    if (!cells.text("start_cost").empty()) {
      job.start_cost = cells.milliseconds("start_cost");
    } else if (const auto cost = measured_start_cost(job.model, job.devices)) {
      job.start_cost = *cost;
    } else {
      input.faults.add(row.line, "model_name",
                       fmt::format("{} has no known start cost; add a column start_cost, in ms, or write one of {}",
                                   in_quotes(job.model), fmt::join(measured_models(), ", ")));
    }
  }
  return jobs;
}

constexpr const char* never_ran = "never ran";
constexpr const char* still_running = "still running at the end of the trace";

/// Why a row has no duration; none if it has one.
std::optional<std::string> why_not_timed(const Cells& cells)
{
  if (cells.is_missing("start_time")) return never_ran;
  if (cells.is_missing("end_time")) return still_running;
  return std::nullopt;
}

std::vector<TimedJob> read_helios(const Input& input, JobTrace& trace)
{
  const auto table =
      CsvTable::by_hand(input.text, {"job_id", "gpu_num", "submit_time", "start_time", "end_time"},
                        {"user", "vc", "jobname", "cpu_num", "node_num", "state", "type", "duration", "queue",
                         "gpu_time", "mem_per_pod_GB", "shared_mem_per_pod", "fail_time", "stop_time"},
                        input.faults);
  std::vector<TimedJob> jobs;
  for (const auto& row : table.rows()) {
    const Cells cells(table.columns(), row, input.faults);
    TimedJob job{cells.text("job_id"), 0, cells.moment("submit_time"), {}};
    if (const auto reason = why_not_timed(cells)) {
      trace.leave_out(*reason);
      continue;
    }
    job.duration = cells.moment("end_time") - cells.moment("start_time");
    if (!cells.is_missing("gpu_num")) {
      // Some of the published files write 8.0 for 8.
      const double count = cells.number("gpu_num");
      if (count != std::floor(count)) {
        input.faults.add(row.line, "gpu_num",
                         fmt::format("{} is not a whole number", in_quotes(cells.text("gpu_num"))));
      }
      job.devices = static_cast<std::uint64_t>(count);
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

/// The columns of a PAI trace, whose header is in a file of its own.
std::vector<std::string> pai_columns(const std::filesystem::path& file)
{
  FaultList faults(file.string());
  const auto table = CsvTable::without_header(read_file(file), 1000, faults);
  faults.throw_if_any();
  std::vector<std::string> columns = table.rows().empty() ? std::vector<std::string>{} : table.rows().front().cells;
  for (const char* column : {"job_name", "inst_num", "start_time", "end_time", "plan_gpu"}) {
    if (std::count(columns.begin(), columns.end(), column) == 1) continue;
    throw InputError(file.string(),
                     fmt::format("has no column {}; name the header of pai_task_table with --header", column));
  }
  return columns;
}

/// A job's tasks run together: it takes all of their GPUs from the begin of the first one to the end of the last one.
std::vector<TimedJob> read_pai(const Input& input, const std::vector<std::string>& columns, JobTrace& trace)
{
  const auto table = CsvTable::without_header(input.text, most_cells, input.faults);
  std::map<std::string, std::size_t> places;
  std::vector<TimedJob> jobs;
  std::vector<Seconds> ends;
  for (const auto& row : table.rows()) {
    if (row.cells.size() != columns.size()) {
      input.faults.add(row.line, "row",
                       fmt::format("has {} cells; the header has {}", row.cells.size(), columns.size()));
      continue;
    }
    const Cells cells(columns, row, input.faults);
    if (const auto reason = why_not_timed(cells)) {
      trace.leave_out(*reason);
      continue;
    }
    if (cells.is_missing("plan_gpu") || cells.is_missing("inst_num")) {
      trace.leave_out("no GPU");
      continue;
    }
    const Seconds begin(cells.number("start_time"));
    const Seconds end(cells.number("end_time"));
    const double gpus = cells.number("inst_num") * cells.number("plan_gpu") / 100;  // percent of a GPU
    const auto [place, is_new] = places.emplace(cells.text("job_name"), jobs.size());
    if (is_new) {
      jobs.push_back({place->first, 0, begin, {}});
      ends.push_back(end);
    }
    TimedJob& job = jobs[place->second];
    job.devices += static_cast<std::uint64_t>(std::ceil(std::min(gpus, 1e9)));
    job.arrival = std::min(job.arrival, begin);
    ends[place->second] = std::max(ends[place->second], end);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].duration = ends[i] - jobs[i].arrival;
  return jobs;
}

/// A time of Philly's trace; none for null and "None", and with a fault for another text.
std::optional<Seconds> philly_moment(MappingReader& reader, const std::string& key)
{
  const DocumentNode* node = reader.optional(key);
  if (node == nullptr || node->kind == DocumentNode::Kind::Null || node->scalar == "None") return std::nullopt;
  const auto moment = moment_in(node->scalar);
  if (!moment) reader.add_fault(key, in_quotes(node->scalar) + " is not a time; write it as 2017-10-09 07:02:27");
  return moment;
}

std::uint64_t philly_gpus(MappingReader& attempt, FaultList& faults)
{
  std::uint64_t gpus = 0;
  for (const auto& item : attempt.required_sequence("detail")) {
    MappingReader server(item, attempt.path_of("detail[]."), faults);
    gpus += server.required_sequence("gpus").size();
  }
  return gpus;
}

/// A job takes the most GPUs of its attempts, for as long as they ran together.
std::vector<TimedJob> read_philly(const Input& input, JobTrace& trace)
{
  const DocumentNode document = parse_json(input.text, input.name);
  if (document.kind != DocumentNode::Kind::Sequence) {
    input.faults.add(document.line, "", "is not a list of jobs; Philly's trace is cluster_job_log");
    return {};
  }
  std::vector<TimedJob> jobs;
  for (std::size_t i = 0; i < document.items.size(); ++i) {
    const std::string place = fmt::format("[{}].", i);
    MappingReader reader(document.items[i], place, input.faults);
    TimedJob job;
    job.name = reader.required_text("jobid");
    const auto submitted = philly_moment(reader, "submitted_time");
    bool is_running = false;
    for (const auto& item : reader.required_sequence("attempts")) {
      MappingReader attempt(item, place + "attempts[].", input.faults);
      const auto begin = philly_moment(attempt, "start_time");
      const auto end = philly_moment(attempt, "end_time");
      job.devices = std::max(job.devices, philly_gpus(attempt, input.faults));
      if (begin && end) job.duration += *end - *begin;
      is_running = begin && !end;  // the last attempt counts
    }
    if (!submitted) {
      trace.leave_out("no time of submission");
    } else if (job.duration <= Seconds(0)) {
      trace.leave_out(is_running ? still_running : never_ran);
    } else {
      job.arrival = *submitted;
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

/// Jobs of a measured model each, with the steps that fit into their duration.
void draw_models(const std::vector<TimedJob>& timed, std::uint64_t seed, JobTrace& trace)
{
  trace.has_drawn_models = true;
  Pcg64 random(seed);
  for (const auto& [name, devices, arrival, duration] : timed) {
    if (devices == 0) {
      trace.leave_out("no GPU");
    } else if (duration <= Seconds(0)) {
      trace.leave_out("ran for no time");
    } else if (devices > most_devices_of_a_job) {
      trace.leave_out("more than a million GPUs");
    } else {
      Job& job = trace.jobs.emplace_back();
      job.name = name;
      job.model = measured_models()[random.below(static_cast<std::uint32_t>(measured_models().size()))];
      job.devices = devices;
      job.arrival = arrival;
      job.step = measured_step(job.model, devices);
      job.steps = std::max(1.0, std::round(duration / job.step.alone));
      job.start_cost = measured_start_cost(job.model, devices).value();
    }
  }
}

std::filesystem::path header_of(const std::filesystem::path& file, const TraceOptions& options)
{
  return options.header.empty() ? std::filesystem::path(file).replace_extension(".header") : options.header;
}

std::optional<Format> format_by_content(const std::string& text)
{
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos && (text[begin] == '[' || text[begin] == '{')) return Format::Philly;
  const std::string first_line = text.substr(0, text.find('\n'));
  if (first_line.find("gpu_num") != std::string::npos) return Format::Helios;
  if (first_line.find("num_gpu") != std::string::npos) return Format::Muri;
  return std::nullopt;
}

Format format_by_name(const std::string& name)
{
  const auto& names = trace_formats();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<Format>(found - names.begin());
  throw InputError("--format", fmt::format("{} is none of {}", in_quotes(name), fmt::join(names, ", ")));
}

std::string name_of(Format format)
{
  return trace_formats()[static_cast<std::size_t>(format)];
}

Format format_of(const Input& input, const std::filesystem::path& file, const TraceOptions& options)
{
  const auto content = format_by_content(input.text);
  if (!options.format.empty()) {
    const Format named = format_by_name(options.format);
    if (!content || *content == named) return named;
    throw InputError("--format", fmt::format("{} is a trace of format {}, not {}", on_one_line(input.name),
                                             name_of(*content), options.format));
  }
  if (content) return *content;
  if (input.text.find_first_not_of(" \t\r\n") == std::string::npos) throw InputError(input.name, "is empty");
  if (!options.header.empty() || std::filesystem::exists(header_of(file, options))) return Format::Pai;
  throw InputError(input.name + ":1",
                   fmt::format("no known format begins like this; name it with --format {}, and the header of a PAI "
                               "trace with --header",
                               fmt::join(trace_formats(), ", ")));
}

}  // namespace

void JobTrace::leave_out(const std::string& reason)
{
  for (auto& known : left_out) {
    if (known.reason == reason) return static_cast<void>(++known.rows);
  }
  left_out.push_back({reason, 1});
}

std::string text_of_left_out(const JobTrace& trace)
{
  std::string text;
  for (const auto& [reason, rows] : trace.left_out)
    text += fmt::format("; {} left out: {}", counted(rows, "row"), reason);
  return text;
}

const std::vector<std::string>& trace_formats()
{
  static const std::vector<std::string> names = {"muri", "helios", "pai", "philly"};
  return names;
}

JobTrace read_job_trace(const std::filesystem::path& file, const TraceOptions& options)
{
  FaultList faults(file.string());
  const Input input{file.string(), read_file(file), faults};
  const Format format = format_of(input, file, options);
  if (format != Format::Pai && !options.header.empty()) {
    throw InputError("--header",
                     fmt::format("goes with a PAI trace; {} has format {}", on_one_line(input.name), name_of(format)));
  }
  JobTrace trace;
  trace.format = name_of(format);
  trace.files = {file.string()};
  std::vector<TimedJob> timed;
  switch (format) {
    case Format::Muri:
      trace.jobs = read_muri(input);
      break;
    case Format::Helios:
      timed = read_helios(input, trace);
      break;
    case Format::Pai:
      trace.files.push_back(header_of(file, options).string());
      timed = read_pai(input, pai_columns(header_of(file, options)), trace);
      break;
    case Format::Philly:
      timed = read_philly(input, trace);
      break;
  }
  faults.throw_if_any();
  if (format != Format::Muri) draw_models(timed, options.seed, trace);
  if (trace.jobs.empty()) throw InputError(file.string(), "has no job to schedule" + text_of_left_out(trace));
  std::stable_sort(trace.jobs.begin(), trace.jobs.end(),
                   [](const Job& a, const Job& b) { return a.arrival < b.arrival; });
  const Seconds begin = trace.jobs.front().arrival;
  for (Job& job : trace.jobs) job.arrival -= begin;
  return trace;
}

}  // namespace isobar
