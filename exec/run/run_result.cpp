#include "exec/run/run_result.hpp"

#include "core/base/clock.hpp"
#include "core/program/chrome_trace.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/launch/plan_ranks.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

/// Median of the steps after the first, in which memory is allocated that later steps reuse.
Seconds typical_step(std::vector<Seconds> times)
{
  if (times.size() > 1) times.erase(times.begin());
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// The predicted peak of a tier of the machine; none without one, or with several devices, whose machine may be the
/// same.
std::optional<Bytes> predicted_on_machine(const Plan& plan, Tier tier)
{
  const auto devices = devices_of(plan);
  if (!plan.predicted || devices.size() > 1) return std::nullopt;
  for (const auto& [name, peak] : plan.predicted->peak_memory) {
    const bool is_disk = name.find('/') != std::string::npos;  // "node0/nvme0"
    if (name != devices.front() && is_disk == (tier == Tier::Disk)) return peak;
  }
  return std::nullopt;
}

/// What the stamp has of a device; none without a stamp, and for a device that is not in it.
std::optional<Bytes> simulated_peak(const Plan& plan, const std::string& device)
{
  if (!plan.stamp) return std::nullopt;
  const auto found = plan.stamp->peak_memory.find(device);
  return found == plan.stamp->peak_memory.end() ? std::nullopt : std::optional(found->second);
}

/// The result of the stages' shards, each with the peak memory and the waits of its rank.
nlohmann::ordered_json stages_of(const Plan& plan, const MeasuredRun& measured, bool is_timed)
{
  using OrderedJson = nlohmann::ordered_json;
  OrderedJson stages = OrderedJson::array();
  for (const auto& placed : placed_shards(plan)) {
    const RankReport& report = measured.ranks()[placed.rank];
    const std::string& device = shard_of(plan, placed).device;
    const auto compute = [&] { return typical_step(measured.compute_times(placed.rank, placed.stage)).value; };
    OrderedJson& stage = stages.emplace_back(OrderedJson{
        {"device", device},
        {"compute_s", is_timed ? OrderedJson(compute()) : OrderedJson(nullptr)},
        {"peak_memory_bytes", report.peak_of(Tier::Device).value},
        {"processor_wait_fraction", is_timed ? OrderedJson(report.processor_wait_fraction) : OrderedJson(nullptr)}});
    if (const auto simulated = simulated_peak(plan, device)) stage["simulated_peak_memory_bytes"] = simulated->value;
    for (const Tier tier : {Tier::Host, Tier::Disk}) {
      if (report.peak_of(tier) == Bytes(0)) continue;
      const std::string key = fmt::format("{}_peak_memory_bytes", name_of(tier));
      stage[key] = report.peak_of(tier).value;
      if (const auto predicted = predicted_on_machine(plan, tier)) stage["predicted_" + key] = predicted->value;
    }
  }
  return stages;
}

/// Means over all labels, with the usual derived metrics; null without an evaluation.
nlohmann::ordered_json evaluation_of(const MeasuredRun& measured)
{
  const auto sums = measured.evaluation();
  if (!sums) return nullptr;
  const double loss = sums->loss / sums->labels;
  return {{"labels", static_cast<std::uint64_t>(sums->labels)},
          {"loss", loss},
          {"perplexity", std::exp(loss)},
          {"accuracy_fraction", sums->correct / sums->labels}};
}

/// Times are null when nothing was left to train.
nlohmann::ordered_json json_of(const Plan& plan, const MeasuredRun& measured, double samples)
{
  using OrderedJson = nlohmann::ordered_json;
  const auto step_times = measured.step_times();
  const bool is_timed = !step_times.empty();
  const double typical = is_timed ? typical_step(step_times).value : 0;
  OrderedJson result = {
      {"schema", "isobar-run/1"},
      {"step_time_s", is_timed ? OrderedJson(typical) : OrderedJson(nullptr)},
      {"simulated_step_time_s", plan.stamp ? OrderedJson(plan.stamp->step_time.value) : OrderedJson(nullptr)},
      {"samples_per_s", is_timed ? OrderedJson(samples / typical) : OrderedJson(nullptr)},
      {"first_step", measured.first_step()},
      {"step_times_s", OrderedJson::array()},
      {"losses", measured.losses()},
      {"evaluation", evaluation_of(measured)},
      {"stages", stages_of(plan, measured, is_timed)}};
  for (const Seconds time : step_times) result["step_times_s"].push_back(time.value);
  if (updates_late(plan)) result["updates_late"] = true;
  return result;
}

/// The time that each rank computes in a typical step.
std::vector<Seconds> compute_of_ranks(const Plan& plan, const MeasuredRun& measured)
{
  std::vector<std::vector<Seconds>> of_steps(devices_of(plan).size());
  for (const auto& placed : placed_shards(plan)) {
    const auto times = measured.compute_times(placed.rank, placed.stage);
    auto& sums = of_steps[placed.rank];
    sums.resize(times.size());
    std::transform(sums.begin(), sums.end(), times.begin(), sums.begin(), std::plus());
  }
  std::vector<Seconds> typical;
  for (auto& times : of_steps) typical.push_back(typical_step(std::move(times)));
  return typical;
}

std::string summary_of(const Plan& plan, const MeasuredRun& measured, const nlohmann::ordered_json& result)
{
  std::string text;
  const bool is_timed = !result["step_time_s"].is_null();
  const double step = is_timed ? result["step_time_s"].get<double>() : 0;
  if (!is_timed) {
    text = "\nnothing was left to train\n\n";
  } else if (result["simulated_step_time_s"].is_null()) {
    text = fmt::format("\nstep {:.4g} s (median after the first), {:.4g} samples/s; not simulated before\n\n", step,
                       result["samples_per_s"].get<double>());
  } else {
    const double simulated = result["simulated_step_time_s"];
    text = fmt::format("\nstep {:.4g} s (median after the first), {:.4g} samples/s; simulated {:.4g} s ({:+.1f} %)\n\n",
                       step, result["samples_per_s"].get<double>(), simulated, 100 * (simulated / step - 1));
  }
  if (const auto& evaluation = result["evaluation"]; !evaluation.is_null()) {
    text += fmt::format("evaluation: loss {:.6g}, accuracy {:.2f} %, perplexity {:.6g}, of {} labels\n\n",
                        evaluation["loss"].get<double>(), 100 * evaluation["accuracy_fraction"].get<double>(),
                        evaluation["perplexity"].get<double>(), evaluation["labels"].get<std::uint64_t>());
  }
  if (updates_late(plan))
    text += "updates were a step late (overlap delayed), so losses are not those of other plans\n\n";
  if (!is_timed) return text;
  text += fmt::format("{:<16}  {:>9}  {:>11}  {:>9}\n", "device", "compute s", "peak memory", "simulated");
  const auto devices = devices_of(plan);
  const auto compute = compute_of_ranks(plan, measured);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const auto simulated = simulated_peak(plan, devices[rank]);
    text += fmt::format("{:<16}  {:>9.4g}  {:>11}  {:>9}\n", devices[rank], compute[rank].value,
                        text_of(measured.ranks()[rank].peak_of(Tier::Device)), simulated ? text_of(*simulated) : "–");
    for (const Tier tier : {Tier::Host, Tier::Disk}) {
      const Bytes peak = measured.ranks()[rank].peak_of(tier);
      if (peak == Bytes(0)) continue;
      const auto predicted = predicted_on_machine(plan, tier);
      text += fmt::format("{:<16}  {:>9}  {:>11}  {:>9}\n", tier == Tier::Host ? "  its machine" : "  its disk", "",
                          text_of(peak), predicted ? text_of(*predicted) : "–");
    }
  }
  return text;
}

