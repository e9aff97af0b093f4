#include "schedules/orders/order_csv.hpp"

#include "core/base/csv_table.hpp"
#include "core/base/document.hpp"
#include "core/errors.hpp"
#include "core/plan/order_text.hpp"
#include "schedules/orders/listed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace isobar::schedules {

namespace {

/// A cell: a task of a stage.
struct Cell {
  std::size_t column = 0;  ///< from 1
  std::size_t stage = 0;
  Opcode opcode = Opcode::Forward;
  std::uint64_t microbatch = 0;
};

/// Takes a number of at most nine digits, without leading zeros, off the beginning of `text`.
std::optional<std::uint64_t> take_number(std::string_view& text)
{
  constexpr std::size_t most_digits = 9;
  const std::size_t length = std::min(text.size(), text.find_first_not_of("0123456789"));
  if (length == 0 || length > most_digits || (length > 1 && text.front() == '0')) return std::nullopt;
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + length, number);
  text.remove_prefix(length);
  return number;
}

std::optional<Cell> cell_from(std::size_t column, std::string_view text)
{
  const auto stage = take_number(text);
  if (!stage || text.empty()) return std::nullopt;
  const auto opcode = opcode_from_letter(text.front());
  text.remove_prefix(1);
  const auto microbatch = take_number(text);
  if (!opcode || !microbatch || !text.empty()) return std::nullopt;
  return Cell{column, *stage, *opcode, *microbatch};
}

std::string text_of(std::size_t stage, const Task& task)
{
  return fmt::format("{}{}{}", stage, letter_of(task.opcode), task.microbatch);
}

/// What is wrong with a cell that is not a task.
std::string fault_of(const std::string& cell)
{
  if (cell.find("SEND") != std::string::npos || cell.find("RECV") != std::string::npos) {
    return in_quotes(cell) + " is a transfer; pass the schedule without transfers";
  }
  return in_quotes(cell) + " is not a task; write the stage, F, B, I or W, and the micro-batch, such as 2F0";
}

class Reader {
 public:
  Reader(const std::string& text, const std::string& name)
      : faults_(name), table_(CsvTable::without_header(text, most_csv_cells, faults_))
  {
  }

  CsvOrders read()
  {
    for (const auto& row : table_.rows()) read_row(row);
    faults_.throw_if_any();
    check_stages();
    faults_.throw_if_any();
    check_tasks();
    faults_.throw_if_any();
    CsvOrders result = pipeline();
    check_orders(result);
    faults_.throw_if_any();
    return result;
  }

 private:
  struct StageRow {
    std::size_t rank = 0;
    int line = 0;
  };

