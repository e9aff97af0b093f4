#include "results/table.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::results {

namespace {

/// Characters, not bytes, of UTF-8 text.
std::size_t width_of(const std::string& text)
{
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string table_of(const std::vector<std::string>& header, std::vector<std::vector<std::string>> rows,
                     std::size_t left_columns)
{
  for (auto& row : rows) {
    for (auto& entry : row) entry = on_one_line(entry);
  }
  std::vector<std::size_t> widths(header.size(), 0);
  const auto widen = [&widths](const std::vector<std::string>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  };
  widen(header);
  for (const auto& row : rows) widen(row);

  const auto line_of = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      if (i > 0) line += "  ";
      line += i < left_columns ? row[i] + padding : padding + row[i];
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    return line + "\n";
  };
  std::string table = line_of(header);
  std::vector<std::string> rule;
  for (const auto width : widths) rule.emplace_back(width, '-');
  table += line_of(rule);
  for (const auto& row : rows) table += line_of(row);
  return table;
}

std::string csv_line(const std::vector<std::string>& entries)
{
  std::string line;
  for (const auto& entry : entries) {
    if (&entry != &entries.front()) line += ",";
    if (entry.find_first_of(",\"\n\r") == std::string::npos) {
      line += entry;
      continue;
    }
    line += '"';
    for (const char character : entry) line += character == '"' ? std::string("\"\"") : std::string(1, character);
    line += '"';
  }
  return line + "\n";
}

}  // namespace isobar::results
