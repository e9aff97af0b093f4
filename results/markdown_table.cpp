#include "results/markdown_table.hpp"

#include "core/errors.hpp"
#include "core/text/xml_writer.hpp"

namespace isobar::results {

std::string markdown_cell(const std::string& text)
{
  std::string safe;
  for (const char c : xml_escaped(text)) {
    if (c == '|' || c == '*' || c == '_' || c == '`') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string markdown_table_of(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                              std::size_t left_columns)
{
  const auto line_of = [](const std::vector<std::string>& cells) {
    std::string line = "|";
    for (const auto& cell : cells) line += " " + markdown_cell(on_one_line(cell)) + " |";
    return line + "\n";
  };
  std::string table = line_of(header) + "|";
  for (std::size_t i = 0; i < header.size(); ++i) table += i < left_columns ? "---|" : "---:|";
  table += "\n";
  for (const auto& row : rows) table += line_of(row);
  return table;
}

}  // namespace isobar::results
