#include "results/trace/trace_merge.hpp"

#include "core/errors.hpp"
#include "core/text/json_text.hpp"
#include "results/trace/gzip.hpp"
#include "results/trace/recorded_program.hpp"
#include "results/trace/timeline.hpp"
#include "results/trace/trace_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

/// One of the two traces.
struct Side {
  const char* name;
  TraceFile trace;
  Seconds shift;  ///< of its times in the merged trace
};

Seconds begin_of_step(const std::vector<Seconds>& times, const std::optional<std::uint64_t>& step)
{
  const std::uint64_t chosen = step ? std::min<std::uint64_t>(*step, times.size() - 1) : typical_step(times);
  Seconds begin;
  for (std::uint64_t i = 0; i < chosen; ++i) begin += times[i];
  return begin;
}

/// Step times of both, in the order of the arguments. @throws InputError when the traces are of different plans.
std::array<std::vector<Seconds>, 2> step_times_of(const TraceFile& predicted, const TraceFile& measured)
{
  if (predicted.devices != measured.devices) {
    throw InputError(measured.name, "has other devices than " + predicted.name + "; pass two traces of one plan");
  }
  const auto program = recorded_program(predicted);
  return {Timeline::of(predicted, *program).step_times(), Timeline::of(measured, *program).step_times()};
}

/// Rounds to tenths of a nanosecond, the resolution of traces.
double microseconds(double shifted)
{
  constexpr double ticks = 1e4;
  return std::round(shifted * ticks) / ticks;
}

/// An event of one side, changed for the merged trace.
Json merged(Json event, std::size_t which, const Side& side)
{
  event["pid"] = 2 * event["pid"].get<std::uint64_t>() + which;
  if (event.contains("ts")) event["ts"] = microseconds(event["ts"].get<double>() + 1e6 * side.shift.value);
  if (event.contains("id")) event["id"] = 2 * event["id"].get<std::uint64_t>() + which;
  const std::string name = event.value("name", "");
  if (name == "process_name") {
    event["args"]["name"] = fmt::format("{} ({})", event["args"]["name"].get<std::string>(), side.name);
  }
  if (name == "process_sort_index") event["args"]["sort_index"] = event["pid"];
  return event;
}

}  // namespace

std::string merged_trace(const std::filesystem::path& predicted, const std::filesystem::path& measured,
                         const std::optional<std::uint64_t>& step)
{
  std::array<Side, 2> sides = {{{"predicted", read_trace(predicted), {}}, {"measured", read_trace(measured), {}}}};
  const auto times = step_times_of(sides[0].trace, sides[1].trace);
  const std::size_t most_steps = std::max(times[0].size(), times[1].size());
  if (step && *step >= most_steps) {
    throw InputError("--step", fmt::format("{}; the traces have steps 0 to {}", *step, most_steps - 1));
  }
  const Seconds predicted_begin = begin_of_step(times[0], step);
  const Seconds measured_begin = begin_of_step(times[1], step);
  const Seconds latest = std::max(predicted_begin, measured_begin);
  sides[0].shift = latest - predicted_begin;
  sides[1].shift = latest - measured_begin;

  std::string text = R"({"displayTimeUnit":"ms","otherData":{"schema":"isobar-merged-trace/1"},"traceEvents":[)";
  const char* separator = "\n";
  for (std::size_t which = 0; which < sides.size(); ++which) {
    const Json trace = Json::parse(read_unpacked(sides[which].trace.name));
    for (const auto& event : trace.at("traceEvents")) {
      text += separator + json_line(merged(event, which, sides[which]));
      separator = ",\n";
    }
  }
  return text + "\n]}\n";
}

}  // namespace isobar::results
