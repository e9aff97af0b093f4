#include "results/trace/validation.hpp"

#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace isobar::results {

namespace {

/// Kind of an instruction; instructions of one kind are compared together. The peer is that of a Send; the stage and
/// the payload are none where they follow from the rest.
using Kind = std::tuple<std::size_t, Opcode, std::size_t, std::optional<std::uint32_t>, std::optional<Payload>>;

/// Index of the first step that counts: the second one, or the only one.
std::uint64_t first_that_counts(const Timeline& timeline)
{
  return timeline.steps() > 1 ? 1 : 0;
}

/// Calls `visit` with lane, position and instruction of everything that a rank does in a step.
template <typename Visit>
void for_each_instruction(const Program& program, std::size_t rank, Visit visit)
{
  for (std::size_t i = 0; i < program.lanes(rank).size(); ++i) {
    const auto lane = static_cast<LaneId>(i);
    for (std::uint64_t position = 0; position < program.length(rank, lane); ++position) {
      visit(lane, position, program.at(rank, lane, position));
    }
  }
}

bool has_several_stages(const Program& program, std::size_t rank)
{
  std::set<std::uint32_t> stages;
  for_each_instruction(program, rank, [&](LaneId, std::uint64_t, const Instruction& instruction) {
    if (is_computation(instruction.opcode)) stages.insert(instruction.stage);
  });
  return stages.size() > 1;
}

Kind kind_of(const Program& program, std::size_t rank, const Instruction& instruction, bool is_one_of_several_stages)
{
  Kind kind{rank, instruction.opcode, 0, std::nullopt, std::nullopt};
  const bool sends = instruction.opcode == Opcode::Send;
  if (sends) {
    const Channel& channel = program.channels()[program.lanes(rank)[instruction.lane].channel.value()];
    std::get<2>(kind) = other_end(channel, rank, instruction.lane).rank;
  }
  const bool has_stage = is_computation(instruction.opcode) || instruction.payload != Payload::GradientFacts;
  if (is_one_of_several_stages && has_stage) std::get<3>(kind) = instruction.stage;
  if (is_one_of_several_stages && sends) std::get<4>(kind) = instruction.payload;
  return kind;
}

std::map<Kind, Seconds> median_durations(const Timeline& timeline)
{
  const Program& program = timeline.program();
  std::map<Kind, std::vector<Seconds>> durations;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    const bool several_stages = has_several_stages(program, rank);
    for_each_instruction(program, rank, [&](LaneId lane, std::uint64_t position, const Instruction& instruction) {
      if (instruction.opcode == Opcode::Recv) return;
      auto& of_kind = durations[kind_of(program, rank, instruction, several_stages)];
      for (std::uint64_t step = first_that_counts(timeline); step < timeline.steps(); ++step) {
        const auto work = timeline.work(rank, lane, step, position);
        of_kind.push_back(work.end - work.begin);
      }
    });
  }
  std::map<Kind, Seconds> medians;
  for (auto& [kind, values] : durations) medians[kind] = median_of(std::move(values));
  return medians;
}

/// Median over steps of the time that the rank computes per step.
Seconds compute_time(const Timeline& timeline, std::size_t rank)
{
  std::vector<Seconds> by_step;
  for (std::uint64_t step = first_that_counts(timeline); step < timeline.steps(); ++step) {
    Seconds sum;
    for_each_instruction(timeline.program(), rank,
                         [&](LaneId lane, std::uint64_t position, const Instruction& instruction) {
                           if (!is_on_device(instruction)) return;
                           const auto work = timeline.work(rank, lane, step, position);
                           sum += work.end - work.begin;
                         });
    by_step.push_back(sum);
  }
  return median_of(by_step);
}

std::vector<PathValidation> path_of(const Timeline& timeline, std::uint64_t step,
                                    const std::vector<std::string>& devices)
{
  std::vector<PathValidation> path;
  for (const auto& share : critical_path(timeline, step)) {
    const auto name = name_of(share.opcode);
    path.push_back({share.opcode == Opcode::Send
                        ? fmt::format("{} from {} to {}", name, devices[share.rank], devices[share.peer])
                        : fmt::format("{} on {}", name, devices[share.rank]),
                    share.time});
  }
  return path;
}

std::uint64_t step_with_median_time(const Timeline& timeline)
{
  const auto times = timeline.step_times();
  const Seconds median = median_of(steps_that_count(times));
  const auto begin = times.begin() + static_cast<std::ptrdiff_t>(first_that_counts(timeline));
  return static_cast<std::uint64_t>(std::find(begin, times.end(), median) - times.begin());
}

nlohmann::ordered_json number_or_null(double number)
{
  return std::isfinite(number) ? nlohmann::ordered_json(number) : nlohmann::ordered_json(nullptr);
}

template <typename Quantity>
void add_pair(nlohmann::ordered_json& object, const std::string& name, const std::string& unit,
              const Pair<Quantity>& pair)
{
  object["predicted_" + name + "_" + unit] = pair.predicted.value;
  object["measured_" + name + "_" + unit] = pair.measured.value;
  object[name + "_error_fraction"] = number_or_null(pair.error_fraction());
}

