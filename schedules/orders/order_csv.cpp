#include "schedules/orders/order_csv.hpp"

#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/document.hpp"
#include "schedules/orders/listed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace isobar::schedules {

namespace {

/// A task of a stage, and where it is in the file.
struct Cell {
  std::size_t column = 0;  ///< from 1
  std::size_t stage = 0;
  Opcode opcode = Opcode::Forward;  ///< as in the file: Backward also where the stage has halves
  std::uint64_t microbatch = 0;
  bool overlaps = false;  ///< a forward that runs together with the backward after it
};

/// What torch writes between tasks: transfers, and the work on parameters that are sharded among replicas.
constexpr std::array<std::string_view, 10> work_between_tasks = {"SEND_F",      "RECV_F",          "SEND_B",  "RECV_B",
                                                                 "WAIT_SEND_F", "WAIT_SEND_B",     "UNSHARD", "RESHARD",
                                                                 "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};

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

std::optional<Cell> task_from(std::size_t column, std::string_view text)
{
  const auto stage = take_number(text);
  if (!stage || text.empty()) return std::nullopt;
  const auto opcode = opcode_from_letter(text.front());
  text.remove_prefix(1);
  const auto microbatch = take_number(text);
  if (!opcode || !microbatch || !text.empty()) return std::nullopt;
  return Cell{column, *stage, *opcode, *microbatch};
}

/// True for cells such as 1RECV_F0 and 2UNSHARD.
bool is_between_tasks(std::string_view text)
{
  if (!take_number(text)) return false;
  const auto name = text.substr(0, text.find_first_of("0123456789"));
  text.remove_prefix(name.size());
  if (!text.empty() && (!take_number(text) || !text.empty())) return false;
  return std::find(work_between_tasks.begin(), work_between_tasks.end(), name) != work_between_tasks.end();
}

constexpr std::string_view overlap = ")OVERLAP_F_B";

/// The tasks of a cell: none, one, or the two of an overlap; nullopt for any other text.
std::optional<std::vector<Cell>> tasks_from(std::size_t column, std::string_view text)
{
  if (text.empty() || is_between_tasks(text)) return std::vector<Cell>();
  const bool is_overlap = text.starts_with('(') && text.ends_with(overlap);
  const std::size_t middle = is_overlap ? text.find(';') : std::string_view::npos;
  if (middle == std::string_view::npos) {
    const auto task = task_from(column, text);
    return task ? std::optional(std::vector{*task}) : std::nullopt;
  }
  auto first = task_from(column, text.substr(1, middle - 1));
  text.remove_suffix(overlap.size());
  const auto second = task_from(column, text.substr(middle + 1));
  if (!first || !second || first->opcode != Opcode::Forward || second->opcode != Opcode::Backward) return std::nullopt;
  first->overlaps = true;
  return std::vector{*first, *second};
}

std::string cell_text(const Cell& cell)
{
  return fmt::format("{}{}{}", cell.stage, letter_of(cell.opcode), cell.microbatch);
}

/// The cells of a rank with these stages. @throws InputError for halves of backward passes that a reader would take for
/// whole ones.
std::vector<std::string> row_of(const std::vector<ListedTask>& tasks, const std::vector<std::size_t>& stages)
{
  const auto cell_of = [&](const Task& task) { return Cell{0, stages.at(task.part), task.opcode, task.microbatch}; };
  std::vector<std::string> row;
  std::set<std::size_t> halved;        // stages with I and W in cells of their own
  std::set<std::size_t> are_together;  // stages of whose I and W an overlap makes B
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto& [task, overlaps] = tasks[i];
    if (!overlaps) {
      if (task.opcode == Opcode::BackwardInput) halved.insert(stages.at(task.part));
      row.push_back(cell_text(cell_of(task)));
      continue;
    }
    ensure(i + 1 < tasks.size(), "a forward that overlaps comes before its backward");
    Cell backward = cell_of(tasks[++i].task);
    if (backward.opcode == Opcode::BackwardInput) {
      ++i;  // its other half
      are_together.insert(backward.stage);
      backward.opcode = Opcode::Backward;
    }
    row.push_back(fmt::format("({};{}{}", cell_text(cell_of(task)), cell_text(backward), overlap));
  }
  for (const std::size_t stage : are_together) {
    if (halved.contains(stage)) continue;
    throw InputError("schedule",
                     fmt::format("stage {} has halves of backward passes beside forward passes alone, which "
                                 "a CSV file cannot say; use --json",
                                 stage));
  }
  return row;
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
  /// Letters of a stage's tasks with their micro-batches, sorted by the latter.
  using Letters = std::vector<std::pair<std::uint64_t, char>>;

  void read_row(const CsvTable::Row& row)
  {
    const std::size_t rank = cells_.size();
    auto& cells = cells_.emplace_back();
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const auto fault = [&](const std::string& what) { faults_.add(row.line, fmt::format("column {}", i + 1), what); };
      const auto tasks = tasks_from(i + 1, row.cells[i]);
      if (!tasks) {  // one fault a row is enough
        return fault(in_quotes(row.cells[i]) +
                     (row.cells[i].ends_with(overlap)
                          ? " is no forward and backward; write both, such as (2F1;1B0)OVERLAP_F_B"
                          : " is not a task; write the stage, F, B, I or W, and the micro-batch, such as 2F0"));
      }
      for (const auto& task : *tasks) {
        const auto& known = stages_.emplace(task.stage, StageRow{rank, row.line}).first->second;
        if (known.rank != rank) {
          return fault(fmt::format("stage {} is on rank {} already, in line {}; a stage has one rank", task.stage,
                                   known.rank, known.line));
        }
        cells.push_back(task);
      }
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
    std::vector<Letters> letters(stages_.size());
    for (const auto& rank : cells_) {
      for (const auto& cell : rank) letters[cell.stage].emplace_back(cell.microbatch, letter_of(cell.opcode));
    }
    for (auto& of_stage : letters) {
      std::sort(of_stage.begin(), of_stage.end());
      microbatches_ = std::max(microbatches_, of_stage.back().first + 1);
      halved_.push_back(std::any_of(of_stage.begin(), of_stage.end(),
                                    [](const auto& task) { return task.second == letter_of(Opcode::BackwardInput); }));
    }
    // A stage that has gaps is at fault, not those with fewer micro-batches than its last one.
    for (std::size_t stage = 0; stage < letters.size(); ++stage) {
      check_stage(stage, letters[stage], letters[stage].back().first + 1);
    }
    for (std::size_t stage = 0; stage < letters.size() && faults_.empty(); ++stage) {
      check_stage(stage, letters[stage], microbatches_);
    }
  }

  void check_stage(std::size_t stage, const Letters& letters, std::uint64_t microbatches)
  {
    auto next = letters.begin();
    for (std::uint64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
      std::string found;
      for (; next != letters.end() && next->first == microbatch; ++next) found += next->second;
      if (found == "BF" || found == "FIW") continue;
      faults_.add(stages_.at(stage).line, "row",
                  fmt::format("stage {} has {} of micro-batch {}; it has F and B of each, or F, I and W, once", stage,
                              found.empty() ? "nothing" : fmt::format("{}", fmt::join(found, ", ")), microbatch));
      return;
    }
  }

  CsvOrders pipeline()
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
      std::vector<ListedTask> tasks;
      auto& cell_of_task = cell_of_task_.emplace_back();
      for (std::size_t i = 0; i < rank.size(); ++i) {
        const auto& [column, stage, opcode, microbatch, overlaps] = rank[i];
        const bool is_split = opcode == Opcode::Backward && halved_[stage];
        tasks.push_back({{is_split ? Opcode::BackwardInput : opcode, part_of[stage], microbatch}, overlaps});
        if (is_split) tasks.push_back({{Opcode::BackwardWeight, part_of[stage], microbatch}});
        cell_of_task.resize(tasks.size(), i);
      }
      result.orders.push_back(with_loops(tasks));
    }
    return result;
  }

  void check_orders(const CsvOrders& csv)
  {
    const OrderNames names = {.rank = [](std::size_t rank) { return fmt::format("rank {}", rank); },
                              .task =
                                  [&](std::size_t rank, const Task& task) {
                                    const auto position = csv.orders[rank].position_of(task);
                                    const Cell& cell = cells_[rank][cell_of_task_[rank][position]];
                                    return fmt::format("{} (column {})", cell_text(cell), cell.column);
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
  std::vector<bool> halved_;                // by stage: it has I and W, which B then means
  std::uint64_t microbatches_ = 0;
  std::vector<std::vector<std::size_t>> cell_of_task_;  // by rank and position of its order
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
    text += csv_line(row_of(listed_tasks(orders[rank]), stages.at(rank)));
  }
  return text;
}

}  // namespace isobar::schedules
