#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// Formats a table for people: a header, a rule and the rows. Columns are as wide as their longest entry; the first
/// `left_columns` are aligned left, the others right.
std::string table_of(const std::vector<std::string>& header, std::vector<std::vector<std::string>> rows,
                     std::size_t left_columns = 1);

/// How wide a table may be.
enum class TableWidth {
  Terminal,  ///< at most 80 characters
  Any        ///< --wide: every column, however wide
};

/// Formats a table that fits a width. While it is too wide, leaves out the next column of `dispensable` (indices), then
/// shortens entries of left-aligned columns in the middle. A last line names the columns that were left out.
std::string table_of(const std::vector<std::string>& header, std::vector<std::vector<std::string>> rows,
                     std::size_t left_columns, const std::vector<std::size_t>& dispensable, TableWidth width);

/// "12.3 %", or "–" without a number.
std::string percent(const std::optional<double>& fraction);

}  // namespace isobar::results
