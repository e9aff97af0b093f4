#pragma once

#include "core/jobs/job.hpp"

#include <vector>

namespace isobar::allocators {

/// How long a round takes in which each of several jobs does one step on the same devices.
enum class RoundForm {
  Overlap,  ///< max over resources of their sum, and over jobs of their step: what strict rotation attains for pairs
  Slots     ///< Muri's slots: in each, all jobs move to their next resource together; in the best order of the jobs
};

/// The time of a round. Slots of more jobs than resources hold several jobs of one resource, one after the other.
/// O(jobs) for Overlap; O(jobs!) for Slots, of at most 6 jobs.
/// Source: overlap: docs/sharing.md; slots: "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022.
Seconds shared_round_time(const std::vector<JobStepTimes>& steps, RoundForm form);

}  // namespace isobar::allocators
