#pragma once

#include "cli/sweep/sweep_runs.hpp"
#include "core/compute/device_profile.hpp"
#include "core/model/workload.hpp"
#include "results/comparison.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

/// Runs that plan with an allocator and simulate the plan.
class PlannedRuns : public SweepRuns {
 public:
  explicit PlannedRuns(results::Sweep read);

  std::vector<std::string> inputs() const override;
  std::string definition(std::size_t run) const override;
  std::vector<results::SweepResult> results_of(std::map<std::size_t, results::SweepRow> rows) const override;

 private:
  struct WorkloadSource {
    std::string file;
    std::map<std::string, std::string> overrides;
    std::string profile;    ///< a file; "": none
    std::string recompute;  ///< as the file requests it; "": each allocator's default, which a run makes

    auto operator<=>(const WorkloadSource&) const = default;
  };

  std::vector<std::string> allocators() const;
  WorkloadSource workload_source(std::size_t run) const;
  void read_workload(std::size_t run, const WorkloadSource& source, FaultsOfRuns& faults);
  const DeviceProfile& profile_of(const std::string& file);
  void check_goal(std::size_t run, FaultsOfRuns& faults) const;

  results::ComparisonRow empty_row(std::size_t run) const;
  results::SweepRow row_of(std::size_t run, const std::optional<sim::Platform>& shared) const override;

  std::map<std::string, std::string> workload_hashes_;
  std::map<std::string, DeviceProfile> profiles_;  // by file
  std::map<WorkloadSource, Workload> workloads_;
};

}  // namespace isobar::cli
