#include "results/fidelity/measured_row.hpp"

#include "core/base/files.hpp"
#include "core/compute/recompute_modules.hpp"
#include "core/errors.hpp"
#include "core/jobs/trace_numbers.hpp"
#include "core/names.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace isobar::results {

namespace {

constexpr auto header =
    "set,row,role,group,platform,platform_overrides,workload,overrides,framework,pp,tp,dp,cp,ep,virtual_stages,zero,"
    "sequence_parallel,global_batch,micro_batch,schedule,recompute,layers,devices,plan,profiles,measured_s,"
    "measured_tolerance_fraction,measured_memory_bytes,memory_kind,reference_s,reference_memory_bytes,note";

constexpr NameTable<RowRole, 6> role_names = {{{RowRole::Calibration, "calibration"},
                                               {RowRole::Development, "development"},
                                               {RowRole::Gate, "gate"},
                                               {RowRole::Derived, "derived"},
                                               {RowRole::Failed, "failed"},
                                               {RowRole::Excluded, "excluded"}}};
constexpr NameTable<MemoryKind, 3> memory_names = {
    {{MemoryKind::Allocated, "allocated"}, {MemoryKind::Reserved, "reserved"}, {MemoryKind::Device, "device"}}};
constexpr NameTable<Recomputation, 5> recomputation_names = {{{Recomputation::None, "none"},
                                                              {Recomputation::Selective, "selective"},
                                                              {Recomputation::Full, "full"},
                                                              {Recomputation::Planned, "plan"},
                                                              {Recomputation::Modules, "modules"}}};

constexpr std::uint64_t most_devices = 1 << 20;  // of a degree

std::vector<std::string> pieces_of(const std::string& text, char separator)
{
  std::vector<std::string> pieces;
  for (std::size_t begin = 0; begin <= text.size() && !text.empty();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

/// The cells of one row, by column. A fault is added to the list, and a default returned.
class RowCells {
 public:
  RowCells(const CsvTable& table, const CsvTable::Row& row, const std::filesystem::path& folder, FaultList& faults)
      : table_(table), row_(row), folder_(folder), faults_(faults)
  {
  }

  const std::string& text(const char* column) const
  {
    const auto& columns = table_.columns();
    const auto found = std::ranges::find(columns, column);
    ensure(found != columns.end(), "a column of the schema");
    return row_.cells[static_cast<std::size_t>(found - columns.begin())];
  }

  const std::string& required_text(const char* column, const char* what) const
  {
    if (text(column).empty()) fault(column, fmt::format("is empty; name {}", what));
    return text(column);
  }

  std::optional<std::uint64_t> count(const char* column, std::uint64_t lowest, std::uint64_t highest) const
  {
    if (text(column).empty()) return std::nullopt;
    return count_of(column, text(column), lowest, highest);
  }

  std::optional<double> number(const char* column) const
  {
    if (text(column).empty()) return std::nullopt;
    return number_of(column, text(column));
  }

  /// A time of 1e-9 s or more.
  std::optional<Seconds> time(const char* column) const
  {
    const auto seconds = number(column);
    if (seconds < 1e-9 && number_in(text(column))) fault(column, "is below 1e-9; write seconds");
    return seconds ? std::optional(Seconds(*seconds)) : std::nullopt;
  }

  std::optional<Bytes> bytes(const char* column) const
  {
    const auto size = number(column);
    if (size == 0.0 && number_in(text(column))) fault(column, "is 0; write a size above it");
    return size ? std::optional(Bytes(*size)) : std::nullopt;
  }

  /// Into how many parts sequences are divided, and perhaps how these exchange: 4, or 4 ring.
  void context(const char* column, MeasuredRow& row) const
  {
    const std::string& cell = text(column);
    if (cell.empty()) return;
    const std::size_t space = std::min(cell.find(' '), cell.size());
    row.context_degree = count_of(column, cell.substr(0, space), 1, most_devices);
    if (space == cell.size()) return;
    const std::string name = cell.substr(space + 1);
    row.context_exchange = context_exchange_from_name(name);
    if (row.context_exchange) return;
    fault(column, fmt::format("{} is not known; write {}, or the number alone", in_quotes(name),
                              fmt::join(context_exchange_names(), ", ")));
  }

  /// A number, or one for each stage: 2+2+4.
  std::vector<std::size_t> degrees(const char* column, std::size_t stages) const
  {
    std::vector<std::size_t> degrees;
    for (const auto& piece : pieces_of(text(column), '+')) degrees.push_back(count_of(column, piece, 1, most_devices));
    if (degrees.empty()) return {1};
    if (degrees.size() > 1) require_one_a_stage(column, degrees.size(), stages);
    return degrees;
  }

  /// Into how many parts experts are divided, and perhaps that shards have whole ones: 8, or 8 etp 1.
  void experts(const char* column, MeasuredRow& row) const
  {
    const std::string& cell = text(column);
    if (cell.empty()) return;
    const std::size_t space = std::min(cell.find(' '), cell.size());
    row.expert_degree = count_of(column, cell.substr(0, space), 1, most_devices);
    if (space == cell.size()) return;
    row.has_whole_experts = cell.substr(space + 1) == "etp 1";
    if (row.has_whole_experts) return;
    fault(column, fmt::format("{} is not known; write etp 1, or the number alone where tp divides experts, too",
                              in_quotes(cell.substr(space + 1))));
  }

  /// Blocks of each stage, or of each chunk in the order of the layers, as in 11+13; 4*3 are three times 4.
  std::vector<double> blocks(const char* column, std::size_t stages, std::size_t chunks) const
  {
    std::vector<double> blocks;
    for (const auto& piece : pieces_of(text(column), '+')) {
      const std::size_t star = std::min(piece.find('*'), piece.size());
      const auto times = star == piece.size() ? 1 : count_of(column, piece.substr(star + 1), 1, most_devices);
      blocks.insert(blocks.end(), times, number_of(column, piece.substr(0, star)));
    }
    if (!blocks.empty() && blocks.size() != chunks) require_one_a_stage(column, blocks.size(), stages);
    return blocks;
  }

  /// Pairs of a key and a value: layers=24;hidden=2304.
  std::vector<std::pair<std::string, std::string>> settings(const char* column) const
  {
    std::vector<std::pair<std::string, std::string>> settings;
    for (const auto& piece : pieces_of(text(column), ';')) {
      const std::size_t equals = piece.find('=');
      if (equals == std::string::npos || equals == 0) {
        fault(column, in_quotes(piece) + " is not a setting; write key=value, several separated by ;");
        continue;
      }
      const std::string key = piece.substr(0, equals);
      if (std::ranges::count(settings, key, &std::pair<std::string, std::string>::first) > 0) {
        fault(column, in_quotes(key) + " is set twice; leave one out");
      }
      settings.emplace_back(key, piece.substr(equals + 1));
    }
    return settings;
  }

  template <typename Value, std::size_t Count>
  std::optional<Value> choice(const char* column, const NameTable<Value, Count>& names) const
  {
    if (text(column).empty()) return std::nullopt;
    const auto value = value_in(names, text(column));
    if (!value) {
      fault(column,
            fmt::format("{} is not known; write {}", in_quotes(text(column)), fmt::join(names_in(names), ", ")));
    }
    return value;
  }

  /// One of the choices, or modules separated by spaces.
  void recomputation(const char* column, MeasuredRow& row) const
  {
    if (text(column).empty()) return;
    row.recompute = value_in(recomputation_names, text(column));
    if (row.recompute && row.recompute != Recomputation::Modules) return;
    row.recompute = Recomputation::Modules;
    for (auto& module : pieces_of(text(column), ' ')) {
      if (std::ranges::find(compute::recompute_module_names(), module) == compute::recompute_module_names().end()) {
        fault(column,
              fmt::format("{} is not known; write none, selective, full, plan, or modules separated by a space: {}",
                          in_quotes(module), fmt::join(compute::recompute_module_names(), ", ")));
        return;
      }
      if (std::ranges::find(row.recompute_modules, module) != row.recompute_modules.end()) {
        fault(column, in_quotes(module) + " is there twice; leave one out");
        return;
      }
      row.recompute_modules.push_back(std::move(module));
    }
  }

  /// A path beside the table's file.
  std::string path(const std::string& named) const
  {
    return named.empty() ? "" : (folder_ / named).lexically_normal().string();
  }

  void fault(const char* column, const std::string& what) const { faults_.add(row_.line, column, what); }

 private:
  std::uint64_t count_of(const char* column, const std::string& text, std::uint64_t lowest, std::uint64_t highest) const
  {
    const auto count = count_in(text);
    if (count && *count >= lowest && *count <= highest) return *count;
    fault(column, fmt::format("{} is wrong; write a whole number from {} to {}", in_quotes(text), lowest, highest));
    return lowest;
  }

  double number_of(const char* column, const std::string& text) const
  {
    const auto number = number_in(text);
    if (!number) fault(column, in_quotes(text) + " is wrong; write a number from 0 to 1e15");
    return number.value_or(0);
  }

  void require_one_a_stage(const char* column, std::size_t count, std::size_t stages) const
  {
    if (count != stages)
      fault(column, fmt::format("has {} numbers; write one for each of the {} stages of pp", count, stages));
  }

  const CsvTable& table_;
  const CsvTable::Row& row_;
  const std::filesystem::path& folder_;
  FaultList& faults_;
};

MeasuredRow row_of(const RowCells& cells, const std::string& file, int line)
{
  constexpr std::uint64_t most_samples = 1'000'000'000;
  MeasuredRow row;
  row.file = file;
  row.line = line;
  row.set = cells.required_text("set", "the set of measurements");
  row.name = cells.required_text("row", "the row");
  cells.required_text("role", "what the row may be used for");
  row.role = cells.choice("role", role_names).value_or(row.role);
  row.group = cells.text("group");
  row.platform = cells.path(cells.text("platform"));
  row.platform_overrides = cells.settings("platform_overrides");
  row.workload = cells.path(cells.text("workload"));
  row.overrides = cells.settings("overrides");
  for (const auto& [key, value] : row.overrides) {
    const bool has_column = key == "framework" || key == "micro_batch";
    if (has_column)
      cells.fault("overrides", fmt::format("{} has a column of its own; write {} there", key, shown(value)));
    if (key == "compute" || key == "unit") {
      cells.fault("overrides",
                  fmt::format("{} is {} in every row; leave it out", key, key == "unit" ? "operator" : "operators"));
    }
  }
  row.framework = cells.text("framework");
  row.pipeline_degree = cells.count("pp", 1, most_devices).value_or(1);
  row.tensor_degrees = cells.degrees("tp", row.pipeline_degree);
  row.data_degrees = cells.degrees("dp", row.pipeline_degree);
  cells.context("cp", row);
  cells.experts("ep", row);
  row.virtual_stages = cells.count("virtual_stages", 1, 1000);
  row.zero_stage = cells.count("zero", 0, 3).value_or(0);
  row.sequence_parallel = cells.count("sequence_parallel", 0, 1).value_or(0) == 1;
  row.global_batch = cells.count("global_batch", 1, most_samples).value_or(0);
  row.micro_batch = cells.count("micro_batch", 1, most_samples);
  row.schedule = cells.text("schedule");
  cells.recomputation("recompute", row);
  row.blocks = cells.blocks("layers", row.pipeline_degree, row.pipeline_degree * row.virtual_stages.value_or(1));
  row.devices = cells.text("devices");
  row.plan = cells.path(cells.text("plan"));
  for (const auto& profile : pieces_of(cells.text("profiles"), ';')) row.profiles.push_back(cells.path(profile));
  row.measured = cells.time("measured_s");
  row.measured_tolerance = cells.number("measured_tolerance_fraction");
  row.measured_memory = cells.bytes("measured_memory_bytes");
  row.memory_kind = cells.choice("memory_kind", memory_names);
  row.reference = cells.time("reference_s");
  row.reference_memory = cells.bytes("reference_memory_bytes");
  row.note = cells.text("note");
  return row;
}

/// What a row must have for its role.
void require_what_is_used(const MeasuredRow& row, const RowCells& cells)
{
  if (row.role == RowRole::Excluded) return;
  cells.required_text("platform", "its platform or machine file");
  cells.required_text("workload", "its workload file");
  cells.required_text("global_batch", "the samples of a step");
  if (row.role != RowRole::Failed && cells.text("measured_s").empty() && !row.measured_memory) {
    cells.fault("measured_s", fmt::format("is empty; a {} row has a measured time or memory", name_of(row.role)));
  }
  if (row.measured_memory && cells.text("memory_kind").empty()) {
    cells.fault("memory_kind", fmt::format("is empty; name the memory that was measured: {}",
                                           fmt::join(names_in(memory_names), ", ")));
  }
}

}  // namespace

std::string_view name_of(RowRole role)
{
  return name_in(role_names, role);
}

std::string_view name_of(MemoryKind kind)
{
  return name_in(memory_names, kind);
}

std::string_view name_of(Recomputation recompute)
{
  return name_in(recomputation_names, recompute);
}

std::vector<MeasuredRow> read_measured_rows(const std::filesystem::path& file)
{
  FaultList faults(file.string());
  const auto table = CsvTable::by_program(read_file(file), header, faults);
  faults.throw_if_any();  // which cells are right depends on the columns
  const auto folder = file.parent_path();
  std::vector<MeasuredRow> rows;
  std::set<std::string> names;
  for (const auto& row : table.rows()) {
    const RowCells cells(table, row, folder, faults);
    rows.push_back(row_of(cells, file.string(), row.line));
    require_what_is_used(rows.back(), cells);
    if (!names.insert(rows.back().name).second) {
      faults.add(row.line, "row",
                 in_quotes(rows.back().name) + " is the name of another row too; give each row its own");
    }
  }
  if (rows.empty()) faults.add(table.last_line(), "", "has no rows; write one below the header");
  faults.throw_if_any();
  return rows;
}

}  // namespace isobar::results