  void read_row(const CsvTable::Row& row)
  {
    const std::size_t rank = cells_.size();
    auto& cells = cells_.emplace_back();
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      if (row.cells[i].empty()) continue;
      const auto fault = [&](const std::string& what) { faults_.add(row.line, fmt::format("column {}", i + 1), what); };
      const auto cell = cell_from(i + 1, row.cells[i]);
      if (!cell) return fault(fault_of(row.cells[i]));  // one fault a row is enough
      const auto& known = stages_.emplace(cell->stage, StageRow{rank, row.line}).first->second;
      if (known.rank != rank) {
        return fault(fmt::format("stage {} is on rank {} already, in line {}; a stage has one rank", cell->stage,
                                 known.rank, known.line));
      }
      cells.push_back(*cell);
      microbatches_ = std::max(microbatches_, cell->microbatch + 1);
    }
    if (cells.empty()) faults_.add(row.line, "row", fmt::format("rank {} has no task; remove the line", rank));
  }

  void check_stages()
  {
    if (table_.rows().empty()) faults_.add(1, "", "the file is empty; write a row for each rank, such as 0F0,0B0");
    std::size_t next = 0;
    for (const auto& [stage, row] : stages_) {
      if (stage != next) {
        faults_.add(table_.last_line(), "",
                    fmt::format("stage {} is on no rank, but stage {} is on rank {}", next, stage, row.rank));
        return;
      }
      ++next;
    }
  }

  /// Every stage has F, and either B or I and W, of every micro-batch.
  void check_tasks()
  {
    std::vector<std::vector<std::pair<std::uint64_t, char>>> letters(stages_.size());
    for (const auto& rank : cells_) {
      for (const auto& cell : rank) letters[cell.stage].emplace_back(cell.microbatch, letter_of(cell.opcode));
    }
    for (std::size_t stage = 0; stage < letters.size(); ++stage) {
      std::sort(letters[stage].begin(), letters[stage].end());
      const std::string fault = fault_of_stage(stage, letters[stage]);
      if (!fault.empty()) faults_.add(stages_.at(stage).line, "row", fault);
    }
  }

  /// `letters`: sorted by micro-batch.
  std::string fault_of_stage(std::size_t stage, const std::vector<std::pair<std::uint64_t, char>>& letters) const
  {
    auto next = letters.begin();
    for (std::uint64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
      std::string found;
      for (; next != letters.end() && next->first == microbatch; ++next) found += next->second;
      if (found == "BF" || found == "FIW") continue;
      return fmt::format("stage {} has {} of micro-batch {}; it has F and B of each, or F, I and W, once", stage,
                         found.empty() ? "nothing" : fmt::format("{}", fmt::join(found, ", ")), microbatch);
    }
    return "";
  }

  CsvOrders pipeline() const
  {
    CsvOrders result;
    result.shape.microbatches = microbatches_;
    std::vector<std::uint32_t> part_of(stages_.size());
    std::vector<std::uint32_t> parts(cells_.size());
    for (const auto& [stage, row] : stages_) {
      part_of[stage] = parts[row.rank]++;
      result.shape.rank_of_stage.push_back(row.rank);
    }
    for (const auto& rank : cells_) {
      result.shape.devices.push_back(fmt::to_string(result.orders.size()));
      std::vector<Task> tasks;
      for (const auto& cell : rank) tasks.push_back({cell.opcode, part_of[cell.stage], cell.microbatch});
      result.orders.push_back(with_loops(tasks));
    }
    return result;
  }

  void check_orders(const CsvOrders& csv)
  {
    const auto stages = stages_by_rank(csv.shape);
    const OrderNames names = {.rank = [](std::size_t rank) { return fmt::format("rank {}", rank); },
                              .task =
                                  [&](std::size_t rank, const Task& task) {
                                    const auto position = csv.orders[rank].position_of(task);
                                    return fmt::format("{} (column {})", text_of(stages[rank][task.part], task),
                                                       cells_[rank][position].column);
                                  }};
    for (const auto& [rank, what] : faults_of_listed(csv.shape, csv.orders, names)) {
      const int line = rank ? table_.rows()[*rank].line : table_.last_line();
      faults_.add(line, rank ? names.rank(*rank) : "", what);
    }
  }

  FaultList faults_;
  CsvTable table_;
  std::vector<std::vector<Cell>> cells_;    // by rank
  std::map<std::size_t, StageRow> stages_;  // where each was found first
  std::uint64_t microbatches_ = 0;
};

}  // namespace

CsvOrders orders_from_csv(const std::string& text, const std::string& name)
{
  return Reader(text, name).read();
}

std::string orders_to_csv(const PipelineShape& shape, const std::vector<Order>& orders)
{
  std::uint64_t cells = 0;
  for (const auto& order : orders) cells += order.length();
  if (cells > most_csv_cells) {
    throw InputError("schedule",
                     fmt::format("has {} tasks, and a CSV file at most {}; use --json", cells, most_csv_cells));
  }
  const auto stages = stages_by_rank(shape);
  std::string text;
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    const Order& order = orders[rank];
    std::vector<std::string> row;
    for (std::uint64_t i = 0; i < order.length(); ++i) {
      const Task task = order.at(i);
      row.push_back(text_of(stages.at(rank).at(task.part), task));
    }
    text += csv_line(row);
  }
  return text;
}

}  // namespace isobar::schedules
