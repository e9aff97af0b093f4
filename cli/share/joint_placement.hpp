#pragma once

#include "cli/planning/mix_simulation.hpp"
#include "cli/share/share_options.hpp"
#include "cli/share/shared_jobs.hpp"
#include "core/jobs/mix.hpp"
#include "core/units.hpp"
#include "results/mix_result.hpp"

#include <cstddef>
#include <vector>

namespace isobar::cli {

/// The jobs of a mix, each with a plan on some of the devices.
struct PlacedJobs {
  Mix mix;  ///< a turn of a step each, in the order of the jobs
  std::vector<MixJobInputs> jobs;
  std::vector<SoloRun> alone;
  results::RoundBound bound;
};

/// Placements of jobs together, which divide the devices among them.
struct JointPlacing {
  std::vector<PlacedJobs> placements;  ///< those with the least bounds, by rising bound
  std::size_t groups = 0;              ///< of devices that each workload alone was planned on; 0: nothing to divide
  bool has_all_groups = true;          ///< every group of the devices is among them
  Seconds bound;                       ///< no placement of the jobs on these groups has a shorter round
  Seconds serial;                      ///< a step of each job alone, with the best of its plans, one after the other
};

/// Plans the workloads alone on groups of the devices, simulates each of these plans alone, and chooses a group for
/// each job (allocators::best_placements). Jobs with a plan of their own keep it. `given`: the jobs as they are, a
/// choice too. At most 64 plans are made; `parallel` at a time.
JointPlacing place_together(const ShareOptions& options, SharedJobs& jobs, const PlacedJobs& given,
                            std::size_t parallel);

}  // namespace isobar::cli