/// Notes the rank that waited longest for a processor, except the data server.
std::string note_of(const Plan& plan, const MeasuredRun& measured)
{
  const auto shorter = [](const RankReport& one, const RankReport& other) {
    return one.processor_wait_fraction < other.processor_wait_fraction;
  };
  const auto& ranks = measured.ranks();
  const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(devices_of(plan).size());
  const auto longest = std::max_element(ranks.begin(), end, shorter);
  return note_of_busy_machine(names_of_ranks(plan).at(static_cast<std::size_t>(longest - ranks.begin())),
                              longest->processor_wait_fraction);
}

}  // namespace

bool updates_late(const Plan& plan)
{
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const Stage& stage) {
    return stage.residence.optimizer != Tier::Device && stage.residence.overlap == UpdateOverlap::Delayed;
  });
}

RunResult result_of(const Plan& plan, const MeasuredRun& measured, double samples)
{
  const auto result = json_of(plan, measured, samples);
  return {result.dump(2) + "\n", summary_of(plan, measured, result), note_of(plan, measured)};
}

std::string trace_of(const Plan& plan, const Program& program, const MeasuredRun& measured)
{
  const auto names = devices_of_ranks(plan);
  std::ostringstream text;
  ChromeTraceWriter writer(text, program, names);
  measured.replay(writer, names);
  writer.finish();
  return text.str();
}

}  // namespace isobar::exec
