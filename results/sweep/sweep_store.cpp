#include "results/sweep/sweep_store.hpp"

#include "core/base/document.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <sqlite3.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace isobar::results {

namespace {

/// "isob": marks our databases.
constexpr int application_id = 0x69736f62;
constexpr int schema_version = 1;
/// Longest wait for another process that locks the database.
constexpr int patience_milliseconds = 60'000;
constexpr int pause_milliseconds = 20;

/// SQLite's busy handler: called while another process locks the database; 0 gives up.
int wait_for_others(void* /*unused*/, int calls)
{
  if (interrupted() || calls >= patience_milliseconds / pause_milliseconds) return 0;
  sqlite3_sleep(pause_milliseconds);
  return 1;
}

constexpr auto create_table = R"(
  CREATE TABLE IF NOT EXISTS runs (
    definition TEXT PRIMARY KEY,
    outcome TEXT NOT NULL,
    objective_s REAL,
    objective_bound_s REAL,
    bottleneck_s REAL,
    step_time_s REAL,
    step_bound_s REAL,
    peak_memory_bytes REAL,
    stages INTEGER NOT NULL,
    reason TEXT NOT NULL
  ) STRICT)";

constexpr auto select_row = R"(
  SELECT outcome, objective_s, objective_bound_s, bottleneck_s, step_time_s, step_bound_s, peak_memory_bytes, stages,
         reason
  FROM runs WHERE definition = ?1)";

constexpr auto insert_row = R"(
  INSERT INTO runs (outcome, objective_s, objective_bound_s, bottleneck_s, step_time_s, step_bound_s,
                    peak_memory_bytes, stages, reason, definition)
  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
  ON CONFLICT (definition) DO UPDATE
  SET outcome = excluded.outcome, objective_s = excluded.objective_s, objective_bound_s = excluded.objective_bound_s,
      bottleneck_s = excluded.bottleneck_s, step_time_s = excluded.step_time_s, step_bound_s = excluded.step_bound_s,
      peak_memory_bytes = excluded.peak_memory_bytes, stages = excluded.stages, reason = excluded.reason
  WHERE runs.outcome = 'failed')";

/// A path as part of a URI.
std::string uri_path(const std::string& path)
{
  std::string text;
  for (const char character : path) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '/';
    text += is_plain ? std::string(1, character) : fmt::format("%{:02X}", static_cast<unsigned char>(character));
  }
  return text;
}

/// Visits the quantities of a row in the order of the columns.
template <typename Row, typename Visit>
void visit_quantities(Row& row, Visit visit)
{
  visit("objective_s", row.objective);
  visit("objective_bound_s", row.objective_bound);
  visit("bottleneck_s", row.bottleneck);
  visit("step_time_s", row.step_time);
  visit("step_bound_s", row.step_bound);
  visit("peak_memory_bytes", row.peak_memory);
}

}  // namespace

