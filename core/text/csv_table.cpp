#include "core/text/csv_table.hpp"

#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "core/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace isobar {

namespace {

std::string_view trimmed(std::string_view text)
{
  constexpr std::string_view blanks = " \t\r";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool has_control_character(std::string_view line)
{
  return std::any_of(line.begin(), line.end(),
                     [](char character) { return is_control(character) && character != '\t'; });
}

std::vector<std::string_view> lines_of(std::string_view text)
{
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

/// The cells of one line (RFC 4180), or none where a quote is not closed or text follows a closing quote.
std::optional<std::vector<std::string>> cells_of(std::string_view line)
{
  std::vector<std::string> cells(1);
  bool quoted = false;
  bool closed = false;  // this cell's quotes
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      const bool is_doubled = c == '"' && i + 1 < line.size() && line[i + 1] == '"';
      if (c != '"' || is_doubled) {
        cells.back() += c;
        if (is_doubled) ++i;
      } else {
        quoted = false;
        closed = true;
      }
    } else if (c == ',') {
      cells.emplace_back();
      closed = false;
    } else if (closed) {
      return std::nullopt;
    } else if (c == '"' && cells.back().empty()) {
      quoted = true;
    } else {
      cells.back() += c;
    }
  }
  return quoted ? std::nullopt : std::optional(cells);
}

/// For each column of the file its place among `known`.
std::vector<std::size_t> header_places(const std::vector<std::string>& header, int line,
                                       const std::vector<std::string>& known, std::size_t required, FaultList& faults)
{
  std::vector<std::size_t> places;
  for (const auto& column : header) {
    const auto place = static_cast<std::size_t>(std::find(known.begin(), known.end(), column) - known.begin());
    if (place == known.size()) {
      const auto nearest = nearest_word(column, known);
      const auto all = fmt::format("the columns are {}", fmt::join(known, ", "));
      if (column.empty()) {
        faults.add(line, "header", "has a column without a name; " + all);
      } else {
        faults.add(line, column,
                   "unknown column; " + (nearest.empty() ? all : fmt::format("did you mean {}?", nearest)));
      }
    } else if (std::find(places.begin(), places.end(), place) != places.end()) {
      faults.add(line, column, "is listed twice in the header; name each column once");
    }
    places.push_back(place);
  }
  if (!faults.empty()) return places;  // a misspelt column would be reported as missing too
  for (std::size_t i = 0; i < required; ++i) {
    if (std::find(places.begin(), places.end(), i) == places.end()) {
      faults.add(line, known[i], fmt::format("missing column; the columns are {}", fmt::join(known, ", ")));
    }
  }
  return places;
}

/// False, with a fault, where a row has another number of cells than the header.
bool has_cells(const std::vector<std::string>& cells, std::size_t wanted, int line, FaultList& faults)
{
  if (cells.size() == wanted) return true;
  faults.add(line, "row", fmt::format("has {}; the header has {}", counted(cells.size(), "cell"), wanted));
  return false;
}

}  // namespace

CsvTable CsvTable::by_hand(const std::string& text, const std::vector<std::string>& required,
                           const std::vector<std::string>& optional, FaultList& faults)
{
  std::vector<std::string> known = required;
  known.insert(known.end(), optional.begin(), optional.end());
  CsvTable table(known);

  std::optional<std::vector<std::size_t>> places;
  int number = 0;
  for (const auto raw : lines_of(text)) {
    ++number;
    const auto line = trimmed(raw);
    if (line.empty()) continue;
    if (has_control_character(line)) {
      faults.add(number, "row", "has a control character; write plain text");
      continue;
    }
    if (line.front() == '#') {
      table.comments_.emplace_back(trimmed(line.substr(1)));
      continue;
    }
    if (line.find('"') != std::string_view::npos) {
      faults.add(number, "row", "has a quotation mark; write cells without quotes and commas");
      continue;
    }
    auto cells = cells_of(line).value();
    for (auto& cell : cells) cell = std::string(trimmed(cell));
    if (!places) {
      places = header_places(cells, number, known, required.size(), faults);
      if (!faults.empty()) break;  // without the header, faults of rows mean nothing
    } else if (has_cells(cells, places->size(), number, faults)) {
      Row row{number, std::vector<std::string>(known.size())};
      for (std::size_t i = 0; i < cells.size(); ++i) row.cells[(*places)[i]] = std::move(cells[i]);
      table.rows_.push_back(std::move(row));
    }
  }
  table.last_line_ = std::max(1, number);
  if (!places && faults.empty()) {
    faults.add(table.last_line_, "header", fmt::format("missing; write a line {}", fmt::join(known, ",")));
  }
  return table;
}

CsvTable CsvTable::by_program(const std::string& text, std::string_view header, FaultList& faults)
{
  CsvTable table(cells_of(header).value());
  auto lines = lines_of(text);
  if (lines.empty()) lines.emplace_back();
  table.last_line_ = static_cast<int>(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto number = static_cast<int>(i + 1);
    auto line = lines[i];
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (i == 0) {
      if (line == header) continue;
      faults.add(number, "", fmt::format("the columns are {}; they must be {}", in_quotes(line), header));
      break;  // cells of another table mean something else
    }
    auto cells = cells_of(line);
    if (!cells) {
      faults.add(number, "row", "a quote is not closed, or text follows a closing quote; write a,\"b, c\",d");
    } else if (has_cells(*cells, table.columns_.size(), number, faults)) {
      table.rows_.push_back({number, std::move(*cells)});
    }
  }
  return table;
}

CsvTable CsvTable::without_header(const std::string& text, std::size_t most_cells, FaultList& faults)
{
  CsvTable table({});
  std::size_t count = 0;
  int number = 0;
  for (const auto raw : lines_of(text)) {
    ++number;
    const auto line = trimmed(raw);
    count += 1 + static_cast<std::size_t>(std::count(line.begin(), line.end(), ','));
    if (count > most_cells) {
      faults.add(number, "row", fmt::format("the table has more than {} cells; write fewer", most_cells));
      break;
    }
    auto cells = has_control_character(line) ? std::nullopt : cells_of(line);
    if (!cells) {
      faults.add(number, "row", "has a control character or an open quote; write plain text between commas");
      continue;
    }
    for (auto& cell : *cells) cell = std::string(trimmed(cell));
    table.rows_.push_back({number, std::move(*cells)});
  }
  table.last_line_ = std::max(1, number);
  return table;
}

std::string csv_line(const std::vector<std::string>& cells)
{
  std::string line;
  for (const auto& cell : cells) {
    if (&cell != &cells.front()) line += ",";
    if (cell.find_first_of(",\"\n\r") == std::string::npos) {
      line += cell;
      continue;
    }
    line += '"';
    for (const char character : cell) line += character == '"' ? std::string("\"\"") : std::string(1, character);
    line += '"';
  }
  return line + "\n";
}

}  // namespace isobar
