#include "global_store/metadata/sqlite_connection.h"

#include <sqlite3.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

constexpr int kBusyTimeoutMs = 5000;  // another reader of the file, such as a backup

// By SQLite's code, since errors of one status have different remedies.
std::string_view Advice(int code) {
  constexpr std::string_view kMoreMemory = "give the global store more memory";
  if (code == SQLITE_IOERR_NOMEM) return kMoreMemory;
  switch (code & 0xff) {  // the primary code
    case SQLITE_FULL:
      return "free space on the disk of the database";
    case SQLITE_NOMEM:
      return kMoreMemory;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "restore the file from a backup";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "try again when no other program uses the file";
    case SQLITE_IOERR:
      return "check the disk of the database, then try again";
    case SQLITE_INTERRUPT:
      return "try again";
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_AUTH:
      return "check the permissions of the file and of its folder";
    default:  // SQLITE_TOOBIG, too: the store splits what may be large
      return "report this defect of the global store";
  }
}

// What a caller can do decides: make room (RESOURCE_EXHAUSTED), restore (DATA_LOSS), try again
// (UNAVAILABLE), or fix permissions.
absl::StatusCode Classify(int code) {
  switch (code & 0xff) {  // the primary code
    case SQLITE_FULL:
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::StatusCode::kDataLoss;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_IOERR:
    case SQLITE_INTERRUPT:
      return absl::StatusCode::kUnavailable;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_AUTH:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status StatusOf(int code, sqlite3* db, std::string_view what) {
  if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return absl::OkStatus();
  const std::string detail = db == nullptr ? "" : absl::StrCat(" (", sqlite3_errmsg(db), ")");
  return absl::Status(Classify(code),
                      absl::StrCat(what, ": ", sqlite3_errstr(code), detail, "; ", Advice(code)));
}

}  // namespace

absl::Status SqliteStatus(int code, sqlite3* db) {
  const char* const path = db == nullptr ? nullptr : sqlite3_db_filename(db, "main");
  return StatusOf(
      code, db,
      absl::StrCat("use the metadata database", path == nullptr ? "" : " ", path == nullptr ? "" : path));
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

// SQLITE_STATIC: nothing is copied, so what is bound has to stay until the statement has run.
void SqliteStatement::Set(int parameter, std::string_view text) {
  sqlite3_bind_text64(statement_, parameter, text.empty() ? "" : text.data(), text.size(), SQLITE_STATIC,
                      SQLITE_UTF8);
}

void SqliteStatement::Set(int parameter, Blob blob) {
  // A null pointer would bind NULL; an empty blob is meant.
  sqlite3_bind_blob64(statement_, parameter, blob.bytes.empty() ? "" : blob.bytes.data(), blob.bytes.size(),
                      SQLITE_STATIC);
}

void SqliteStatement::Set(int parameter, int64_t value) { sqlite3_bind_int64(statement_, parameter, value); }

// A statement that is not reset would hold a read transaction open, and keep the log from being cut.
absl::Status SqliteStatement::ForEachRow(EachRow each) {
  const absl::Cleanup reset = [this] {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  };
  while (true) {
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_ROW) return SqliteStatus(code, sqlite3_db_handle(statement_));
    TC_RETURN_IF_ERROR(each(*this));
  }
}

absl::Status SqliteStatement::Run() {
  return ForEachRow([](const SqliteStatement&) { return absl::OkStatus(); });
}

// As a blob: a text with a zero byte in it would be cut.
std::string SqliteStatement::Text(int column) const {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? std::string() : std::string(bytes, static_cast<size_t>(size));
}

int64_t SqliteStatement::Integer(int column) const { return sqlite3_column_int64(statement_, column); }

absl::StatusOr<SqliteConnection> SqliteConnection::Open(const std::string& path) {
  sqlite3* db = nullptr;
  // NOMUTEX: a connection is used under a lock of ours, so SQLite need not take one of its own.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &db, flags, nullptr);
  SqliteConnection connection(db);  // to be closed even when it did not open
  TC_RETURN_IF_ERROR(StatusOf(code, db, absl::StrCat("open the metadata database ", path)));
  sqlite3_busy_timeout(db, kBusyTimeoutMs);
  sqlite3_extended_result_codes(db, 1);
  return connection;
}

SqliteConnection::~SqliteConnection() { sqlite3_close(db_); }

std::string SqliteConnection::path() const { return sqlite3_db_filename(db_, "main"); }

absl::Status SqliteConnection::Execute(const char* sql) {
  return SqliteStatus(sqlite3_exec(db_, sql, nullptr, nullptr, nullptr), db_);
}

absl::StatusOr<SqliteStatement> SqliteConnection::Prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(db_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  TC_RETURN_IF_ERROR(SqliteStatus(code, db_));
  return SqliteStatement(statement);
}

absl::StatusOr<int64_t> SqliteConnection::QueryInteger(std::string_view sql) {
  TC_ASSIGN_OR_RETURN(SqliteStatement statement, Prepare(sql));
  int64_t value = 0;
  TC_RETURN_IF_ERROR(statement.ForEachRow([&value](const SqliteStatement& row) {
    value = row.Integer(0);
    return absl::OkStatus();
  }));
  return value;
}

}  // namespace tensorcast::global_store
