// A thin cover over SQLite's C interface (https://www.sqlite.org/c3ref/intro.html): RAII, and absl::Status
// for its codes. Private to this folder. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tensorcast::global_store {

// A prepared statement. Parameters and columns count from 1 and 0, as in SQLite. Text and blobs that are
// bound are borrowed until Reset.
class SqliteStatement {
 public:
  SqliteStatement() = default;
  SqliteStatement(SqliteStatement&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
  SqliteStatement& operator=(SqliteStatement&& other) noexcept {
    std::swap(statement_, other.statement_);
    return *this;
  }
  ~SqliteStatement();

  SqliteStatement& BindText(int parameter, std::string_view text);
  SqliteStatement& BindBlob(int parameter, std::string_view bytes);
  SqliteStatement& BindInteger(int parameter, int64_t value);

  // True: a row is there to be read.
  absl::StatusOr<bool> Step();
  // Runs a statement that gives no rows, and resets it whatever happened.
  absl::Status Run();
  void Reset();

  std::string Text(int column) const;  // blobs too
  int64_t Integer(int column) const;

 private:
  friend class SqliteConnection;
  explicit SqliteStatement(sqlite3_stmt* statement) : statement_(statement) {}
  sqlite3_stmt* statement_ = nullptr;
};

class SqliteConnection {
 public:
  static absl::StatusOr<SqliteConnection> Open(const std::string& path);
  SqliteConnection(SqliteConnection&& other) noexcept : db_(std::exchange(other.db_, nullptr)) {}
  // REQUIRES: its statements are gone.
  ~SqliteConnection();

  // Of the file, with symbolic links resolved.
  std::string path() const;
  absl::Status Execute(const char* sql);
  absl::StatusOr<SqliteStatement> Prepare(std::string_view sql);
  // The one integer that a query (a PRAGMA) gives.
  absl::StatusOr<int64_t> QueryInteger(std::string_view sql);

 private:
  explicit SqliteConnection(sqlite3* db) : db_(db) {}
  sqlite3* db_;
};

// The only place that classifies SQLite's codes. `db` may be null.
absl::Status SqliteStatus(int code, sqlite3* db);

}  // namespace tensorcast::global_store
