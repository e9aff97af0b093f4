#pragma once

#include "cli/goal_options.hpp"
#include "core/errors.hpp"
#include "core/jobs/grouping.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::cli {

/// The command line of `isobar share`.
struct ShareOptions {
  std::string platform;
  std::string devices;
  std::vector<std::string> jobs;  ///< PLAN.json:WORKLOAD.yaml or WORKLOAD.yaml
  std::string profiles;
  std::string group;
  bool at_once = false;
  std::string allocator = "hybrid";
  std::string objective = "step";
  GoalOptions goal;
  std::uint64_t rounds = 10;
  std::string output;
  bool json = false;
};

/// Makes the mix of jobs that share devices, or meet on links.
ExitCode share_devices(const ShareOptions& options);
/// Chooses which of many jobs share devices.
ExitCode choose_groups(const ShareOptions& options);

}  // namespace isobar::cli
