#pragma once

#include "results/comparison.hpp"

#include <memory>
#include <optional>
#include <string>

struct sqlite3;

namespace isobar::results {

/// Result of a run, keyed by a text that holds everything that determines it. Only the members of `row` from `outcome`
/// on are stored.
struct SweepRow {
  std::string definition;
  ComparisonRow row;
};
/// JSON on one line. Deterministic.
std::string sweep_row_to_json(const SweepRow& row);
/// Reads a row. @throws InputError naming `name`, the file that holds the text.
SweepRow sweep_row_from_json(const std::string& text, const std::string& name);

/// Rows of sweeps in an SQLite database, each written as soon as it is known. Other processes may read and write it at
/// the same time. Rows that a process has stored survive when it is killed.
class SweepStore {
 public:
  /// `Read` needs no write permission in the folder of the database and creates no file there.
  enum class Access { Read, Write };

  /// Opens the database, or creates it with `Write`.
  /// @throws InputError for a file that is not a sweep's database; EnvironmentError when the file cannot be opened or
  /// created.
  explicit SweepStore(std::string file, Access access = Access::Write);
  SweepStore(const SweepStore&) = delete;
  SweepStore& operator=(const SweepStore&) = delete;
  ~SweepStore();

  /// The row with this definition, or none.
  std::optional<ComparisonRow> row(const std::string& definition) const;
  /// Stores a row in one transaction. An existing row is kept, unless it failed.
  /// @throws EnvironmentError, such as when the disk is full; rows stored before are kept.
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
