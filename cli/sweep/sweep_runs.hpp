#pragma once

#include "core/model/device_profile.hpp"
#include "core/model/workload.hpp"
#include "core/units.hpp"
#include "results/comparison.hpp"
#include "results/sweep/sweep.hpp"
#include "results/sweep/sweep_store.hpp"
#include "results/sweep/sweep_table.hpp"
#include "sim/platform/platform.hpp"

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

class FaultsOfRuns;

/// The runs of a sweep with all that they need, except platforms, which the process of each run loads.
class SweepRuns {
 public:
  /// Reads the sweep file, every workload that its runs need and the hash of every platform (in child processes), and
  /// makes each generated platform once.
  /// @throws InputError with every fault of the file and of its workloads. A platform that SimGrid refuses is not a
  /// fault here: its runs fail.
  explicit SweepRuns(const std::string& file);

  const results::Sweep& sweep() const { return sweep_; }
  /// The files that are read: sweep, platforms, workloads, devices files, allocator programs.
  std::vector<std::string> inputs() const;
  /// Everything that determines the result of a run, versions included, as JSON on one line.
  std::string definition(std::size_t run) const;

  /// The runs without a row in the database; with `failed`, also those whose row failed.
  std::vector<std::size_t> missing_in(const results::SweepStore& store, bool failed) const;
  /// The rows in the database, in the order of the runs.
  std::vector<results::SweepResult> results_in(const results::SweepStore& store) const;

  /// Called for each run that has ended.
  using OnRow = std::function<void(const results::SweepRow&)>;
  /// Plans and simulates runs, each in a child process, `jobs` at a time. A run that fails or exceeds the limit has a
  /// failed row with the reason. When all runs share one platform, this process loads it. Can be called once per
  /// process.
  /// @throws Interrupted, and what `on_row` throws; both kill the children.
  void make(const std::vector<std::size_t>& runs, std::size_t jobs, Seconds row_time_limit, const OnRow& on_row) const;

 private:
  /// What determines a platform before it is scaled.
  struct PlatformSource {
    std::string name;  ///< the file, or the generator
    std::string devices;
    std::map<std::string, std::string> options;  ///< of the generator

    auto operator<=>(const PlatformSource&) const = default;
  };
  struct WorkloadSource {
    std::string file;
    std::map<std::string, std::string> overrides;
    std::string profile;    ///< a file; "": none
    std::string recompute;  ///< as the file requests it; "": each allocator's default, which a run makes

    auto operator<=>(const WorkloadSource&) const = default;
  };

  std::vector<std::string> allocators() const;
  PlatformSource platform_source(std::size_t run) const;
  WorkloadSource workload_source(std::size_t run) const;
  void check_platform(std::size_t run, const PlatformSource& source, FaultsOfRuns& faults);
  void read_workload(std::size_t run, const WorkloadSource& source, FaultsOfRuns& faults);
  const DeviceProfile& profile_of(const std::string& file);
  void check_goal(std::size_t run, FaultsOfRuns& faults) const;
  void hash_platform_files();

  sim::Platform load_platform_of(const PlatformSource& source) const;
  results::ComparisonRow empty_row(std::size_t run) const;
  /// Plans and simulates in this process.
  results::SweepRow row_of(std::size_t run, const std::optional<sim::Platform>& shared) const;

  results::Sweep sweep_;
  std::map<PlatformSource, std::string> platform_hashes_;
  std::vector<std::string> platform_files_;  // of all platforms that are files
  std::map<std::string, std::string> workload_hashes_;
  std::map<std::string, DeviceProfile> profiles_;  // by file
  std::map<WorkloadSource, Workload> workloads_;
};

}  // namespace isobar::cli
