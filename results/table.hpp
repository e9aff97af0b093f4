#pragma once

#include <string>
#include <vector>

namespace isobar::results {

/// A table for people: a header, a rule and the rows, columns as wide as their longest entry, the first ones
/// (`left_columns`) aligned left and the others right.
std::string table_of(const std::vector<std::string>& header, std::vector<std::vector<std::string>> rows,
                     std::size_t left_columns = 1);

/// One line of a CSV file (RFC 4180): an entry with a comma, quote or line break is quoted.
std::string csv_line(const std::vector<std::string>& entries);

}  // namespace isobar::results
