#pragma once

#include "results/fidelity/measured_row.hpp"

#include <string>
#include <vector>

namespace isobar::results {

/// The rows of all files, in their order. @throws InputError with the faults of a file, also for each file that a row
/// names and that does not exist, and for a file that is given twice.
std::vector<MeasuredRow> measured_rows_of(const std::vector<std::string>& files);

/// The files that rows name, each once.
std::vector<std::string> files_named_by(const std::vector<MeasuredRow>& rows);

/// The row of a name, ROW or SET/ROW. @throws InputError "OPTION: …" if there is none, or more than one.
const MeasuredRow& row_named(const std::string& name, const std::vector<MeasuredRow>& rows, const std::string& option);

}  // namespace isobar::results
