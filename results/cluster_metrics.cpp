#include "results/cluster_metrics.hpp"

#include "core/errors.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/json_text.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

namespace isobar::results {

namespace {

constexpr Seconds never(std::numeric_limits<double>::infinity());

/// Work of a job for a machine as fast as the whole cluster.
struct Piece {
  Seconds arrival;
  Seconds size;
};

/// The mean completion time by shortest remaining processing time first, which no other order beats on one machine.
Seconds srpt_mean(const std::vector<Piece>& pieces)
{
  // (what is left, arrival) of the pieces that have arrived
  std::priority_queue<std::pair<double, double>, std::vector<std::pair<double, double>>, std::greater<>> waiting;
  Seconds now;
  Seconds sum;
  std::size_t next = 0;
  while (next < pieces.size() || !waiting.empty()) {
    if (waiting.empty()) now = std::max(now, pieces[next].arrival);
    while (next < pieces.size() && pieces[next].arrival <= now) {
      waiting.emplace(pieces[next].size.value, pieces[next].arrival.value);
      ++next;
    }
    const Seconds event = next < pieces.size() ? pieces[next].arrival : never;
    const auto [left, arrival] = waiting.top();
    waiting.pop();
    if (now + Seconds(left) <= event) {
      now += Seconds(left);
      sum += now - Seconds(arrival);
    } else {
      waiting.emplace(left - (event - now).value, arrival);
      now = event;
    }
  }
  return sum / static_cast<double>(pieces.size());
}

/// The latest, over all times, of the time plus the work that arrives from then on.
Seconds end_of_work(const std::vector<Piece>& pieces)
{
  Seconds end;
  Seconds work;
  for (std::size_t i = pieces.size(); i-- > 0;) {
    work += pieces[i].size;
    end = std::max(end, pieces[i].arrival + work);
  }
  return end;
}

Seconds element_at(const std::vector<Seconds>& sorted, double fraction)
{
  return sorted[static_cast<std::size_t>(fraction * static_cast<double>(sorted.size()))];
}

Seconds mean_of(const std::vector<Seconds>& times)
{
  Seconds sum;
  for (const Seconds time : times) sum += time;
  return sum / static_cast<double>(times.size());
}

Seconds time_alone(const Job& job, double step_factor)
{
  return job.step.alone * step_factor * job.steps;
}

ClusterBounds bounds_of(const std::vector<Job>& jobs, std::size_t devices, double step_factor, bool shares)
{
  std::vector<Seconds> alone;
  ClusterBounds bounds;
  for (const auto& job : jobs) {
    alone.push_back(time_alone(job, step_factor));
    bounds.makespan = std::max(bounds.makespan, job.arrival + alone.back());
  }
  bounds.mean_jct = mean_of(alone);
  const auto bound_by_machine = [&](const std::function<Seconds(const Job&)>& of_step) {
    std::vector<Piece> pieces;
    for (const auto& job : jobs) {
      const double share = static_cast<double>(job.devices) / static_cast<double>(devices);
      pieces.push_back({job.arrival, of_step(job) * (step_factor * job.steps * share)});
    }
    bounds.mean_jct = std::max(bounds.mean_jct, srpt_mean(pieces));
    bounds.makespan = std::max(bounds.makespan, end_of_work(pieces));
  };
  for (std::size_t i = 0; i < step_resources.size(); ++i) {
    bound_by_machine([i](const Job& job) { return job.step.busy[i]; });
  }
  if (!shares) bound_by_machine([](const Job& job) { return job.step.alone; });
  std::sort(alone.begin(), alone.end());
  bounds.p99_jct = element_at(alone, 0.99);
  return bounds;
}

/// For each job, the mean number of jobs in the cluster during its stay, itself included.
std::vector<double> mean_jobs_present(const std::vector<Job>& jobs, const ClusterRun& run)
{
  struct Change {
    Seconds time;
    int by = 0;
  };
  std::vector<Change> changes;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    changes.push_back({jobs[i].arrival, 1});
    changes.push_back({run.jobs[i].end, -1});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.time < b.time; });
  // The integral of the number of jobs over time, at each change.
  std::vector<std::pair<Seconds, Seconds>> integral;
  Seconds sum;
  int count = 0;
  for (const auto& [time, by] : changes) {
    if (!integral.empty()) sum += (time - integral.back().first) * count;
    integral.emplace_back(time, sum);
    count += by;
  }
  const auto until = [&](Seconds time) {
    return std::lower_bound(integral.begin(), integral.end(), time,
                            [](const auto& entry, Seconds wanted) { return entry.first < wanted; })
        ->second;
  };
  std::vector<double> found;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Seconds stay = run.jobs[i].end - jobs[i].arrival;
    found.push_back(stay > Seconds(0) ? (until(run.jobs[i].end) - until(jobs[i].arrival)) / stay : 1);
  }
  return found;
}

}  // namespace

