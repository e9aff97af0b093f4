#pragma once

#include "allocators/mix/shared_round.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// What a matching of groups maximizes.
enum class GroupGain {
  Efficiency,  ///< Muri's: how busy a round keeps the resources on average
  TimeSaved    ///< seconds saved by sharing until the first job of the two ends
};

struct GroupRules {
  GroupGain gain{};
  RoundForm form{};
  std::size_t largest = 4;           ///< jobs of a group; 2 to 6
  std::optional<Bytes> memory = {};  ///< of a device; none: not counted
};

/// A job that may share its devices.
struct Candidate {
  std::size_t devices = 1;
  JobStepTimes step;
  double steps = 0;        ///< left
  Bytes resident = {};     ///< on each device throughout
  Bytes activations = {};  ///< on each device besides, during its turns
};

/// Whether jobs that take turns fit on a device: all residents, and the activations of one.
bool fit_together(const std::vector<Candidate>& jobs, const std::optional<Bytes>& memory);

/// Groups jobs of equal numbers of devices while the groups ask for more devices than there are: matches groups for the
/// largest gain, those with the same number of devices exactly, merges the pairs with the largest gain first, and
/// begins again with the merged groups. Those that do not fit in memory together, and pairs whose round is no shorter
/// than their rounds one after the other stay apart.
/// @returns groups of indices, in the order of their first jobs. Every matching is checked by its proof.
std::vector<std::vector<std::size_t>> group_jobs(const std::vector<Candidate>& jobs, std::size_t devices,
                                                 const GroupRules& rules);

}  // namespace isobar::allocators
