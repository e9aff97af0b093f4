#include "core/errors.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/document.hpp"
#include "results/comparison.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <map>
#include <system_error>

namespace isobar::results {

namespace {

template <typename Number>
std::optional<Number> number_from(const std::string& text)
{
  Number number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// Reads the cells of one row.
class RowReader {
 public:
  RowReader(const std::vector<std::string>& columns, const CsvTable::Row& row, FaultList& faults)
      : columns_(&columns), row_(&row), faults_(&faults)
  {
  }

  std::string text(std::size_t column)
  {
    if (cell(column).empty()) add_fault(column, "is empty; every row needs one");
    return cell(column);
  }

  template <typename Value, typename FromName>
  Value choice(std::size_t column, FromName from_name, const std::vector<std::string>& choices)
  {
    if (const std::optional<Value> value = from_name(cell(column))) return *value;
    add_fault(column, fmt::format("{} is not one of {}", in_quotes(cell(column)), fmt::join(choices, ", ")));
    return Value{};
  }

  ScheduleChoice schedule(std::size_t column)
  {
    try {
      return schedule_from_text(cell(column));
    } catch (const InputError& fault) {
      add_fault(column, without_place("schedule", fault));
      return {};
    }
  }

  std::uint64_t count(std::size_t column, std::uint64_t lowest)
  {
    const auto number = number_from<std::uint64_t>(cell(column));
    if (number && *number >= lowest) return *number;
    add_fault(column, fmt::format("{} is not a whole number of at least {}", in_quotes(cell(column)), lowest));
    return lowest;
  }

  /// None where the cell is empty.
  template <typename Quantity>
  std::optional<Quantity> quantity(std::size_t column)
  {
    if (cell(column).empty()) return std::nullopt;
    const auto number = number_from<double>(cell(column));
    if (number && std::isfinite(*number) && *number >= 0) return Quantity(*number);
    add_fault(column,
              in_quotes(cell(column)) + " is not a number of at least 0; leave the cell empty where there is none");
    return std::nullopt;
  }

 private:
  const std::string& cell(std::size_t column) const { return row_->cells[column]; }
  void add_fault(std::size_t column, const std::string& what) { faults_->add(row_->line, (*columns_)[column], what); }

  const std::vector<std::string>* columns_;
  const CsvTable::Row* row_;
  FaultList* faults_;
};

ComparisonRow row_from(RowReader reader)
{
  ComparisonRow row;
  row.platform = reader.text(0);
  row.workload = reader.text(1);
  row.allocator = reader.text(2);
  row.goal.objective = reader.choice<Objective>(3, objective_from_name, objective_names());
  row.goal.communication = reader.choice<Communication>(4, communication_from_name, communication_names());
  row.goal.schedule = reader.schedule(5);
  row.goal.microbatches = reader.count(6, 1);
  row.seed = reader.count(7, 0);
  const auto outcome_of = [](std::string_view name) {
    return name == failed_outcome || outcome_from_name(name) ? std::optional(std::string(name)) : std::nullopt;
  };
  std::vector<std::string> outcomes = outcome_names();
  outcomes.emplace_back(failed_outcome);
  row.outcome = reader.choice<std::string>(8, outcome_of, outcomes);
  row.objective = reader.quantity<Seconds>(9);
  row.objective_bound = reader.quantity<Seconds>(10);
  reader.quantity<Seconds>(11);  // the gap
  row.step_time = reader.quantity<Seconds>(12);
  row.step_bound = reader.quantity<Seconds>(13);
  row.peak_memory = reader.quantity<Bytes>(14);
  return row;
}

}  // namespace

std::vector<ComparisonRow> baseline_from_csv(const std::string& text, const std::string& name)
{
  FaultList faults(name);
  const auto table = CsvTable::by_program(text, baseline_header, faults);
  std::vector<ComparisonRow> rows;
  std::map<RowKey, int> line_of;
  for (const auto& cells : table.rows()) {
    rows.push_back(row_from({table.columns(), cells, faults}));
    const auto [first, is_new] = line_of.emplace(key_of(rows.back()), cells.line);
    if (!is_new) faults.add(cells.line, "row", fmt::format("repeats line {}; remove one of them", first->second));
  }
  faults.throw_if_any();
  return rows;
}

}  // namespace isobar::results
