#pragma once

#include "core/units.hpp"
#include "results/comparison.hpp"
#include "results/gate/baseline_meta.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace isobar::cli {

/// Returns another build of isobar: `base` if it is a program; otherwise builds that revision of the Git repository
/// that holds `inside`, with CMake, into build/base/COMMIT there. A build that exists is used again. Takes minutes.
/// @throws InputError when there is no such revision, or it is not one of Isobar; EnvironmentError with the name of the
/// log when the build fails.
std::filesystem::path base_program(const std::string& base, const std::filesystem::path& inside);

/// Makes these rows of a grid with another build, whose command `compare` plans and simulates each from the same files.
/// Rows that it cannot make, such as those of an allocator that it does not know, are failed rows with the reason.
std::vector<results::ComparisonRow> rows_by(const std::filesystem::path& program,
                                            std::vector<results::ComparisonRow> rows, const results::BaselineMeta& meta,
                                            Seconds row_time_limit);

}  // namespace isobar::cli