ClusterMetrics cluster_metrics(const std::vector<Job>& jobs, const ClusterRun& run, std::size_t devices,
                               double step_factor, bool shares)
{
  ensure(!jobs.empty() && jobs.size() == run.jobs.size(), "metrics of no job, or of another trace");
  ClusterMetrics metrics;
  const auto count = static_cast<double>(jobs.size());
  const auto jobs_present = mean_jobs_present(jobs, run);
  std::vector<Seconds> times;
  double slowdowns = 0;
  double ratios = 0;
  double speeds = 0;
  double squares = 0;
  Seconds waiting;
  std::array<Seconds, step_resources.size()> busy{};
  metrics.longest_waiting_job = jobs.front().name;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    const JobRun& result = run.jobs[i];
    times.push_back(result.end - job.arrival);
    metrics.makespan = std::max(metrics.makespan, result.end);
    waiting += result.waiting;
    if (result.longest_wait > metrics.longest_wait) {
      metrics.longest_wait = result.longest_wait;
      metrics.longest_waiting_job = job.name;
    }
    const Seconds alone = time_alone(job, step_factor);
    const double slowdown = times.back() / alone;
    slowdowns += slowdown;
    metrics.largest_slowdown = std::max(metrics.largest_slowdown, slowdown);
    const double share = static_cast<double>(devices) / jobs_present[i];  // devices of 1/N of the cluster
    const double ratio = slowdown / std::max(1.0, static_cast<double>(job.devices) / share);
    ratios += ratio;
    metrics.largest_fairness_ratio = i == 0 ? ratio : std::max(metrics.largest_fairness_ratio, ratio);
    speeds += 1 / slowdown;
    squares += 1 / (slowdown * slowdown);
    for (std::size_t resource = 0; resource < busy.size(); ++resource) {
      busy[resource] += job.step.busy[resource] * (step_factor * job.steps * static_cast<double>(job.devices));
    }
  }
  metrics.mean_jct = mean_of(times);
  std::sort(times.begin(), times.end());
  metrics.median_jct = element_at(times, 0.5);
  metrics.p99_jct = element_at(times, 0.99);
  metrics.mean_waiting = waiting / count;
  metrics.mean_slowdown = slowdowns / count;
  metrics.mean_fairness_ratio = ratios / count;
  metrics.jain_index = speeds * speeds / (count * squares);
  const Seconds available = metrics.makespan * static_cast<double>(devices);
  metrics.devices_busy_fraction = run.device_time / available;
  for (std::size_t i = 0; i < busy.size(); ++i) metrics.busy_fraction[i] = busy[i] / available;
  metrics.bounds = bounds_of(jobs, devices, step_factor, shares);
  return metrics;
}

const std::vector<ClusterNumber>& cluster_numbers()
{
  static const std::vector<ClusterNumber> numbers = {{"nodes", true},
                                                     {"devices", true},
                                                     {"jobs", true},
                                                     {"mean_jct_s"},
                                                     {"median_jct_s"},
                                                     {"p99_jct_s"},
                                                     {"makespan_s"},
                                                     {"mean_waiting_s"},
                                                     {"longest_wait_s"},
                                                     {"mean_slowdown"},
                                                     {"largest_slowdown"},
                                                     {"mean_finish_time_fairness"},
                                                     {"largest_finish_time_fairness"},
                                                     {"jain_index"},
                                                     {"devices_busy_fraction"},
                                                     {"input_busy_fraction"},
                                                     {"compute_busy_fraction"},
                                                     {"network_busy_fraction"},
                                                     {"mean_jct_bound_s"},
                                                     {"p99_jct_bound_s"},
                                                     {"makespan_bound_s"},
                                                     {"decisions", true},
                                                     {"starts", true},
                                                     {"shared_starts", true}};
  return numbers;
}

