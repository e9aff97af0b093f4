#include "results/sweep/sweep_store.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"
#include "results/comparison.hpp"

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

std::string create_table(const RunKind& kind)
{
  std::string columns;
  for (const auto& [name, is_count] : kind.stored)
    columns += fmt::format("{} {}, ", name, is_count ? "INTEGER" : "REAL");
  return fmt::format(
      "CREATE TABLE IF NOT EXISTS {} (definition TEXT PRIMARY KEY, outcome TEXT NOT NULL, {}reason TEXT NOT NULL) "
      "STRICT",
      kind.table, columns);
}

/// All columns but the definition.
std::vector<std::string> columns_of(const RunKind& kind)
{
  std::vector<std::string> columns = {"outcome", "reason"};
  for (const auto& column : kind.stored) columns.push_back(column.name);
  return columns;
}

std::string select_row(const RunKind& kind)
{
  return fmt::format("SELECT {} FROM {} WHERE definition = ?1", fmt::join(columns_of(kind), ", "), kind.table);
}

std::string insert_row(const RunKind& kind)
{
  std::vector<std::string> values = {"?1"};
  std::vector<std::string> updates;
  for (const auto& column : columns_of(kind)) {
    values.push_back(fmt::format("?{}", values.size() + 1));
    updates.push_back(fmt::format("{0} = excluded.{0}", column));
  }
  return fmt::format(
      "INSERT INTO {0} (definition, {1}) VALUES ({2}) ON CONFLICT (definition) DO UPDATE SET {3} "
      "WHERE {0}.outcome = '{4}'",
      kind.table, fmt::join(columns_of(kind), ", "), fmt::join(values, ", "), fmt::join(updates, ", "), failed_outcome);
}

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

}  // namespace

SweepRow failed_row(const std::string& definition, const std::string& reason, const RunKind& kind)
{
  SweepRow row{definition, std::string(failed_outcome), {}, reason};
  row.numbers.resize(kind.stored.size());
  return row;
}

std::string sweep_row_to_json(const SweepRow& row, const RunKind& kind)
{
  using Json = nlohmann::ordered_json;
  Json json = {{"definition", row.definition}, {"outcome", row.outcome}};
  for (std::size_t i = 0; i < kind.stored.size(); ++i) {
    const auto& [name, is_count] = kind.stored[i];
    const auto& number = row.numbers.at(i);
    json[name] = !number ? Json(nullptr) : is_count ? Json(static_cast<std::uint64_t>(*number)) : Json(*number);
  }
  json["reason"] = row.reason;
  return json_line(json);
}

SweepRow sweep_row_from_json(const std::string& text, const std::string& name, const RunKind& kind)
{
  const DocumentNode document = parse_json(text, name);
  FaultList faults(name);
  MappingReader reader(document, "", faults);
  SweepRow row;
  row.definition = reader.required_text("definition");
  std::vector<std::string> outcomes = kind.outcomes;
  outcomes.emplace_back(failed_outcome);
  row.outcome = reader.required_choice("outcome", outcomes);
  for (const auto& column : kind.stored) row.numbers.push_back(reader.optional_number(column.name));
  row.reason = reader.required_text("reason");
  reader.refuse_unknown();
  faults.throw_if_any();
  return row;
}

/// A prepared statement.
class SweepStore::Statement {
 public:
  Statement(const SweepStore& store, const std::string& sql) : store_(&store)
  {
    if (sqlite3_prepare_v2(store.database_, sql.c_str(), -1, &statement_, nullptr) != SQLITE_OK) store.fail();
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() { sqlite3_finalize(statement_); }

  void bind(int column, const std::string& text)
  {
    require(sqlite3_bind_text(statement_, column, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT));
  }
  /// A column of whole numbers takes a whole double as such.
  void bind(int column, const std::optional<double>& number)
  {
    require(number ? sqlite3_bind_double(statement_, column, *number) : sqlite3_bind_null(statement_, column));
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
  std::optional<double> number(int column) const
  {
    if (sqlite3_column_type(statement_, column) == SQLITE_NULL) return std::nullopt;
    return sqlite3_column_double(statement_, column);
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

SweepStore::SweepStore(std::string file, const RunKind& kind, Access access) : file_(std::move(file)), kind_(&kind)
{
  try {
    open(access);
    sqlite3_busy_handler(database_, wait_for_others, nullptr);
    prepare_schema(access);
    if (has_table()) select_ = std::make_unique<Statement>(*this, select_row(kind));
    if (access == Access::Write) insert_ = std::make_unique<Statement>(*this, insert_row(kind));
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
    Statement statement(*this, fmt::format("PRAGMA {}", name));
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
  if (has_table()) return;
  execute("BEGIN IMMEDIATE");  // two processes that begin at once create it one after the other
  execute(create_table(*kind_).c_str());
  execute(fmt::format("PRAGMA application_id = {}", application_id).c_str());
  execute(fmt::format("PRAGMA user_version = {}", schema_version).c_str());
  execute("COMMIT");
}

bool SweepStore::has_table() const
{
  Statement statement(*this, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1");
  statement.bind(1, kind_->table);
  return statement.step();
}

std::optional<SweepRow> SweepStore::row(const std::string& definition) const
{
  if (!select_) return std::nullopt;
  select_->reset();
  select_->bind(1, definition);
  if (!select_->step()) {
    select_->reset();
    return std::nullopt;
  }
  SweepRow row;
  row.definition = definition;
  row.outcome = select_->text(0);
  row.reason = select_->text(1);
  for (std::size_t i = 0; i < kind_->stored.size(); ++i)
    row.numbers.push_back(select_->number(static_cast<int>(i) + 2));
  select_->reset();
  return row;
}

void SweepStore::put(const SweepRow& row)
{
  insert_->reset();
  insert_->bind(1, row.definition);
  insert_->bind(2, row.outcome);
  insert_->bind(3, row.reason);
  for (std::size_t i = 0; i < kind_->stored.size(); ++i) insert_->bind(static_cast<int>(i) + 4, row.numbers.at(i));
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
