#include "results/trace/trace_merge.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
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

/// One of the two.
struct Side {
  const char* name;
  TraceFile trace;
  Seconds shift;  ///< onto the clock of the merged trace
};

Seconds begin_of_step(const std::vector<Seconds>& times, const std::optional<std::uint64_t>& step)
{
  const std::uint64_t chosen = step ? std::min<std::uint64_t>(*step, times.size() - 1) : typical_step(times);
  Seconds begin;
  for (std::uint64_t i = 0; i < chosen; ++i) begin += times[i];
  return begin;
}

/// Of each, in the order of the arguments. @throws InputError where the two are not of the same plan.
std::array<std::vector<Seconds>, 2> step_times_of(const TraceFile& predicted, const TraceFile& measured)
{
  if (predicted.devices != measured.devices) {
    throw InputError(measured.name, "has other devices than " + predicted.name + "; two traces of one plan are needed");
  }
  const auto program = recorded_program(predicted);
  return {Timeline::of(predicted, *program).step_times(), Timeline::of(measured, *program).step_times()};
}

/// Whole tenths of nanoseconds, as traces have them.
double microseconds(double shifted)
{
  constexpr double ticks = 1e4;
  return std::round(shifted * ticks) / ticks;
}

/// An event of one side as it stands in the merged trace.
Json merged(Json event, std::size_t which, const Side& side)
{
  event["pid"] = 2 * event["pid"].get<std::uint64_t>() + which;
  if (event.contains("ts")) event["ts"] = microseconds(event["ts"].get<double>() + 1e6 * side.shift.value);
  if (event.contains("id")) event["id"] = 2 * event["id"].get<std::uint64_t>() + which;
  if (event["name"] == "process_name") {
    event["args"]["name"] = fmt::format("{} ({})", event["args"]["name"].get<std::string>(), side.name);
  }
  if (event["name"] == "process_sort_index") event["args"]["sort_index"] = event["pid"];
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
  const Seconds of_predicted = begin_of_step(times[0], step);
  const Seconds of_measured = begin_of_step(times[1], step);
  const Seconds latest = std::max(of_predicted, of_measured);
  sides[0].shift = latest - of_predicted;
  sides[1].shift = latest - of_measured;

  std::string text = R"({"displayTimeUnit":"ms","otherData":{"schema":"isobar-merged-trace/1"},"traceEvents":[)";
  const char* separator = "\n";
  for (std::size_t which = 0; which < sides.size(); ++which) {
    const Json trace = Json::parse(read_file(sides[which].trace.name));
    for (const auto& event : trace.at("traceEvents")) {
      text +=
          separator + merged(event, which, sides[which]).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      separator = ",\n";
    }
  }
  return text + "\n]}\n";
}

}  // namespace isobar::results
