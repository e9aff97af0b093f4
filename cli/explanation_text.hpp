#pragma once

#include "results/comparison.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// What `compare --explain` prints below its table: a block for each row with a plan, then a line for each goal on how
/// many devices are worth using.
std::string explanations_of(const std::vector<results::ComparisonRow>& rows, std::size_t devices);

}  // namespace isobar::cli
