#include "core/base/document.hpp"
#include "core/errors.hpp"
#include "results/comparison.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <map>
#include <system_error>
#include <utility>

namespace isobar::results {

namespace {

/// The entries of one line (RFC 4180). None where a quote is not closed, or where text follows one that is.
std::optional<std::vector<std::string>> entries_of(std::string_view line)
{
  std::vector<std::string> entries(1);
  bool quoted = false;
  bool closed = false;  // this entry's quotes
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      const bool is_doubled = c == '"' && i + 1 < line.size() && line[i + 1] == '"';
      if (c != '"' || is_doubled) {
        entries.back() += c;
        if (is_doubled) ++i;
      } else {
        quoted = false;
        closed = true;
      }
    } else if (c == ',') {
      entries.emplace_back();
      closed = false;
    } else if (closed) {
      return std::nullopt;
    } else if (c == '"' && entries.back().empty()) {
      quoted = true;
    } else {
      entries.back() += c;
    }
  }
  return quoted ? std::nullopt : std::optional(entries);
}

template <typename Number>
std::optional<Number> number_from(const std::string& text)
{
  Number number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// Reads the entries of one line by their place in the header.
class LineReader {
 public:
  LineReader(const std::vector<std::string>& columns, const std::vector<std::string>& entries, int line,
             FaultList& faults)
      : columns_(&columns), entries_(&entries), line_(line), faults_(&faults)
  {
  }

  std::string text(std::size_t column)
  {
    if (entry(column).empty()) fault(column, "is empty; a row needs one");
    return entry(column);
  }

  template <typename Value, typename FromName>
  Value word(std::size_t column, FromName from_name, const std::vector<std::string>& words)
  {
    if (const std::optional<Value> value = from_name(entry(column))) return *value;
    fault(column, fmt::format("{} is none of {}", in_quotes(entry(column)), fmt::join(words, ", ")));
    return Value{};
  }

  std::uint64_t count(std::size_t column, std::uint64_t lowest)
  {
    const auto number = number_from<std::uint64_t>(entry(column));
    if (number && *number >= lowest) return *number;
    fault(column, fmt::format("{} is no whole number from {}", in_quotes(entry(column)), lowest));
    return lowest;
  }

  /// None where the entry is empty.
  template <typename Quantity>
  std::optional<Quantity> quantity(std::size_t column)
  {
    if (entry(column).empty()) return std::nullopt;
    const auto number = number_from<double>(entry(column));
    if (number && std::isfinite(*number) && *number >= 0) return Quantity(*number);
    fault(column, in_quotes(entry(column)) + " is no number from 0; leave it empty where there is none");
    return std::nullopt;
  }

 private:
  const std::string& entry(std::size_t column) const { return (*entries_)[column]; }
  void fault(std::size_t column, const std::string& what) { faults_->add(line_, (*columns_)[column], what); }

  const std::vector<std::string>* columns_;
  const std::vector<std::string>* entries_;
  int line_;
  FaultList* faults_;
};

ComparisonRow row_from(LineReader& line)
{
  ComparisonRow row;
  row.platform = line.text(0);
  row.workload = line.text(1);
  row.allocator = line.text(2);
  row.goal.objective = line.word<Objective>(3, objective_from_name, objective_names());
  row.goal.communication = line.word<Communication>(4, communication_from_name, communication_names());
  row.goal.schedule = line.word<Schedule>(5, schedule_from_name, schedule_names());
  row.goal.microbatches = line.count(6, 1);
  row.seed = line.count(7, 0);
  const auto outcome_of = [](std::string_view name) {
    return name == failed_outcome || outcome_from_name(name) ? std::optional(std::string(name)) : std::nullopt;
  };
  std::vector<std::string> outcomes = outcome_names();
  outcomes.emplace_back(failed_outcome);
  row.outcome = line.word<std::string>(8, outcome_of, outcomes);
  row.objective = line.quantity<Seconds>(9);
  row.objective_bound = line.quantity<Seconds>(10);
  line.quantity<Seconds>(11);  // the gap
  row.step_time = line.quantity<Seconds>(12);
  row.step_bound = line.quantity<Seconds>(13);
  row.peak_memory = line.quantity<Bytes>(14);
  return row;
}

}  // namespace

std::vector<ComparisonRow> baseline_from_csv(const std::string& text, const std::string& name)
{
  FaultList faults(name);
  const std::vector<std::string> columns = entries_of(baseline_header).value();
  std::vector<ComparisonRow> rows;
  std::map<RowKey, int> line_of;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size() || number == 0;) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1;
    if (++number == 1) {
      if (line == baseline_header) continue;
      faults.add(1, "", fmt::format("the columns are {}; they must be {}", in_quotes(line), baseline_header));
      break;  // no entry of another table means what ours do
    }
    const auto entries = entries_of(line);
    if (!entries) {
      faults.add(number, "", "a quote is not closed, or text follows one that is; write a,\"b, c\",d");
      continue;
    }
    if (entries->size() != columns.size()) {
      faults.add(number, "", fmt::format("{} entries; a row has {}", entries->size(), columns.size()));
      continue;
    }
    LineReader reader(columns, *entries, number, faults);
    rows.push_back(row_from(reader));
    const auto [first, is_new] = line_of.emplace(key_of(rows.back()), number);
    if (!is_new) faults.add(number, "", fmt::format("the same row as in line {}; leave one out", first->second));
  }
  faults.throw_if_any();
  return rows;
}

}  // namespace isobar::results
