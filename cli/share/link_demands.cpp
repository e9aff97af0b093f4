#include "cli/share/link_demands.hpp"

#include "core/base/child_process.hpp"
#include "core/compute/as_trained.hpp"
#include "core/program/trace.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/play/simulation.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

namespace isobar::cli {

namespace {

using SortedJson = nlohmann::json;

constexpr std::uint64_t played_steps = 3;
constexpr double ticks_of_a_step = 1000;

/// Keeps when each link carries data.
class LinkMeter : public TraceSink {
 public:
  void record(const TraceEvent&) override {}
  void link_changed(const std::string& link, Seconds time, std::size_t transfers) override
  {
    auto& spans = spans_[link];
    const bool is_busy = !spans.empty() && spans.back().second < 0;
    if (transfers > 0 && !is_busy) spans.emplace_back(time.value, -1);
    if (transfers == 0 && is_busy) spans.back().second = time.value;
  }
  const std::map<std::string, std::vector<std::pair<double, double>>>& spans() const { return spans_; }

 private:
  std::map<std::string, std::vector<std::pair<double, double>>> spans_;  // an open one ends at -1
};

/// The last step of a job alone: its time, and the spans in which links carry its data, from the step's begin.
std::string demand_of(const MixInputs& inputs, const MixJobInputs& job)
{
  const compute::AsTrained trained(job.plan, job.workload, inputs.platform.cluster());
  const auto program = schedules::make_program(job.plan, trained.workload(), trained.cluster());
  LinkMeter meter;
  const auto report =
      sim::simulate(inputs.platform, *program, sim::rank_hosts(job.plan, trained.cluster()), played_steps, &meter);
  const double period = report.step_times.back().value;
  const double end = std::accumulate(report.step_times.begin(), report.step_times.end(), Seconds(0)).value;
  SortedJson links = SortedJson::object();
  for (const auto& [link, spans] : meter.spans()) {
    for (const auto& [begin, until] : spans) {
      const double from = std::max(begin, end - period) - (end - period);
      const double to = (until < 0 ? end : until) - (end - period);
      if (to > from) links[link].push_back({from, to});
    }
  }
  return SortedJson{{"period", period}, {"links", links}}.dump();
}

}  // namespace

LinkDemands link_demands(const MixInputs& inputs, std::size_t parallel)
{
  std::vector<std::function<std::string()>> work;
  for (const auto& job : inputs.jobs) work.emplace_back([&inputs, &job] { return demand_of(inputs, job); });
  constexpr Seconds no_limit(1e9);
  std::vector<SortedJson> demands;
  for (const auto& result : run_in_children(work, parallel, no_limit)) {
    demands.push_back(SortedJson::parse(result.output_or_throw()));
  }

  LinkDemands found;
  std::map<std::string, std::size_t> users;
  double shortest = demands.front()["period"].get<double>();
  for (const auto& demand : demands) {
    shortest = std::min(shortest, demand["period"].get<double>());
    for (const auto& [link, spans] : demand["links"].items()) ++users[link];
  }
  for (const auto& [link, count] : users) {
    if (count > 1) found.links.push_back(link);
  }
  found.tick = Seconds(shortest / ticks_of_a_step);
  const auto ticks = [&](double seconds) {
    return static_cast<allocators::Ticks>(std::llround(seconds / found.tick.value));
  };
  for (const auto& demand : demands) {
    allocators::PeriodicJob job;
    job.period = ticks(demand["period"].get<double>());
    for (std::size_t link = 0; link < found.links.size(); ++link) {
      const auto spans = demand["links"].find(found.links[link]);
      if (spans == demand["links"].end()) continue;
      for (const auto& span : *spans) {
        const auto begin = ticks(span[0].get<double>());
        const auto end = std::min(ticks(span[1].get<double>()), job.period);
        if (begin >= end) continue;
        const bool continues = !job.pieces.empty() && job.pieces.back().link == link && job.pieces.back().end == begin;
        if (continues) {
          job.pieces.back().end = end;
        } else {
          job.pieces.push_back({link, begin, end, 1});
        }
      }
    }
    found.jobs.push_back(std::move(job));
  }
  return found;
}

}  // namespace isobar::cli
