#pragma once

#include "cli/sweep/cluster_run.hpp"
#include "cli/sweep/sweep_runs.hpp"
#include "core/jobs/job_trace.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

/// Runs that schedule a trace of jobs, as `isobar cluster` does.
class ScheduledRuns : public SweepRuns {
 public:
  explicit ScheduledRuns(results::Sweep read);

  std::vector<std::string> inputs() const override;
  std::string definition(std::size_t run) const override;
  std::vector<results::SweepResult> results_of(std::map<std::size_t, results::SweepRow> rows) const override;

 private:
  struct TraceSource {
    std::string file;
    std::string format;
    std::string header;
    std::uint64_t seed = 0;

    auto operator<=>(const TraceSource&) const = default;
  };

  TraceSource trace_source(std::size_t run) const;
  void read_trace(std::size_t run, FaultsOfRuns& faults);
  void check_rules(std::size_t run, FaultsOfRuns& faults) const;
  void require_sharing(FaultsOfRuns& faults) const;
  ClusterOptions options_of(std::size_t run) const;
  results::SweepRow row_of(std::size_t run, const std::optional<sim::Platform>& shared) const override;

  std::map<TraceSource, JobTrace> traces_;
  std::map<std::string, std::string> hashes_;  // of the traces' files
};

}  // namespace isobar::cli