nlohmann::ordered_json json_of(const std::vector<PathValidation>& path)
{
  auto json = nlohmann::ordered_json::array();
  for (const auto& share : path) json.push_back({{"what", share.what}, {"time_s", share.time.value}});
  return json;
}

template <typename Quantity>
std::vector<std::string> cells_of(const Pair<Quantity>& pair)
{
  const double error = pair.error_fraction();
  return {isobar::text_of(pair.predicted), isobar::text_of(pair.measured),
          std::isfinite(error) ? fmt::format("{:+.1f} %", 100 * error) : "–"};
}

std::vector<std::string> joined(std::vector<std::string> cells, const std::vector<std::string>& more)
{
  cells.insert(cells.end(), more.begin(), more.end());
  return cells;
}

/// "Forward", "Send activation, stage 2".
std::string text_of_kind(const InstructionValidation& kind)
{
  std::string text(name_of(kind.opcode));
  if (kind.payload) text += fmt::format(" {}", name_of(*kind.payload));
  if (kind.stage) text += fmt::format(", stage {}", *kind.stage);
  return text;
}

std::string text_of_path(const char* title, const std::vector<PathValidation>& path)
{
  constexpr std::size_t most = 6;
  Seconds total;
  for (const auto& share : path) total += share.time;
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(most, path.size()); ++i) {
    rows.push_back(
        {path[i].what, isobar::text_of(path[i].time), fmt::format("{:.1f} %", 100 * path[i].time.value / total.value)});
  }
  return results::table_of({title, "time", "share"}, rows);
}

}  // namespace

Validation validate(const Timeline& predicted, const Timeline& measured, const std::string& allocator,
                    const std::vector<std::string>& devices, const std::vector<Pair<Bytes>>& peak_memory)
{
  Validation validation;
  validation.allocator = allocator;
  validation.step_time = {median_of(steps_that_count(predicted.step_times())),
                          median_of(steps_that_count(measured.step_times()))};
  for (std::size_t rank = 0; rank < peak_memory.size(); ++rank) {
    validation.stages.push_back(
        {devices[rank], {compute_time(predicted, rank), compute_time(measured, rank)}, peak_memory[rank]});
  }
  const auto predicted_durations = median_durations(predicted);
  for (const auto& [kind, duration] : median_durations(measured)) {
    const auto& [rank, opcode, peer, stage, payload] = kind;
    validation.instructions.push_back({devices[rank],
                                       opcode,
                                       opcode == Opcode::Send ? devices[peer] : "",
                                       stage,
                                       payload,
                                       {predicted_durations.at(kind), duration}});
  }
  validation.predicted_path = path_of(predicted, predicted.steps() - 1, devices);
  validation.measured_path = path_of(measured, step_with_median_time(measured), devices);
  return validation;
}

std::string validation_to_json(const Validation& validation, double tolerance)
{
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", "isobar-validation/1"}, {"allocator", validation.allocator}};
  add_pair(json, "step_time", "s", validation.step_time);
  json["tolerance_fraction"] = tolerance;
  json["within_tolerance"] = std::abs(validation.step_time.error_fraction()) <= tolerance;
  json["stages"] = Json::array();
  for (const auto& stage : validation.stages) {
    Json object = {{"device", stage.device}};
    add_pair(object, "compute", "s", stage.compute);
    add_pair(object, "peak_memory", "bytes", stage.peak_memory);
    json["stages"].push_back(std::move(object));
  }
  json["instructions"] = Json::array();
  for (const auto& kind : validation.instructions) {
    Json object = {{"device", kind.device}, {"opcode", name_of(kind.opcode)}};
    if (!kind.peer.empty()) object["peer"] = kind.peer;
    if (kind.stage) object["stage"] = *kind.stage;
    if (kind.payload) object["payload"] = name_of(*kind.payload);
    add_pair(object, "duration", "s", kind.duration);
    json["instructions"].push_back(std::move(object));
  }
  json["predicted_critical_path"] = json_of(validation.predicted_path);
  json["measured_critical_path"] = json_of(validation.measured_path);
  return json_lines(json);
}

std::string text_of(const Validation& validation)
{
  std::vector<std::vector<std::string>> stages;
  for (const auto& stage : validation.stages) {
    stages.push_back(joined(joined({stage.device}, cells_of(stage.compute)), cells_of(stage.peak_memory)));
  }
  std::vector<std::vector<std::string>> instructions;
  for (const auto& kind : validation.instructions) {
    instructions.push_back(
        joined({kind.peer.empty() ? kind.device : kind.device + " to " + kind.peer, text_of_kind(kind)},
               cells_of(kind.duration)));
  }
  return fmt::format("step {:.4g} s predicted, {:.4g} s measured: {:+.1f} %\n\n{}\n{}\n{}\n{}",
                     validation.step_time.predicted.value, validation.step_time.measured.value,
                     100 * validation.step_time.error_fraction(),
                     table_of({"device", "compute", "measured", "error", "peak memory", "measured", "error"}, stages),
                     table_of({"device", "instruction", "predicted", "measured", "error"}, instructions, 2),
                     text_of_path("predicted critical path", validation.predicted_path),
                     text_of_path("measured critical path", validation.measured_path));
}

}  // namespace isobar::results
