#include "results/trace/trace_stats.hpp"

#include "core/errors.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"
#include "results/trace/intervals.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace isobar::results {

namespace {

/// Parts of a step that are shorter, as fractions of it, are rounding.
constexpr double rounding = 1e-12;

/// The steps that count.
struct Window {
  std::uint64_t first = 0;
  std::uint64_t steps = 0;
  Interval time;
};

Window window_of(const Timeline& timeline)
{
  const auto times = timeline.step_times();
  Window window;
  window.first = times.size() > 1 ? 1 : 0;
  window.steps = times.size() - window.first;
  for (std::size_t step = 0; step < times.size(); ++step) {
    if (step < window.first) window.time.begin += times[step];
    window.time.end += times[step];
  }
  return window;
}

bool is_of_machine(Engine engine)
{
  return engine != Engine::Device && engine != Engine::Network;
}

/// One rank's moments within the window.
class RankMoments {
 public:
  RankMoments(const Timeline& timeline, std::size_t rank, const Window& window)
      : timeline_(timeline), program_(timeline.program()), rank_(rank), window_(window)
  {
    const Intervals whole({window.time});
    std::vector<Interval> compute;
    std::vector<Interval> transfers;
    for (std::size_t i = 0; i < program_.lanes(rank).size(); ++i) {
      const auto lane = static_cast<LaneId>(i);
      std::vector<Interval> all;
      for_each(lane, [&](const Instruction& instruction, std::uint64_t step, std::uint64_t position) {
        const auto span = timeline_.work(rank_, lane, step, position);
        all.push_back({span.begin, span.end});
        if (is_on_device(instruction)) compute.push_back(all.back());
        if (program_.lanes(rank_)[lane].channel) transfers.push_back(all.back());
      });
      lanes_.push_back(Intervals(std::move(all)) & whole);
    }
    busy_ = Intervals(std::move(compute)) & whole;
    communication_ = Intervals(std::move(transfers)) & whole;
  }

  bool has_compute() const { return program_.length(rank_, compute_lane) > 0; }
  const Intervals& busy() const { return busy_; }
  const Intervals& communication() const { return communication_; }

  /// Times of the lanes with instructions, over the whole window.
  std::vector<DeviceTimes::Lane> lanes() const
  {
    std::vector<DeviceTimes::Lane> times;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (program_.length(rank_, static_cast<LaneId>(i)) == 0) continue;
      const Lane& lane = program_.lanes(rank_)[i];
      times.push_back({lane.name, lanes_[i].length(), is_of_machine(lane.engine)});
    }
    return times;
  }

  /// Moments when the next instruction of the compute lane could not begin because of a transfer or a collective in
  /// progress.
  Intervals waiting_for_link() const
  {
    std::map<LaneId, std::vector<Interval>> gaps_of;
    Seconds before = window_.time.begin;
    for_each(compute_lane, [&](const Instruction& instruction, std::uint64_t step, std::uint64_t position) {
      const auto span = timeline_.at(rank_, compute_lane, step, position);
      for (const Wait& wait : instruction.waits) {
        if (program_.lanes(rank_)[wait.lane].channel) gaps_of[wait.lane].push_back({before, span.begin});
      }
      before = span.end;
    });
    std::vector<Interval> waits;
    for (auto& [lane, gaps] : gaps_of) {
      const Intervals under_way = Intervals(std::move(gaps)) & lanes_[lane];
      waits.insert(waits.end(), under_way.intervals().begin(), under_way.intervals().end());
    }
    return Intervals(std::move(waits)) - busy_;
  }

