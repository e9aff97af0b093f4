#include "results/fidelity/row_files.hpp"

#include "core/errors.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

namespace isobar::results {

namespace {

/// Adds a fault for each file that a row names and that does not exist.
void require_files(const MeasuredRow& row, FaultList& faults)
{
  const auto require = [&](const char* column, const std::string& file) {
    std::error_code unknown;
    if (!file.empty() && !std::filesystem::exists(file, unknown)) {
      faults.add(row.line, column, shown(file, 200) + ": no such file; name one relative to the folder of the table");
    }
  };
  require("platform", row.platform);
  require("workload", row.workload);
  require("plan", row.plan);
  for (const auto& profile : row.profiles) require("profiles", profile);
}

}  // namespace

std::vector<MeasuredRow> measured_rows_of(const std::vector<std::string>& files)
{
  std::vector<MeasuredRow> rows;
  std::set<std::filesystem::path> read;
  for (const auto& file : files) {
    if (!read.insert(std::filesystem::path(file).lexically_normal()).second) {
      throw InputError(file, "is given twice; name each file once");
    }
    FaultList faults(file);
    for (auto& row : read_measured_rows(file)) {
      if (row.role != RowRole::Excluded) require_files(row, faults);
      rows.push_back(std::move(row));
    }
    faults.throw_if_any();
  }
  return rows;
}

std::vector<std::string> files_named_by(const std::vector<MeasuredRow>& rows)
{
  std::set<std::string> files;
  for (const auto& row : rows) {
    files.insert({row.platform, row.workload, row.plan});
    files.insert(row.profiles.begin(), row.profiles.end());
  }
  return {files.begin(), files.end()};
}

const MeasuredRow& row_named(const std::string& name, const std::vector<MeasuredRow>& rows, const std::string& option)
{
  const auto full_name = [](const MeasuredRow& row) { return row.set + "/" + row.name; };
  std::vector<const MeasuredRow*> found;
  std::vector<std::string> names;
  for (const auto& row : rows) {
    if (row.name == name || full_name(row) == name) found.push_back(&row);
    names.push_back(row.name);
  }
  if (found.empty()) {
    const std::string nearest = nearest_word(name, names);
    throw InputError(option, fmt::format("{} is not a row of the files; {}", in_quotes(name),
                                         nearest.empty() ? "isobar fidelity --csv - lists them"
                                                         : fmt::format("did you mean {}?", shown(nearest))));
  }
  if (found.size() > 1) {
    throw InputError(option, fmt::format("{} is a row of several sets or files; name one file, and {}", in_quotes(name),
                                         shown(full_name(*found.front()))));
  }
  return *found.front();
}

}  // namespace isobar::results
