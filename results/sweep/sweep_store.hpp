#pragma once

#include "results/comparison.hpp"

#include <memory>
#include <optional>
#include <string>

struct sqlite3;

namespace isobar::results {

/// What came of a run, by a text that says all that decides it. `row` counts from `outcome` on.
struct SweepRow {
  std::string definition;
  ComparisonRow row;
};
/// On one line. Deterministic.
std::string sweep_row_to_json(const SweepRow& row);
/// @throws InputError naming `name`, the file that holds the text.
SweepRow sweep_row_from_json(const std::string& text, const std::string& name);

/// The rows of sweeps in an SQLite database, each written as it comes. Other processes may read and write it meanwhile;
/// a process that is killed loses no row that it has put.
class SweepStore {
 public:
  /// `Read` needs no permission to write beside the database, and makes none.
  enum class Access { Read, Write };

  /// Opens the database, or makes it. @throws InputError for a file that holds something else; EnvironmentError when
  /// the machine refuses.
  explicit SweepStore(std::string file, Access access = Access::Write);
  SweepStore(const SweepStore&) = delete;
  SweepStore& operator=(const SweepStore&) = delete;
  ~SweepStore();

  /// The row of that definition, if it is there.
  std::optional<ComparisonRow> row(const std::string& definition) const;
  /// One transaction. A row that is there already stays, unless it failed.
  /// @throws EnvironmentError, such as when the disk is full; what was put before stays.
  void put(const SweepRow& row);

 private:
  class Statement;

  void execute(const char* sql) const;
  void open(Access access);
  void prepare_schema(Access access) const;
  void write_ahead() const;
  [[noreturn]] void fail() const;

  std::string file_;
  sqlite3* database_ = nullptr;
  std::unique_ptr<Statement> select_;
  std::unique_ptr<Statement> insert_;
};

}  // namespace isobar::results