std::string cluster_metrics_to_json(const ClusterMetrics& metrics)
{
  nlohmann::ordered_json json;
  json["mean_jct_s"] = metrics.mean_jct.value;
  json["median_jct_s"] = metrics.median_jct.value;
  json["p99_jct_s"] = metrics.p99_jct.value;
  json["makespan_s"] = metrics.makespan.value;
  json["mean_waiting_s"] = metrics.mean_waiting.value;
  json["longest_wait_s"] = metrics.longest_wait.value;
  json["longest_waiting_job"] = metrics.longest_waiting_job;
  json["mean_slowdown"] = metrics.mean_slowdown;
  json["largest_slowdown"] = metrics.largest_slowdown;
  json["mean_finish_time_fairness"] = metrics.mean_fairness_ratio;
  json["largest_finish_time_fairness"] = metrics.largest_fairness_ratio;
  json["jain_index"] = metrics.jain_index;
  json["devices_busy_fraction"] = metrics.devices_busy_fraction;
  for (std::size_t i = 0; i < step_resources.size(); ++i) {
    json[fmt::format("{}_busy_fraction", step_resources[i])] = metrics.busy_fraction[i];
  }
  json["mean_jct_bound_s"] = metrics.bounds.mean_jct.value;
  json["p99_jct_bound_s"] = metrics.bounds.p99_jct.value;
  json["makespan_bound_s"] = metrics.bounds.makespan.value;
  return json_lines(json);
}

std::string cluster_metrics_to_text(const ClusterMetrics& metrics)
{
  const auto seconds = [](Seconds time) { return fmt::format("{:.1f}", time.value); };
  std::string text = table_of({"seconds", "mean", "median", "p99", "makespan"},
                              {{"completion", seconds(metrics.mean_jct), seconds(metrics.median_jct),
                                seconds(metrics.p99_jct), seconds(metrics.makespan)},
                               {"lower bound", seconds(metrics.bounds.mean_jct), "", seconds(metrics.bounds.p99_jct),
                                seconds(metrics.bounds.makespan)}});
  text += fmt::format("\nwaiting: {} s on average; longest at a stretch {} s (job {})\n", seconds(metrics.mean_waiting),
                      seconds(metrics.longest_wait), on_one_line(metrics.longest_waiting_job));
  text += fmt::format("slowdown: {:.2f} on average, at most {:.2f}\n", metrics.mean_slowdown, metrics.largest_slowdown);
  text += fmt::format("finish-time fairness: {:.3f} on average, at most {:.2f}; Jain index {:.3f}\n",
                      metrics.mean_fairness_ratio, metrics.largest_fairness_ratio, metrics.jain_index);
  text += fmt::format("busy: devices {:.1f} %", 100 * metrics.devices_busy_fraction);
  for (std::size_t i = 0; i < step_resources.size(); ++i) {
    text += fmt::format(", {} {:.1f} %", step_resources[i], 100 * metrics.busy_fraction[i]);
  }
  return text + "\n";
}

std::string cluster_jobs_to_csv(const std::vector<Job>& jobs, const ClusterRun& run, double step_factor)
{
  std::string text = fmt::format("{}\n", cluster_jobs_header);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    const JobRun& result = run.jobs[i];
    const auto number = [](Seconds time) { return fmt::format("{}", time.value); };
    text += csv_line({job.name, job.model, fmt::to_string(job.devices), number(job.arrival), number(result.first_start),
                      number(result.end), number(result.end - job.arrival), number(time_alone(job, step_factor)),
                      number(result.waiting), number(result.longest_wait), fmt::to_string(result.starts)});
  }
  return text;
}

}  // namespace isobar::results
