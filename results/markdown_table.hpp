#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::results {

/// Text of one line, with what Markdown and HTML would interpret escaped.
std::string markdown_cell(const std::string& text);

/// Formats a table in Markdown of such texts; the first `left_columns` are aligned left, the others right.
std::string markdown_table_of(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                              std::size_t left_columns = 1);

}  // namespace isobar::results