std::string sweep_row_to_json(const SweepRow& row)
{
  nlohmann::ordered_json json = {{"definition", row.definition}, {"outcome", row.row.outcome}};
  visit_quantities(row.row, [&json](const char* key, const auto& quantity) {
    json[key] = quantity ? nlohmann::ordered_json(quantity->value) : nlohmann::ordered_json(nullptr);
  });
  json["stages"] = row.row.stages;
  json["reason"] = row.row.reason;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

SweepRow sweep_row_from_json(const std::string& text, const std::string& name)
{
  const DocumentNode document = parse_json(text, name);
  FaultList faults(name);
  MappingReader reader(document, "", faults);
  SweepRow row;
  row.definition = reader.required_text("definition");
  std::vector<std::string> outcomes = outcome_names();
  outcomes.emplace_back(failed_outcome);
  row.row.outcome = reader.required_choice("outcome", outcomes);
  visit_quantities(row.row, [&reader](const char* key, auto& quantity) {
    if (const auto number = reader.optional_number(key)) quantity.emplace(*number);
  });
  row.row.stages = reader.required_count("stages");
  row.row.reason = reader.required_text("reason");
  reader.refuse_unknown();
  faults.throw_if_any();
  return row;
}

/// A prepared statement.
class SweepStore::Statement {
 public:
  Statement(const SweepStore& store, const char* sql) : store_(&store)
  {
    if (sqlite3_prepare_v2(store.database_, sql, -1, &statement_, nullptr) != SQLITE_OK) store.fail();
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() { sqlite3_finalize(statement_); }

  void bind(int column, const std::string& text)
  {
    require(sqlite3_bind_text(statement_, column, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT));
  }
  template <typename Quantity>
  void bind(int column, const std::optional<Quantity>& quantity)
  {
    require(quantity ? sqlite3_bind_double(statement_, column, quantity->value)
                     : sqlite3_bind_null(statement_, column));
  }
  void bind_count(int column, std::size_t count)
  {
    require(sqlite3_bind_int64(statement_, column, static_cast<sqlite3_int64>(count)));
  }

  /// Whether there is a row to read.
  bool step()
  {
    const int status = sqlite3_step(statement_);
    if (status != SQLITE_ROW && status != SQLITE_DONE) {
      const ResetAtEnd end{statement_};
      store_->fail();
    }
    return status == SQLITE_ROW;
  }
  void reset() { sqlite3_reset(statement_); }

  std::string text(int column) const
  {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return {text, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
  }
  template <typename Quantity>
  void read(int column, std::optional<Quantity>& quantity) const
  {
    if (sqlite3_column_type(statement_, column) == SQLITE_NULL) return;
    quantity.emplace(sqlite3_column_double(statement_, column));
  }
  std::size_t count(int column) const { return static_cast<std::size_t>(sqlite3_column_int64(statement_, column)); }

 private:
  struct ResetAtEnd {
    sqlite3_stmt* statement;
    ~ResetAtEnd() { sqlite3_reset(statement); }
  };

  void require(int status) const
  {
    if (status != SQLITE_OK) store_->fail();
  }

  const SweepStore* store_;
  sqlite3_stmt* statement_ = nullptr;
};

SweepStore::SweepStore(std::string file, Access access) : file_(std::move(file))
{
  try {
    open(access);
    sqlite3_busy_handler(database_, wait_for_others, nullptr);
    prepare_schema(access);
    select_ = std::make_unique<Statement>(*this, select_row);
    if (access == Access::Write) insert_ = std::make_unique<Statement>(*this, insert_row);
  } catch (...) {
    select_.reset();
    sqlite3_close(database_);
    throw;
  }
}

SweepStore::~SweepStore()
{
  select_.reset();
  insert_.reset();
  sqlite3_close(database_);
}

void SweepStore::open(Access access)
{
  // Names such as ":memory:" are special to SQLite; absolute paths are not.
  const std::filesystem::path path = std::filesystem::absolute(file_);
  if (access == Access::Write) {
    // Without write permission SQLite would open the file for reading, and report a misleading error later.
    const bool exists = ::access(path.c_str(), F_OK) == 0;
    const bool may_write =
        ::access(path.parent_path().c_str(), W_OK) == 0 && (!exists || ::access(path.c_str(), W_OK) == 0);
    if (!may_write) throw EnvironmentError(file_, std::string("cannot write there: ") + std::strerror(errno));
    if (sqlite3_open(path.c_str(), &database_) != SQLITE_OK) fail();
    return;
  }
  // Without a write-ahead log no process writes, so SQLite need not create files to coordinate with others.
  const bool has_log = ::access((path.string() + "-wal").c_str(), F_OK) == 0;
  const std::string uri = "file:" + uri_path(path.string()) + (has_log ? "" : "?immutable=1");
  if (sqlite3_open_v2(uri.c_str(), &database_, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr) != SQLITE_OK) fail();
}

void SweepStore::prepare_schema(Access access) const
{
  const auto pragma = [this](const char* name) {
    Statement statement(*this, fmt::format("PRAGMA {}", name).c_str());
    statement.step();
    return statement.count(0);
  };
  const bool is_new = pragma("schema_version") == 0;
  const auto owner = pragma("application_id");
  if (owner != application_id && !(is_new && owner == 0 && access == Access::Write)) {
    throw InputError(file_, "is a database, but not of a sweep; name another file");
  }
  if (!is_new && pragma("user_version") != schema_version) {
    throw InputError(file_, fmt::format("has format {}; this version reads format {}; name another file",
                                        pragma("user_version"), schema_version));
  }
  if (access == Access::Read) return;
  write_ahead();
  if (!is_new) return;
  execute("BEGIN IMMEDIATE");  // two processes that begin at once create it one after the other
  execute(create_table);
  execute(fmt::format("PRAGMA application_id = {}", application_id).c_str());
  execute(fmt::format("PRAGMA user_version = {}", schema_version).c_str());
  execute("COMMIT");
}

std::optional<ComparisonRow> SweepStore::row(const std::string& definition) const
{
  select_->reset();
  select_->bind(1, definition);
  if (!select_->step()) {
    select_->reset();
    return std::nullopt;
  }
  ComparisonRow row;
  row.outcome = select_->text(0);
  int column = 1;
  visit_quantities(row, [&](const char*, auto& quantity) { select_->read(column++, quantity); });
  row.stages = select_->count(7);
  row.reason = select_->text(8);
  select_->reset();
  return row;
}

void SweepStore::put(const SweepRow& row)
{
  insert_->reset();
  insert_->bind(1, row.row.outcome);
  int column = 2;
  visit_quantities(row.row, [&](const char*, const auto& quantity) { insert_->bind(column++, quantity); });
  insert_->bind_count(8, row.row.stages);
  insert_->bind(9, row.row.reason);
  insert_->bind(10, row.definition);
  insert_->step();
  insert_->reset();
}

void SweepStore::write_ahead() const
{
  // A commit goes to a log next to the database, which outlives the process. Here SQLite does not wait for
  // other processes, whatever the time-out is.
  for (int waited = 0;; waited += pause_milliseconds) {
    const int status = sqlite3_exec(database_, "PRAGMA journal_mode = WAL", nullptr, nullptr, nullptr);
    if (status == SQLITE_OK) break;
    if (status != SQLITE_BUSY || interrupted() || waited >= patience_milliseconds) fail();
    sqlite3_sleep(pause_milliseconds);
  }
  execute("PRAGMA synchronous = NORMAL");
}

void SweepStore::execute(const char* sql) const
{
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail();
}

void SweepStore::fail() const
{
  const int status = sqlite3_errcode(database_) & 0xff;
  if (status == SQLITE_BUSY) throw_if_interrupted();
  if (status == SQLITE_NOTADB || status == SQLITE_CORRUPT) {
    throw InputError(file_, fmt::format("is not a valid database ({}); name another file", sqlite3_errmsg(database_)));
  }
  const int system_error = status == SQLITE_IOERR || status == SQLITE_CANTOPEN ? sqlite3_system_errno(database_) : 0;
  const std::string cause = status == SQLITE_FULL ? std::strerror(ENOSPC)
                            : system_error != 0   ? std::strerror(system_error)
                                                  : sqlite3_errmsg(database_);
  std::error_code unknown;
  const bool has_rows = std::filesystem::exists(file_, unknown);
  throw EnvironmentError(file_, cause + (has_rows ? "; rows stored before are kept" : ""));
}

}  // namespace isobar::results
