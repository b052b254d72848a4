// Owns the objects of SQLite's C interface (https://www.sqlite.org/c3ref/intro.html), and converts SQLite's
// error codes to absl::Status. Private to this folder. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tensorcast::global_store {

// Bytes to bind as a blob instead of a text.
struct Blob {
  std::string_view bytes;
};

// A prepared statement. Columns count from 0. Bound values are borrowed until the statement has run.
class SqliteStatement {
 public:
  SqliteStatement() = default;
  SqliteStatement(SqliteStatement&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
  SqliteStatement& operator=(SqliteStatement&& other) noexcept {
    std::swap(statement_, other.statement_);
    return *this;
  }
  ~SqliteStatement();

  // Sets all parameters, in their order: texts, blobs and integers.
  template <class... Values>
  SqliteStatement& Bind(const Values&... values) {
    int parameter = 0;
    (Set(++parameter, values), ...);
    return *this;
  }

  // Runs the statement. Calls `each` for each row, until `each` returns an error. Always resets the
  // statement.
  using EachRow = absl::FunctionRef<absl::Status(const SqliteStatement& row)>;
  absl::Status ForEachRow(EachRow each);
  // Runs a statement without rows.
  absl::Status Run();

  std::string Text(int column) const;  // also for blobs
  int64_t Integer(int column) const;

 private:
  friend class SqliteConnection;
  explicit SqliteStatement(sqlite3_stmt* statement) : statement_(statement) {}
  void Set(int parameter, std::string_view text);
  void Set(int parameter, Blob blob);
  void Set(int parameter, int64_t value);

  sqlite3_stmt* statement_ = nullptr;
};

class SqliteConnection {
 public:
  static absl::StatusOr<SqliteConnection> Open(const std::string& path);
  SqliteConnection(SqliteConnection&& other) noexcept : db_(std::exchange(other.db_, nullptr)) {}
  // REQUIRES: the connection's statements are destroyed.
  ~SqliteConnection();

  // The path of the file, with symbolic links resolved.
  std::string path() const;
  absl::Status Execute(const char* sql);
  absl::StatusOr<SqliteStatement> Prepare(std::string_view sql);
  // The single integer that a query (a PRAGMA) returns.
  absl::StatusOr<int64_t> QueryInteger(std::string_view sql);

 private:
  explicit SqliteConnection(sqlite3* db) : db_(db) {}
  sqlite3* db_;
};

// Converts SQLite's error codes. `db` may be null.
absl::Status SqliteStatus(int code, sqlite3* db);

}  // namespace tensorcast::global_store
