#pragma once

#include "results/fidelity/measured_row.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// The rows of all files, in their order. @throws InputError with the faults of a file, also for each file that a row
/// names and that does not exist, and for a file that is given twice.
std::vector<results::MeasuredRow> measured_rows_of(const std::vector<std::string>& files);

/// The files that rows name, each once.
std::vector<std::string> files_of(const std::vector<results::MeasuredRow>& rows);

/// The row of a name, ROW or SET/ROW. @throws InputError "OPTION: …" if there is none, or more than one.
const results::MeasuredRow& row_named(const std::string& name, const std::vector<results::MeasuredRow>& rows,
                                      const std::string& option);

}  // namespace isobar::cli
