#pragma once

#include "cli/planning/mix_simulation.hpp"
#include "cli/share/share_options.hpp"
#include "core/base/temporary_folder.hpp"
#include "core/jobs/grouping.hpp"

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::cli {

/// A workload alone has no plan on the platform.
class NoPlan : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The jobs of the command line. Workloads alone are planned; their plans lie next to the output, or in a temporary
/// folder.
class SharedJobs {
 public:
  /// @throws InputError for a wrong JOB, fewer than two, or files with faults; NoPlan.
  explicit SharedJobs(const ShareOptions& options);

  const MixInputs& inputs() const { return inputs_; }
  MixInputs& inputs() { return inputs_; }
  /// Plans that were made, named next to the output.
  const std::vector<std::string>& made() const { return made_; }
  /// Whether a job was given without a plan.
  bool is_planned(std::size_t job) const { return names_.contains(inputs_.mix.jobs[job].plan); }
  /// Plans the workload of each of these jobs again, on each of these groups of devices alone, in child processes,
  /// `parallel` at a time. Returns the files of the plans, by job and group, in a temporary folder; "" without a plan.
  std::vector<std::vector<std::string>> plan_on(const ShareOptions& options, const std::vector<std::size_t>& jobs,
                                                const std::vector<std::vector<std::size_t>>& groups,
                                                std::size_t parallel);
  /// Puts such a plan of a job next to the output, where plans are kept. Returns its file.
  std::string keep(const ShareOptions& options, const std::string& plan, const std::string& job);
  /// A mix of these jobs as the file to write says it: with plans that were made next to it.
  Mix as_written(Mix mix) const;

 private:
  /// Reads the JOBs and plans those without a plan.
  Mix mix_of(const ShareOptions& options);
  /// Returns the file of the plan. `read`: files that it may not replace.
  std::string make_plan_of(const ShareOptions& options, const std::string& workload, const std::string& name,
                           const std::vector<std::string>& read);
  /// Writes the plan next to the output or into the temporary folder, as NAME.plan.json. Returns the file.
  std::string write_plan(const ShareOptions& options, const std::string& plan, const std::string& name,
                         const std::vector<std::string>& read);

  TemporaryFolder folder_;
  std::vector<std::string> made_;
  std::map<std::string, std::string> names_;  // of the plans that were made, in the mix
  std::map<std::string, std::string> kept_;   // file next to the output of each plan for a group
  MixInputs inputs_;
};

/// A job as a row of a table of profiles has it, from its run alone: one step.
JobProfile profile_of(const MixJob& job, const MixJobInputs& inputs, const SoloRun& alone, const Cluster& cluster);

}  // namespace isobar::cli
