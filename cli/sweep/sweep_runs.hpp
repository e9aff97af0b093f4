#pragma once

#include "cli/command.hpp"
#include "results/sweep/sweep.hpp"
#include "results/sweep/sweep_store.hpp"
#include "results/sweep/sweep_table.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

class FaultsOfRuns;

/// The runs of a sweep with all that they need but the platforms, which a run's own process loads.
class SweepRuns {
 public:
  /// Reads the sweep file, every workload that its runs need and the hash of every platform (in children), and makes
  /// each generated platform once.
  /// @throws InputError with every fault of the file and of its workloads. A platform that SimGrid refuses is none: its
  /// runs fail.
  explicit SweepRuns(const std::string& file);

  const results::Sweep& sweep() const { return sweep_; }
  /// The platform, workload and devices files that are read.
  std::vector<std::string> inputs() const;
  /// All that decides what comes of a run, versions included, as JSON on one line.
  std::string definition(std::size_t run) const;

  /// The runs that the database has no row of; `failed`: or a row that failed.
  std::vector<std::size_t> missing_in(const results::SweepStore& store, bool failed) const;
  /// The rows that the database has, in the order of the runs.
  std::vector<results::SweepResult> results_in(const results::SweepStore& store) const;

  /// What is told of each run that has ended.
  using OnRow = std::function<void(const results::SweepRow&)>;
  /// Plans and simulates runs, each in a child of its own, `jobs` at a time. One that fails or outlasts the limit has a
  /// row that says why. Where all have one platform, this process loads it. Once per process.
  /// @throws Interrupted, and what `on_row` throws; the children are ended then.
  void make(const std::vector<std::size_t>& runs, std::size_t jobs, Seconds row_time_limit, const OnRow& on_row) const;

 private:
  /// What decides a platform before it is scaled.
  struct PlatformSource {
    std::string name;  ///< the file, or the generator
    std::string devices;
    std::map<std::string, std::string> options;  ///< of the generator

    auto operator<=>(const PlatformSource&) const = default;
  };
  struct WorkloadSource {
    std::string file;
    std::map<std::string, std::string> overrides;
    std::string recompute;

    auto operator<=>(const WorkloadSource&) const = default;
  };

  PlatformSource platform_source(std::size_t run) const;
  WorkloadSource workload_source(std::size_t run) const;
  void check_platform(std::size_t run, const PlatformSource& source, FaultsOfRuns& faults);
  void read_workload(std::size_t run, const WorkloadSource& source, FaultsOfRuns& faults);
  void hash_platform_files();

  sim::Platform load_platform_of(const PlatformSource& source) const;
  results::ComparisonRow empty_row(std::size_t run) const;
  /// Plans and simulates in this process.
  results::SweepRow row_of(std::size_t run, const std::optional<sim::Platform>& shared) const;

  results::Sweep sweep_;
  std::map<PlatformSource, std::string> platform_hashes_;
  std::vector<std::string> platform_files_;  // of all platforms that are files
  std::map<std::string, std::string> workload_hashes_;
  std::map<WorkloadSource, Workload> workloads_;
};

}  // namespace isobar::cli
