#include "sim/generate/csv_table.hpp"

#include "core/errors.hpp"
#include "core/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>

namespace isobar::sim {

namespace {

std::string_view trimmed(std::string_view text)
{
  constexpr std::string_view blanks = " \t\r";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string> cells_of(std::string_view line)
{
  std::vector<std::string> cells;
  while (true) {
    const auto comma = line.find(',');
    cells.emplace_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

bool has_control_character(std::string_view line)
{
  return std::any_of(line.begin(), line.end(),
                     [](char character) { return is_control(character) && character != '\t'; });
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
      faults.add(line, column, "stands twice in the header; name each column once");
    }
    places.push_back(place);
  }
  if (!faults.empty()) return places;  // a misspelt column would be said to be missing too
  for (std::size_t i = 0; i < required; ++i) {
    if (std::find(places.begin(), places.end(), i) == places.end()) {
      faults.add(line, known[i], fmt::format("missing column; the columns are {}", fmt::join(known, ", ")));
    }
  }
  return places;
}

}  // namespace

CsvTable::CsvTable(const std::string& text, const std::vector<std::string>& required,
                   const std::vector<std::string>& optional, FaultList& faults)
{
  std::vector<std::string> known = required;
  known.insert(known.end(), optional.begin(), optional.end());

  std::optional<std::vector<std::size_t>> places;
  std::istringstream stream(text);
  int number = 0;
  for (std::string raw; std::getline(stream, raw);) {
    ++number;
    const auto line = trimmed(raw);
    if (line.empty()) continue;
    if (has_control_character(line)) {
      faults.add(number, "row", "has a control character; write plain text");
      continue;
    }
    if (line.front() == '#') {
      comments_.emplace_back(trimmed(line.substr(1)));
      continue;
    }
    const auto cells = cells_of(line);
    if (line.find('"') != std::string_view::npos) {
      faults.add(number, "row", "has a quotation mark; write cells without quotes and commas");
    } else if (!places) {
      places = header_places(cells, number, known, required.size(), faults);
      // A header at fault says nothing of the rows.
      if (!faults.empty()) break;
    } else if (cells.size() != places->size()) {
      faults.add(number, "row", fmt::format("has {} cells; the header has {}", cells.size(), places->size()));
    } else {
      Row row{number, std::vector<std::string>(known.size())};
      for (std::size_t i = 0; i < cells.size(); ++i) row.cells[(*places)[i]] = cells[i];
      rows_.push_back(std::move(row));
    }
  }
  last_line_ = std::max(1, number);
  if (!places && faults.empty()) {
    faults.add(last_line_, "header", fmt::format("missing; write a line {}", fmt::join(known, ",")));
  }
}

}  // namespace isobar::sim
