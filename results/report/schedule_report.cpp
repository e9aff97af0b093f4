#include "results/report/schedule_report.hpp"

#include "core/errors.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"
#include "results/cluster_metrics.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

struct JobTimes {
  double arrival = 0;
  double end = 0;
  double waiting = 0;
  double longest_wait = 0;
};

std::vector<JobTimes> jobs_in(const JobsFile& file)
{
  FaultList faults(file.name);
  const CsvTable table = CsvTable::by_program(file.text, cluster_jobs_header, faults);
  const auto& columns = table.columns();
  const auto column = [&columns](const char* name) {
    return static_cast<std::size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin());
  };
  const std::array<std::size_t, 4> times = {column("arrival_s"), column("end_s"), column("waiting_s"),
                                            column("longest_wait_s")};
  std::vector<JobTimes> jobs;
  for (const auto& [line, cells] : table.rows()) {
    std::array<double, times.size()> numbers{};
    for (std::size_t i = 0; i < times.size(); ++i) {
      const std::string& cell = cells[times[i]];
      const auto [stop, fault] = std::from_chars(cell.data(), cell.data() + cell.size(), numbers[i]);
      if (fault == std::errc{} && stop == cell.data() + cell.size() && std::isfinite(numbers[i]) && numbers[i] >= 0) {
        continue;
      }
      faults.add(line, columns[times[i]], in_quotes(cell) + " is not a time; write seconds, 0 or more");
    }
    const auto& [arrival, end, waiting, longest_wait] = numbers;
    if (end < arrival) faults.add(line, "end_s", "is before arrival_s");
    jobs.push_back({arrival, end, waiting, longest_wait});
  }
  faults.throw_if_any();
  if (jobs.empty()) throw InputError(file.name, "has no job");
  return jobs;
}

/// Indices of at most `most_points` of `count` points: the first, the last, and others evenly between them.
std::vector<std::size_t> some_of(std::size_t count)
{
  std::vector<std::size_t> indices(std::min(count, most_points));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    indices[i] = indices.size() == count ? i : i * (count - 1) / (indices.size() - 1);
  }
  return indices;
}

/// The fraction of jobs that take at most each time.
Json completion_of(const std::vector<double>& sorted)
{
  Json times = Json::array();
  Json fractions = Json::array();
  for (const std::size_t i : some_of(sorted.size())) {
    times.push_back(sorted[i]);
    fractions.push_back(static_cast<double>(i + 1) / static_cast<double>(sorted.size()));
  }
  return {{"times_s", std::move(times)}, {"fractions", std::move(fractions)}};
}

/// How many jobs have arrived and not ended, from each time on.
Json population_of(const std::vector<JobTimes>& jobs)
{
  std::vector<std::pair<double, int>> changes;
  for (const auto& job : jobs) {
    changes.emplace_back(job.arrival, 1);
    changes.emplace_back(job.end, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::vector<std::pair<double, int>> counts;
  int count = 0;
  for (const auto& [time, by] : changes) {
    count += by;
    if (!counts.empty() && counts.back().first == time) {
      counts.back().second = count;
    } else {
      counts.emplace_back(time, count);
    }
  }
  Json times = Json::array();
  Json numbers = Json::array();
  for (const std::size_t i : some_of(counts.size())) {
    times.push_back(counts[i].first);
    numbers.push_back(counts[i].second);
  }
  return {{"times_s", std::move(times)}, {"jobs", std::move(numbers)}};
}

}  // namespace

bool is_jobs_file(const std::string& text)
{
  return text.starts_with("job,");
}

std::string schedule_to_json(const JobsFile& file)
{
  const auto jobs = jobs_in(file);
  std::vector<double> times;
  double waiting = 0;
  double longest_wait = 0;
  double makespan = 0;
  for (const auto& job : jobs) {
    times.push_back(job.end - job.arrival);
    waiting += job.waiting;
    longest_wait = std::max(longest_wait, job.longest_wait);
    makespan = std::max(makespan, job.end);
  }
  std::sort(times.begin(), times.end());
  const auto count = static_cast<double>(jobs.size());
  const auto element = [&times, count](double fraction) { return times[static_cast<std::size_t>(fraction * count)]; };
  const Json json = {{"file", file.name},
                     {"jobs", jobs.size()},
                     {"mean_jct_s", std::accumulate(times.begin(), times.end(), 0.0) / count},
                     {"median_jct_s", element(0.5)},
                     {"p99_jct_s", element(0.99)},
                     {"makespan_s", makespan},
                     {"mean_waiting_s", waiting / count},
                     {"longest_wait_s", longest_wait},
                     {"completion", completion_of(times)},
                     {"population", population_of(jobs)}};
  return json_line(json);
}

std::string schedule_report_to_json(const std::string& version, const std::vector<std::string>& schedules)
{
  Json json = {{"schema", "isobar-report/1"}, {"isobar_version", version}, {"schedules", Json::array()}};
  for (const auto& schedule : schedules) json["schedules"].push_back(Json::parse(schedule));
  return json_lines(json);
}

}  // namespace isobar::results
