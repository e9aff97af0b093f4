#include "results/table.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace isobar::results {

namespace {

/// Number of characters, not bytes, of UTF-8 text.
std::size_t width_of(const std::string& text)
{
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

constexpr std::size_t terminal = 80;
constexpr std::size_t gap = 2;  // blanks between columns

/// The width of each column: its longest entry.
std::vector<std::size_t> widths_of(const std::vector<std::string>& header,
                                   const std::vector<std::vector<std::string>>& rows)
{
  std::vector<std::size_t> widths(header.size(), 0);
  const auto widen = [&widths](const std::vector<std::string>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  };
  widen(header);
  for (const auto& row : rows) widen(row);
  return widths;
}

/// The byte at which a character of UTF-8 text begins.
std::size_t offset_of(const std::string& text, std::size_t character)
{
  std::size_t offset = 0;
  for (; offset < text.size(); ++offset) {
    const bool begins = (static_cast<unsigned char>(text[offset]) & 0xC0) != 0x80;
    if (begins && character-- == 0) break;
  }
  return offset;
}

/// The text with "…" in place of characters in its middle, so that it has at most `width` of them.
std::string shortened(const std::string& text, std::size_t width)
{
  const std::size_t characters = width_of(text);
  if (characters <= width) return text;
  const std::size_t head = width / 2;
  const std::size_t tail = width - head - 1;
  return text.substr(0, offset_of(text, head)) + "…" + text.substr(offset_of(text, characters - tail));
}

}  // namespace

std::string table_of(const std::vector<std::string>& header, std::vector<std::vector<std::string>> rows,
                     std::size_t left_columns)
{
  for (auto& row : rows) {
    for (auto& entry : row) entry = on_one_line(entry);
  }
  const auto widths = widths_of(header, rows);
  const auto line_of = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      if (i > 0) line.append(gap, ' ');
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

std::string table_of(const std::vector<std::string>& header, std::vector<std::vector<std::string>> rows,
                     std::size_t left_columns, const std::vector<std::size_t>& dispensable, TableWidth width)
{
  constexpr std::size_t least_width = 8;  // of a shortened entry
  if (width == TableWidth::Any) return table_of(header, std::move(rows), left_columns);
  for (auto& row : rows) {
    for (auto& entry : row) entry = on_one_line(entry);
  }
  auto widths = widths_of(header, rows);
  std::size_t total = std::accumulate(widths.begin(), widths.end(), gap * (header.size() - 1));
  std::vector<bool> is_shown(header.size(), true);
  std::string omitted;
  for (const std::size_t column : dispensable) {
    if (total <= terminal) break;
    total -= widths[column] + gap;
    is_shown[column] = false;
    omitted += (omitted.empty() ? "" : ", ") + header[column];
  }
  while (total > terminal) {
    std::size_t* widest = nullptr;
    for (std::size_t i = 0; i < left_columns; ++i) {
      const bool can_shrink = is_shown[i] && widths[i] > std::max(least_width, width_of(header[i]));
      if (can_shrink && (widest == nullptr || widths[i] > *widest)) widest = &widths[i];
    }
    if (widest == nullptr) break;
    --*widest;
    --total;
  }

  const auto shown_of = [&](const std::vector<std::string>& entries) {
    std::vector<std::string> some;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (is_shown[i]) some.push_back(i < left_columns ? shortened(entries[i], widths[i]) : entries[i]);
    }
    return some;
  };
  for (auto& row : rows) row = shown_of(row);
  const auto left = std::count(is_shown.begin(), is_shown.begin() + static_cast<std::ptrdiff_t>(left_columns), true);
  std::string table = table_of(shown_of(header), std::move(rows), static_cast<std::size_t>(left));
  if (!omitted.empty()) table += "not shown without --wide: " + omitted + "\n";
  return table;
}

std::string percent(const std::optional<double>& fraction)
{
  return fraction ? fmt::format("{:.1f} %", 100 * *fraction) : "–";
}

}  // namespace isobar::results
