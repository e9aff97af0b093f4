#pragma once

#include "allocators/mix/matching.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// Two parts, groups of jobs with equal devices, and what is gained by making one of them.
struct Merge {
  std::size_t first = 0;
  std::size_t second = 0;  ///< larger than first
  std::int64_t gain = 0;
};

/// The gain of merging two parts; none, or not positive, where they stay apart.
using MergeGain = std::function<std::optional<std::int64_t>(std::size_t, std::size_t)>;

/// All merges of two parts with equal devices, which gain something. O(parts²) calls.
std::vector<Merge> all_merges(const std::vector<std::size_t>& devices, const MergeGain& gain);

/// A matching of the parts with one number of devices.
struct MatchedParts {
  std::size_t devices = 1;
  std::vector<std::size_t> parts;  ///< the matching's vertices
  Matching matching;
};

struct BestMerges {
  std::vector<Merge> merges;  ///< each part in one at most; the largest gain first
  std::vector<MatchedParts> matchings;
};

/// Those of a largest total gain, exact (maximum_weight_matching). Every matching is checked by its proof.
BestMerges best_merges(const std::vector<std::size_t>& devices, const std::vector<Merge>& merges);

/// Those that taking the largest gain first gives.
std::vector<Merge> greedy_merges(std::size_t parts, std::vector<Merge> merges);

}  // namespace isobar::allocators
