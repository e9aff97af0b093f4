#pragma once

#include <string>
#include <vector>

namespace isobar::results {

/// Most points of one curve on a page.
inline constexpr std::size_t most_points = 2'000;

/// A file of jobs, as `isobar cluster -o` writes it.
struct JobsFile {
  std::string name;
  std::string text;
};

/// Whether a text begins as a file of jobs does.
bool is_jobs_file(const std::string& text);

/// An object of `schedules` in isobar-report/1 (docs/formats/report.md): numbers of a schedule's jobs, the distribution
/// of their completion times, and how many are in the system over time. Deterministic. O(jobs · log jobs).
/// @throws InputError with every fault of the file.
std::string schedule_to_json(const JobsFile& file);

/// isobar-report/1 with `schedules` instead of `runs`.
std::string schedule_report_to_json(const std::string& version, const std::vector<std::string>& schedules);

}  // namespace isobar::results