  /// Moments when its machine copies, updates or uses its disk.
  Intervals machine() const
  {
    std::vector<Interval> all;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (!is_of_machine(program_.lanes(rank_)[i].engine)) continue;
      all.insert(all.end(), lanes_[i].intervals().begin(), lanes_[i].intervals().end());
    }
    return Intervals(std::move(all));
  }

 private:
  template <typename Visit>
  void for_each(LaneId lane, Visit visit) const
  {
    for (std::uint64_t step = window_.first; step < window_.first + window_.steps; ++step) {
      for (std::uint64_t position = 0; position < program_.length(rank_, lane); ++position) {
        visit(program_.at(rank_, lane, position), step, position);
      }
    }
  }

  const Timeline& timeline_;
  const Program& program_;
  std::size_t rank_;
  Window window_;
  std::vector<Intervals> lanes_;
  Intervals busy_;
  Intervals communication_;
};

std::vector<DeviceTimes> device_times(const Timeline& timeline, const std::vector<std::string>& devices,
                                      const Window& window)
{
  const auto steps = static_cast<double>(window.steps);
  std::vector<DeviceTimes> times;
  Seconds most_busy;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const RankMoments moments(timeline, rank, window);
    DeviceTimes of_device;
    of_device.device = devices[rank];
    of_device.busy = moments.busy().length() / steps;
    of_device.communication = moments.communication().length() / steps;
    of_device.hidden = (moments.communication() & moments.busy()).length() / steps;
    for (auto lane : moments.lanes()) {
      lane.busy = lane.busy / steps;
      of_device.lanes.push_back(std::move(lane));
    }
    if (moments.has_compute()) {
      const Intervals link = moments.waiting_for_link();
      const Intervals machine = moments.machine() - moments.busy() - link;
      of_device.idle = {{link.length() / steps, machine.length() / steps, {}, {}}};
    }
    most_busy = std::max(most_busy, of_device.busy);
    times.push_back(std::move(of_device));
  }
  const Seconds step_time = (window.time.end - window.time.begin) / steps;
  for (auto& of_device : times) {
    if (!of_device.idle) continue;
    auto& idle = *of_device.idle;
    Seconds rest = step_time - of_device.busy - idle.link - idle.machine;
    if (rest < rounding * step_time) rest = Seconds(0);
    idle.straggler = std::min(rest, most_busy - of_device.busy);
    idle.bubble = rest - idle.straggler;
  }
  return times;
}

/// How long the lanes of machines are busy, a column for each that any device has; "" without any.
std::string machine_table(const std::vector<DeviceTimes>& devices)
{
  std::vector<std::string> header = {"device"};
  for (const auto& of_device : devices) {
    for (const auto& lane : of_device.lanes) {
      if (lane.is_of_machine && std::find(header.begin(), header.end(), lane.name) == header.end()) {
        header.push_back(lane.name);
      }
    }
  }
  if (header.size() == 1) return "";
  std::vector<std::vector<std::string>> rows;
  for (const auto& of_device : devices) {
    auto& row = rows.emplace_back(header.size(), "–");
    row.front() = shown(of_device.device);
    for (const auto& lane : of_device.lanes) {
      const auto column = std::find(header.begin() + 1, header.end(), lane.name);
      if (column != header.end()) row[static_cast<std::size_t>(column - header.begin())] = text_of(lane.busy);
    }
  }
  return table_of(header, rows) + "\n";
}

}  // namespace

TraceStats stats_of(const Timeline& timeline, const std::vector<std::string>& devices)
{
  const Window window = window_of(timeline);
  TraceStats stats;
  stats.steps = window.steps;
  stats.step_time = (window.time.end - window.time.begin) / static_cast<double>(window.steps);
  stats.devices = device_times(timeline, devices, window);
  stats.typical_step = typical_step(timeline.step_times());
  stats.critical_devices = critical_path(timeline, stats.typical_step);
  std::map<Opcode, Seconds> by_kind;
  Seconds total;
  for (const auto& share : stats.critical_devices) {
    by_kind[share.opcode] += share.time;
    total += share.time;
  }
  for (const auto& [opcode, time] : by_kind) {
    stats.critical_path.push_back({opcode, time, total > Seconds(0) ? time / total : 0});
  }
  std::stable_sort(stats.critical_path.begin(), stats.critical_path.end(),
                   [](const KindShare& a, const KindShare& b) { return a.time > b.time; });
  return stats;
}

