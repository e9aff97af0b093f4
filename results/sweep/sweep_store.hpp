#pragma once

#include "results/sweep/run_kind.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

struct sqlite3;

namespace isobar::results {

/// Result of a run, keyed by a text that holds everything that determines it.
struct SweepRow {
  std::string definition;
  std::string outcome;                         ///< of its kind, or `failed_outcome`
  std::vector<std::optional<double>> numbers;  ///< in the order of `RunKind::stored`
  std::string reason;                          ///< why it has no numbers
};
/// The row of a run that failed.
SweepRow failed_row(const std::string& definition, const std::string& reason, const RunKind& kind);
/// JSON on one line. Deterministic.
std::string sweep_row_to_json(const SweepRow& row, const RunKind& kind);
/// Reads a row. @throws InputError naming `name`, the file that holds the text.
SweepRow sweep_row_from_json(const std::string& text, const std::string& name, const RunKind& kind);

/// Rows of sweeps of one kind in an SQLite database, which has a table for each kind; each is written as soon as it is
/// known. Other processes may read and write it at the same time. Rows that a process has stored survive when it is
/// killed.
class SweepStore {
 public:
  /// `Read` needs no write permission in the folder of the database and creates no file there.
  enum class Access { Read, Write };

  /// Opens the database, or creates it with `Write`.
  /// @throws InputError for a file that is not a sweep's database; EnvironmentError when the file cannot be opened or
  /// created.
  SweepStore(std::string file, const RunKind& kind, Access access = Access::Write);
  SweepStore(const SweepStore&) = delete;
  SweepStore& operator=(const SweepStore&) = delete;
  ~SweepStore();

  /// The row with this definition, or none.
  std::optional<SweepRow> row(const std::string& definition) const;
  /// Stores a row in one transaction. An existing row is kept, unless it failed.
  /// @throws EnvironmentError, such as when the disk is full; rows stored before are kept.
  void put(const SweepRow& row);

 private:
  class Statement;

  void execute(const char* sql) const;
  void open(Access access);
  void prepare_schema(Access access) const;
  bool has_table() const;
  void write_ahead() const;
  [[noreturn]] void fail() const;

  std::string file_;
  const RunKind* kind_;
  sqlite3* database_ = nullptr;
  std::unique_ptr<Statement> select_;  // null where there is no table, and so no row
  std::unique_ptr<Statement> insert_;
};

}  // namespace isobar::results
