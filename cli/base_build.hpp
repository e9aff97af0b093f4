#pragma once

#include "cli/command.hpp"
#include "results/comparison.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace isobar::cli {

/// Another build of isobar: `base` itself where it is a program, else built from that revision of the Git repository
/// that `inside` lies in, by CMake, into build/base/COMMIT there; what is there already is not built again. Takes
/// minutes.
/// @throws InputError when there is no such revision, or the repository is none of Isobar's; EnvironmentError with the
/// log's name when the build fails.
std::filesystem::path base_program(const std::string& base, const std::filesystem::path& inside);

/// Makes these rows by another build, which plans and simulates each by its command `compare`; it reads the same files.
/// Rows that it cannot make, such as those of an allocator that it does not know, say why.
std::vector<results::ComparisonRow> rows_by(const std::filesystem::path& program,
                                            std::vector<results::ComparisonRow> rows,
                                            const std::map<std::string, std::uint64_t>& budgets,
                                            Seconds row_time_limit);

}  // namespace isobar::cli