std::string stats_to_json(const TraceStats& stats)
{
  using Json = nlohmann::ordered_json;
  Json devices = Json::array();
  for (const auto& of_device : stats.devices) {
    Json device = {{"device", of_device.device},
                   {"busy_s", of_device.busy.value},
                   {"communication_s", of_device.communication.value},
                   {"communication_hidden_s", of_device.hidden.value},
                   {"communication_exposed_s", (of_device.communication - of_device.hidden).value},
                   {"idle_s", nullptr}};
    if (of_device.idle) {
      device["idle_s"] = of_device.idle->total().value;
      device["idle_link_s"] = of_device.idle->link.value;
      device["idle_machine_s"] = of_device.idle->machine.value;
      device["idle_straggler_s"] = of_device.idle->straggler.value;
      device["idle_bubble_s"] = of_device.idle->bubble.value;
    }
    device["lanes"] = Json::array();
    for (const auto& lane : of_device.lanes) {
      device["lanes"].push_back({{"lane", lane.name}, {"busy_s", lane.busy.value}});
    }
    devices.push_back(std::move(device));
  }
  Json kinds = Json::array();
  for (const auto& share : stats.critical_path) {
    kinds.push_back({{"opcode", name_of(share.opcode)}, {"time_s", share.time.value}, {"fraction", share.fraction}});
  }
  Json path = Json::array();
  for (const auto& share : stats.critical_devices) {
    Json of_device = {{"device", stats.devices[share.rank].device}, {"opcode", name_of(share.opcode)}};
    if (share.opcode == Opcode::Send) of_device["peer"] = stats.devices[share.peer].device;
    of_device["time_s"] = share.time.value;
    path.push_back(std::move(of_device));
  }
  const Json document = {{"schema", "isobar-trace-stats/1"},     {"steps", stats.steps},
                         {"step_time_s", stats.step_time.value}, {"devices", std::move(devices)},
                         {"critical_step", stats.typical_step},  {"critical_path_by_kind", std::move(kinds)},
                         {"critical_path", std::move(path)}};
  return json_lines(document);
}

std::string stats_to_text(const TraceStats& stats)
{
  const std::string machines = machine_table(stats.devices);
  std::vector<std::string> cause_header = {"device", "idle", "for link", "straggler", "bubble"};
  if (!machines.empty()) cause_header.insert(cause_header.begin() + 3, "for machine");
  std::vector<std::vector<std::string>> uses;
  std::vector<std::vector<std::string>> causes;
  for (const auto& of_device : stats.devices) {
    uses.push_back({shown(of_device.device), text_of(of_device.busy), text_of(of_device.communication),
                    text_of(of_device.hidden), text_of(of_device.communication - of_device.hidden)});
    causes.push_back({shown(of_device.device)});
    if (of_device.idle) {
      const auto& idle = *of_device.idle;
      for (const Seconds time : {idle.total(), idle.link, idle.machine, idle.straggler, idle.bubble}) {
        causes.back().push_back(text_of(time));
      }
      if (machines.empty()) causes.back().erase(causes.back().begin() + 3);
    } else {
      causes.back().insert(causes.back().end(), cause_header.size() - 1, "–");
    }
  }
  std::string text = fmt::format("mean of {} {}: {}\n\n{}\n{}{}\ncritical path of step {}:", stats.steps,
                                 stats.steps == 1 ? "step" : "steps", text_of(stats.step_time),
                                 table_of({"device", "busy", "communication", "hidden", "exposed"}, uses), machines,
                                 table_of(cause_header, causes), stats.typical_step);
  const char* separator = " ";
  for (const auto& share : stats.critical_path) {
    text +=
        fmt::format("{}{} {:.1f} % ({})", separator, name_of(share.opcode), 100 * share.fraction, text_of(share.time));
    separator = ", ";
  }
  return text + "\n";
}

}  // namespace isobar::results
