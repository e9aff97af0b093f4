#include "exec/files/step_log.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

using Json = nlohmann::ordered_json;

/// The values that every log has for a step, by their names.
std::vector<Scalar> scalars_of(const StepReport& step, double samples_per_s)
{
  std::vector<Scalar> scalars = {
      {"loss", step.loss}, {"step_time_s", step.duration.value}, {"samples_per_s", samples_per_s}};
  if (step.learning_rate) scalars.emplace_back("learning_rate", *step.learning_rate);
  if (step.peak_memory.value > 0) scalars.emplace_back("peak_memory_bytes", step.peak_memory.value);
  return scalars;
}

/// Opens for appending.
void open_json_lines(std::ofstream& stream, const std::string& file)
{
  stream.open(file, std::ios::app);
  if (!stream) throw EnvironmentError(shown(file, 300) + ": cannot write there");
}

/// The lines to keep of a continued log; "" for a new one.
std::string lines_to_keep(const StepLogOptions& options)
{
  return options.append ? lines_before(read_file(options.json_lines), options.json_lines, options.first_step) : "";
}

/// Prometheus has its own spelling of NaN and infinities.
std::string number_of(double value)
{
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

StepLog::StepLog(StepLogOptions options) : options_(std::move(options))
{
  if (!options_.json_lines.empty()) {
    open_json_lines(json_lines_, options_.json_lines);
    if (std::filesystem::is_regular_file(options_.json_lines)) {
      lines_to_keep(options_);  // refuses a file that is not a log
      const TemporaryFile can_be_replaced(options_.json_lines);
    }
  }
  if (!options_.prometheus.empty()) const TemporaryFile can_be_written(options_.prometheus);
  if (!options_.tensorboard.empty()) events_.emplace(options_.tensorboard, options_.first_step);
}

void StepLog::operator()(const StepReport& step)
{
  const double rate = options_.samples / step.duration.value;
  if (options_.table) print(step, rate);
  const auto scalars = scalars_of(step, rate);
  if (json_lines_.is_open()) {
    if (!std::exchange(has_logged_, true)) begin_json_lines();
    Json line = {{"step", step.step}};
    for (const auto& [name, value] : scalars) line[std::string(name)] = value;
    if (options_.updates_late) line["updates_late"] = true;
    json_lines_ << line.dump() << std::endl;
    if (!json_lines_) {
      throw EnvironmentError(shown(options_.json_lines, 300) + ": cannot be written; is the disk full?");
    }
  }
  if (events_) events_->add(step.step, scalars);
  if (!options_.prometheus.empty())
    write_file_atomically(options_.prometheus, prometheus_text(step, rate), Flush::Never);
}

void StepLog::begin_json_lines()
{
  if (!std::filesystem::is_regular_file(options_.json_lines)) return;
  json_lines_.close();
  write_file_atomically(options_.json_lines, lines_to_keep(options_));
  open_json_lines(json_lines_, options_.json_lines);
}

void StepLog::print(const StepReport& step, double rate)
{
  const std::string& job = options_.job;
  if (!has_printed_ && job.empty()) {
    fmt::print("{:>5}  {:>10}  {:>10}  {:>9}\n", "step", "loss", "samples/s", "step s");
  }
  has_printed_ = true;
  fmt::print("{}{}{:>5}  {:>10.6g}  {:>10.4g}  {:>9.4g}\n", job, job.empty() ? "" : "  ", step.step, step.loss, rate,
             step.duration.value);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw EnvironmentError("cannot write to standard output");
}

std::string lines_before(const std::string& log, const std::string& file, std::uint64_t first_step)
{
  std::string kept;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < log.size();) {
    const std::size_t end = log.find('\n', begin);
    if (end == std::string::npos) break;  // an incomplete last line
    ++number;
    const std::string_view line(log.data() + begin, end - begin);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const auto step = json.is_object() ? json.find("step") : json.end();
    if (step == json.end() || !step->is_number_unsigned()) {
      throw InputError(fmt::format("{}:{}: {} is not a step of a log; name a file that --log has written",
                                   shown(file, 300), number, in_quotes(line)));
    }
    if (step->get<std::uint64_t>() < first_step) kept.append(line).append("\n");
    begin = end + 1;
  }
  return kept;
}

std::string prometheus_text(const StepReport& step, double samples_per_s)
{
  std::string text;
  const auto add = [&text](const char* name, const char* type, const char* help, double value) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help, type, number_of(value));
  };
  add("isobar_steps_total", "counter", "Steps done.", static_cast<double>(step.step + 1));
  add("isobar_loss", "gauge", "Mean loss of the last step.", step.loss);
  add("isobar_step_time_seconds", "gauge", "Time of the last step.", step.duration.value);
  add("isobar_samples_per_second", "gauge", "Samples per second in the last step.", samples_per_s);
  if (step.learning_rate)
    add("isobar_learning_rate", "gauge", "Learning rate of the last step's update.", *step.learning_rate);
  if (step.peak_memory.value > 0) {
    add("isobar_peak_memory_bytes", "gauge", "Peak memory of the last stage's rank.", step.peak_memory.value);
  }
  return text;
}

}  // namespace isobar::exec
