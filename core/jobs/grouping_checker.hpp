#pragma once

#include "core/jobs/grouping.hpp"

#include <string>
#include <vector>

namespace isobar {

/// What is false in a grouping, one line each: that every job is in one group of a right size which fits in memory, the
/// times of the groups and their sums, that the bound follows from the certificates and from the sums by resource, and
/// that the baselines are no better than the bound. Shares no code with what makes groups. Times may differ by 1e-9 of
/// their size; dual values are whole numbers and must sum up exactly.
///
/// O(jobs² · nesting of the odd sets) for pairs.
std::vector<std::string> faults_of(const Grouping& grouping);

}  // namespace isobar
