#pragma once

#include "results/comparison.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// The text that `compare --explain` prints below its table: a block for each row with a plan, then a line for each
/// goal on how many devices are worth using. `devices`: number of devices of the platform.
std::string explanations_of(const std::vector<results::ComparisonRow>& rows, std::size_t devices);

}  // namespace isobar::cli
