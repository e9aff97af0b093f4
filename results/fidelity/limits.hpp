#pragma once

#include "results/fidelity/figures.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// What the figures of one set may be at worst.
struct SetLimits {
  std::string set;
  int line = 0;
  std::optional<double> mean_error;         ///< at most
  std::optional<double> memory_mean_error;  ///< at most
  std::optional<double> spearman;           ///< at least
  std::optional<double> ordered_pairs;      ///< at least
  std::optional<double> regret;             ///< mean over groups, at most
  std::optional<double> coverage;           ///< at least
  std::optional<double> inside;             ///< of the intervals, at least
  std::optional<double> most_inside;        ///< at most
  std::optional<std::uint64_t> rows;        ///< at least
};

/// A file of limits (docs/formats/fidelity.md).
struct FidelityLimits {
  std::string file;
  double tolerance = 0;  ///< added to the limits of mean errors
  std::vector<SetLimits> sets;
};

/// Reads limits from YAML, or JSON if the name ends in .json.
/// @throws InputError with every fault, such as a set that is not in `sets`, "file:line: key: what".
FidelityLimits read_fidelity_limits(const std::filesystem::path& file, const std::vector<std::string>& sets);

/// A line for each figure beyond its limit, "file:line: set: mean_error_fraction is 0.0612; the limit is 0.05". A
/// figure that a set lacks is beyond any limit.
std::vector<std::string> beyond_limits(const FidelityLimits& limits, const FidelityFigures& figures);

}  // namespace isobar::results
