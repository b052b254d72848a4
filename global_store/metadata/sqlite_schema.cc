#include "global_store/metadata/sqlite_schema.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

constexpr int64_t kApplicationId = 0x54436d64;  // "TCmd"

// The first version's tables. A later one is what a migration makes of the one before, also for a new file:
// so there is one way to get there.
constexpr char kCreate[] = R"sql(
BEGIN IMMEDIATE;
CREATE TABLE artifacts (
  artifact_id TEXT PRIMARY KEY NOT NULL, image_bytes INTEGER NOT NULL, chunk_bytes INTEGER NOT NULL,
  tensor_count INTEGER NOT NULL, created_ns INTEGER NOT NULL, updated_ns INTEGER NOT NULL, deleted INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE origins (
  artifact_id TEXT NOT NULL, node_id TEXT NOT NULL, position INTEGER NOT NULL, path TEXT NOT NULL,
  bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, PRIMARY KEY (artifact_id, node_id, position)
) WITHOUT ROWID;
CREATE TABLE manifests (
  id INTEGER PRIMARY KEY, artifact_id TEXT NOT NULL, piece INTEGER NOT NULL, bytes BLOB NOT NULL,
  UNIQUE (artifact_id, piece)
);
CREATE TABLE keys (
  name TEXT PRIMARY KEY NOT NULL, artifact_id TEXT NOT NULL, revision INTEGER NOT NULL,
  updated_ns INTEGER NOT NULL, deleted INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE requests (
  request TEXT PRIMARY KEY NOT NULL, response BLOB NOT NULL, recorded_ns INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests (recorded_ns);
PRAGMA application_id = 1413705060;
PRAGMA user_version = 1;
COMMIT;
)sql";
static_assert(kApplicationId == 1413705060, "kCreate names it");

// Each from the version before, and all of it or nothing.
constexpr const char* kMigrations[] = {
    R"sql(
BEGIN IMMEDIATE;
CREATE TABLE nodes (node_id TEXT PRIMARY KEY NOT NULL, name TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 2;
COMMIT;
)sql",
    R"sql(
BEGIN IMMEDIATE;
CREATE TABLE wishes (
  artifact_id TEXT NOT NULL, node_id TEXT NOT NULL, location TEXT NOT NULL, wish_id TEXT NOT NULL,
  node_name TEXT NOT NULL, asked_by TEXT NOT NULL, traceparent TEXT NOT NULL, state INTEGER NOT NULL,
  failures INTEGER NOT NULL, error_code INTEGER NOT NULL, error TEXT NOT NULL, created_ns INTEGER NOT NULL,
  updated_ns INTEGER NOT NULL, PRIMARY KEY (artifact_id, node_id, location)
) WITHOUT ROWID;
PRAGMA user_version = 3;
COMMIT;
)sql"};
static_assert(kSchemaVersion == 1 + std::size(kMigrations), "every version but the first has a migration");

}  // namespace

absl::Status PrepareSchema(SqliteConnection& connection) {
  TC_ASSIGN_OR_RETURN(const int64_t application, connection.QueryInteger("PRAGMA application_id"));
  TC_ASSIGN_OR_RETURN(int64_t version, connection.QueryInteger("PRAGMA user_version"));
  TC_ASSIGN_OR_RETURN(const int64_t tables, connection.QueryInteger("SELECT count(*) FROM sqlite_schema"));
  // Empty: a new file, or one whose first start did not come to its commit.
  if (application == 0 && version == 0 && tables == 0) {
    // Before anything is written: afterwards it would take a rewrite of the file.
    TC_RETURN_IF_ERROR(connection.Execute("PRAGMA auto_vacuum = INCREMENTAL"));
    TC_RETURN_IF_ERROR(connection.Execute(kCreate));
    version = 1;
  } else if (application != kApplicationId) {
    return absl::FailedPreconditionError(
        "the file is a database of another program: give the global store a metadata path of its own");
  }
  if (version < 1 || version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the database has schema version ", version,
                                                      ", this program ", kSchemaVersion,
                                                      ": run the version that wrote it, or a newer one"));
  }
  for (; version < kSchemaVersion; ++version) {
    TC_RETURN_IF_ERROR(connection.Execute(kMigrations[version - 1]));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast::global_store
