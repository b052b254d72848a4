#include "global_store/metadata/sqlite_schema.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

// Tells a database of ours from another program's, which must not be written to.
constexpr int64_t kApplicationId = 0x54436d64;  // "TCmd"

constexpr char kCreate[] = R"sql(
BEGIN IMMEDIATE;
CREATE TABLE artifacts (
  artifact_id TEXT PRIMARY KEY NOT NULL, image_bytes INTEGER NOT NULL, chunk_bytes INTEGER NOT NULL,
  tensor_count INTEGER NOT NULL, created_ns INTEGER NOT NULL, updated_ns INTEGER NOT NULL, deleted INTEGER NOT NULL,
  versioned INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE origins (
  artifact_id TEXT NOT NULL, position INTEGER NOT NULL, origin BLOB NOT NULL,
  PRIMARY KEY (artifact_id, position)
) WITHOUT ROWID;
CREATE TABLE manifests (
  id INTEGER PRIMARY KEY, artifact_id TEXT NOT NULL, piece INTEGER NOT NULL, bytes BLOB NOT NULL,
  UNIQUE (artifact_id, piece)
);
CREATE TABLE keys (
  name TEXT PRIMARY KEY NOT NULL, artifact_id TEXT NOT NULL, revision INTEGER NOT NULL,
  updated_ns INTEGER NOT NULL, deleted INTEGER NOT NULL, keep INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE key_versions (
  name TEXT NOT NULL, revision INTEGER NOT NULL, artifact_id TEXT NOT NULL, bound_ns INTEGER NOT NULL,
  PRIMARY KEY (name, revision)
) WITHOUT ROWID;
CREATE TABLE nodes (node_id TEXT PRIMARY KEY NOT NULL, name TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks (
  artifact_id TEXT NOT NULL, node_id TEXT NOT NULL, location TEXT NOT NULL, task_id TEXT NOT NULL,
  node_name TEXT NOT NULL, asked_by TEXT NOT NULL, traceparent TEXT NOT NULL, state INTEGER NOT NULL,
  failures INTEGER NOT NULL, error_code INTEGER NOT NULL, error TEXT NOT NULL, created_ns INTEGER NOT NULL,
  updated_ns INTEGER NOT NULL, PRIMARY KEY (artifact_id, node_id, location)
) WITHOUT ROWID;
CREATE TABLE requests (
  request TEXT PRIMARY KEY NOT NULL, response BLOB NOT NULL, recorded_ns INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests (recorded_ns);
PRAGMA application_id = 1413705060;
PRAGMA user_version = 6;
COMMIT;
)sql";
static_assert(kApplicationId == 1413705060 && kSchemaVersion == 6, "kCreate names them");

}  // namespace

absl::Status PrepareSchema(SqliteConnection& connection) {
  TC_ASSIGN_OR_RETURN(const int64_t application, connection.QueryInteger("PRAGMA application_id"));
  TC_ASSIGN_OR_RETURN(int64_t version, connection.QueryInteger("PRAGMA user_version"));
  TC_ASSIGN_OR_RETURN(const int64_t tables, connection.QueryInteger("SELECT count(*) FROM sqlite_schema"));
  // Empty: a new file, or one with a first start that did not come to its commit.
  if (application == 0 && version == 0 && tables == 0) {
    // Before anything is written: afterwards it would take a rewrite of the file.
    TC_RETURN_IF_ERROR(connection.Execute("PRAGMA auto_vacuum = INCREMENTAL"));
    TC_RETURN_IF_ERROR(connection.Execute(kCreate));
    version = kSchemaVersion;
  } else if (application != kApplicationId) {
    return absl::FailedPreconditionError(
        "the file is a database of another program: give the global store a metadata path of its own");
  }
  if (version != kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the database has schema version ", version, ", this program ", kSchemaVersion,
        ": run the version that wrote it, or give the global store another global_store.metadata_path"));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast::global_store
