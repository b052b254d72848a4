#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "global_store/metadata/database_file.h"
#include "global_store/metadata/metadata_store.h"
#include "global_store/metadata/sqlite_connection.h"
#include "global_store/metadata/sqlite_schema.h"

namespace tensorcast::global_store {
namespace {

// SQLite limits a blob to 10^9 bytes and holds one in memory whole.
constexpr size_t kPieceBytes = size_t{16} << 20;

// What opening a database takes: the index of its log (32 KiB), and a page or two.
constexpr uint64_t kReserveBytes = 128 << 10;

struct WriteStatements {
  SqliteStatement put_artifact, drop_origins, put_origin, drop_manifest, put_piece, put_key, drop_versions,
      put_version, put_node, drop_node, put_task, drop_task, drop_tasks, put_request;
};

struct ReadStatements {
  SqliteStatement artifacts, origins, keys, versions, nodes, tasks, pieces, response;
};

absl::StatusOr<WriteStatements> PrepareWrites(SqliteConnection& db) {
  WriteStatements all;
  const std::pair<SqliteStatement*, const char*> wanted[] = {
      {&all.put_artifact, "REPLACE INTO artifacts VALUES (?, ?, ?, ?, ?, ?, ?, ?)"},
      {&all.drop_origins, "DELETE FROM origins WHERE artifact_id = ?"},
      {&all.put_origin, "INSERT INTO origins VALUES (?, ?, ?)"},
      {&all.drop_manifest, "DELETE FROM manifests WHERE artifact_id = ?"},
      {&all.put_piece, "INSERT INTO manifests (artifact_id, piece, bytes) VALUES (?, ?, ?)"},
      {&all.put_key, "REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?)"},
      {&all.drop_versions, "DELETE FROM key_versions WHERE name = ?"},
      {&all.put_version, "INSERT INTO key_versions VALUES (?, ?, ?, ?)"},
      {&all.put_node, "REPLACE INTO nodes VALUES (?, ?)"},
      {&all.drop_node, "DELETE FROM nodes WHERE node_id = ?"},
      {&all.put_task, "REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"},
      {&all.drop_task, "DELETE FROM tasks WHERE artifact_id = ? AND node_id = ? AND location = ?"},
      {&all.drop_tasks, "DELETE FROM tasks WHERE artifact_id = ?"},
      {&all.put_request, "REPLACE INTO requests VALUES (?, ?, ?)"},
  };
  for (const auto& [statement, sql] : wanted) {
    TC_ASSIGN_OR_RETURN(*statement, db.Prepare(sql));
  }
  return all;
}

absl::StatusOr<ReadStatements> PrepareReads(SqliteConnection& db) {
  ReadStatements all;
  const std::pair<SqliteStatement*, const char*> wanted[] = {
      {&all.artifacts,
       "SELECT artifact_id, image_bytes, chunk_bytes, tensor_count, created_ns, updated_ns, deleted, "
       "versioned FROM artifacts"},
      {&all.origins, "SELECT artifact_id, origin FROM origins ORDER BY artifact_id, position"},
      {&all.keys, "SELECT name, artifact_id, revision, updated_ns, deleted, keep FROM keys ORDER BY name"},
      {&all.versions,
       "SELECT name, artifact_id, revision, bound_ns FROM key_versions ORDER BY name, revision DESC"},
      {&all.nodes, "SELECT node_id, name FROM nodes"},
      {&all.tasks,
       "SELECT artifact_id, node_id, location, task_id, node_name, asked_by, traceparent, state, failures, "
       "error_code, error, created_ns, updated_ns FROM tasks ORDER BY artifact_id, node_id, location"},
      {&all.pieces, "SELECT bytes FROM manifests WHERE artifact_id = ? ORDER BY piece"},
      {&all.response, "SELECT response FROM requests WHERE request = ?"},
  };
  for (const auto& [statement, sql] : wanted) {
    TC_ASSIGN_OR_RETURN(*statement, db.Prepare(sql));
  }
  return all;
}

absl::Status ReadTasks(SqliteStatement& rows, std::vector<TaskRecord>& tasks) {
  const absl::Cleanup reset = [&rows] { rows.Reset(); };
  while (true) {
    TC_ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return absl::OkStatus();
    const absl::StatusOr<Location> location = Location::Parse(rows.Text(2));
    const int64_t state = rows.Integer(7);
    if (!location.ok() || state < 0 || state > static_cast<int64_t>(TaskState::kFailed)) {
      return absl::DataLossError("metadata database: a task without a location or a state");
    }
    const auto code = static_cast<absl::StatusCode>(rows.Integer(9));
    tasks.push_back({.task_id = rows.Text(3),
                     .artifact_id = rows.Text(0),
                     .node_id = rows.Text(1),
                     .location = *location,
                     .node_name = rows.Text(4),
                     .asked_by = rows.Text(5),
                     .traceparent = rows.Text(6),
                     .state = static_cast<TaskState>(state),
                     .failures = static_cast<uint32_t>(rows.Integer(8)),
                     .error = absl::Status(code, rows.Text(10)),
                     .created = absl::FromUnixNanos(rows.Integer(11)),
                     .updated = absl::FromUnixNanos(rows.Integer(12))});
  }
}

// Two connections, each with its statements and its lock: WAL lets one read while the other writes. A
// statement is bound, stepped and reset by one call at a time; one that is not reset would hold a read
// transaction open, and keep the log from being cut.
class SqliteStore final : public MetadataStore {
 public:
  SqliteStore(DatabaseFile file, SqliteConnection writer, SqliteConnection reader, WriteStatements writes,
              ReadStatements reads)
      : file_(std::move(file)),
        writer_(std::move(writer)),
        reader_(std::move(reader)),
        writes_(std::move(writes)),
        reads_(std::move(reads)) {}

  std::string_view name() const override { return "sqlite"; }
  absl::Status Commit(const WriteBatch& batch) override;
  absl::StatusOr<DurableFacts> Load() override;
  absl::StatusOr<std::string> ReadManifest(std::string_view artifact_id) override;
  absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view request) override;
  absl::Status Purge(const PurgeTimes& before) override;
  absl::Status Check() const override { return file_.Check(); }

 private:
  absl::Status WriteAll(const WriteBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status WriteArtifact(const ArtifactRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status WriteKey(const KeyRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status WriteTask(const TaskRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status WriteManifest(const ManifestBlob& manifest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status LoadKeys(std::vector<KeyRecord>& keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);
  absl::Status LoadArtifacts(std::map<std::string, ArtifactRecord>& artifacts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);

  const DatabaseFile file_;  // outlives the connections
  absl::Mutex write_mutex_;
  absl::Mutex read_mutex_;
  // Connections before statements: these go first.
  SqliteConnection writer_ ABSL_GUARDED_BY(write_mutex_);
  SqliteConnection reader_ ABSL_GUARDED_BY(read_mutex_);
  WriteStatements writes_ ABSL_GUARDED_BY(write_mutex_);
  ReadStatements reads_ ABSL_GUARDED_BY(read_mutex_);
};

absl::Status SqliteStore::Commit(const WriteBatch& batch) {
  absl::MutexLock lock(&write_mutex_);
  TC_RETURN_IF_ERROR(Check());
  // IMMEDIATE takes the write lock now. A transaction that begins by reading could fail to get it in the
  // middle.
  TC_RETURN_IF_ERROR(writer_.Execute("BEGIN IMMEDIATE"));
  absl::Status status = WriteAll(batch);
  if (status.ok()) status = writer_.Execute("COMMIT");
  if (status.ok()) return status;
  // SQLite may have rolled back by itself, and then says that there is nothing to roll back.
  writer_.Execute("ROLLBACK").IgnoreError();
  return status;
}

absl::Status SqliteStore::WriteAll(const WriteBatch& batch) {
  for (const ArtifactRecord& record : batch.facts.artifacts) TC_RETURN_IF_ERROR(WriteArtifact(record));
  for (const KeyRecord& record : batch.facts.keys) TC_RETURN_IF_ERROR(WriteKey(record));
  for (const NodeBinding& binding : batch.facts.nodes) {
    if (binding.name.empty()) {
      TC_RETURN_IF_ERROR(writes_.drop_node.BindText(1, binding.node_id).Run());
    } else {
      TC_RETURN_IF_ERROR(writes_.put_node.BindText(1, binding.node_id).BindText(2, binding.name).Run());
    }
  }
  for (const TaskRecord& record : batch.facts.tasks) TC_RETURN_IF_ERROR(WriteTask(record));
  if (batch.manifest.has_value()) TC_RETURN_IF_ERROR(WriteManifest(*batch.manifest));
  if (!batch.request.has_value()) return absl::OkStatus();
  return writes_.put_request.BindText(1, batch.request->request)
      .BindBlob(2, batch.request->response)
      .BindInteger(3, absl::ToUnixNanos(batch.request->recorded))
      .Run();
}

absl::Status SqliteStore::WriteKey(const KeyRecord& record) {
  TC_RETURN_IF_ERROR(writes_.put_key.BindText(1, record.name)
                         .BindText(2, record.artifact_id)
                         .BindInteger(3, static_cast<int64_t>(record.revision))
                         .BindInteger(4, absl::ToUnixNanos(record.updated))
                         .BindInteger(5, record.deleted ? 1 : 0)
                         .BindInteger(6, record.keep)
                         .Run());
  // A record is written whole: its versions take the place of those before.
  TC_RETURN_IF_ERROR(writes_.drop_versions.BindText(1, record.name).Run());
  for (const KeyVersion& version : record.earlier) {
    TC_RETURN_IF_ERROR(writes_.put_version.BindText(1, record.name)
                           .BindInteger(2, static_cast<int64_t>(version.revision))
                           .BindText(3, version.artifact_id)
                           .BindInteger(4, absl::ToUnixNanos(version.bound))
                           .Run());
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::WriteArtifact(const ArtifactRecord& record) {
  TC_RETURN_IF_ERROR(writes_.put_artifact.BindText(1, record.artifact_id)
                         .BindInteger(2, static_cast<int64_t>(record.image_bytes))
                         .BindInteger(3, static_cast<int64_t>(record.chunk_bytes))
                         .BindInteger(4, record.tensor_count)
                         .BindInteger(5, absl::ToUnixNanos(record.created))
                         .BindInteger(6, absl::ToUnixNanos(record.updated))
                         .BindInteger(7, record.deleted ? 1 : 0)
                         .BindInteger(8, record.versioned ? 1 : 0)
                         .Run());
  // The row stays as a tombstone; the bytes go.
  if (record.deleted) {
    TC_RETURN_IF_ERROR(writes_.drop_manifest.BindText(1, record.artifact_id).Run());
    TC_RETURN_IF_ERROR(writes_.drop_tasks.BindText(1, record.artifact_id).Run());
  }
  // A record is written whole: its origins take the place of those before.
  TC_RETURN_IF_ERROR(writes_.drop_origins.BindText(1, record.artifact_id).Run());
  int64_t position = 0;
  for (const Origin& origin : record.origins) {
    TC_RETURN_IF_ERROR(writes_.put_origin.BindText(1, record.artifact_id)
                           .BindInteger(2, position++)
                           .BindBlob(3, EncodeOrigin(origin))
                           .Run());
  }
  return absl::OkStatus();
}

// A cancelled task is dropped: unlike artifacts and keys, tasks leave no tombstone.
absl::Status SqliteStore::WriteTask(const TaskRecord& record) {
  const std::string location = record.location.ToString();
  if (record.cancelled) {
    return writes_.drop_task.BindText(1, record.artifact_id)
        .BindText(2, record.node_id)
        .BindText(3, location)
        .Run();
  }
  return writes_.put_task.BindText(1, record.artifact_id)
      .BindText(2, record.node_id)
      .BindText(3, location)
      .BindText(4, record.task_id)
      .BindText(5, record.node_name)
      .BindText(6, record.asked_by)
      .BindText(7, record.traceparent)
      .BindInteger(8, static_cast<int64_t>(record.state))
      .BindInteger(9, record.failures)
      .BindInteger(10, record.error.raw_code())
      .BindText(11, record.error.message())
      .BindInteger(12, absl::ToUnixNanos(record.created))
      .BindInteger(13, absl::ToUnixNanos(record.updated))
      .Run();
}

absl::Status SqliteStore::WriteManifest(const ManifestBlob& manifest) {
  TC_RETURN_IF_ERROR(writes_.drop_manifest.BindText(1, manifest.artifact_id).Run());
  int64_t piece = 0;
  size_t offset = 0;
  do {  // an empty manifest is one empty piece
    const std::string_view bytes = manifest.bytes.substr(offset, kPieceBytes);
    TC_RETURN_IF_ERROR(
        writes_.put_piece.BindText(1, manifest.artifact_id).BindInteger(2, piece++).BindBlob(3, bytes).Run());
    offset += bytes.size();
  } while (offset < manifest.bytes.size());
  return absl::OkStatus();
}

absl::Status SqliteStore::LoadArtifacts(std::map<std::string, ArtifactRecord>& artifacts) {
  const absl::Cleanup reset = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    reads_.artifacts.Reset();
    reads_.origins.Reset();
  };
  while (true) {
    TC_ASSIGN_OR_RETURN(const bool row, reads_.artifacts.Step());
    if (!row) break;
    ArtifactRecord& record = artifacts[reads_.artifacts.Text(0)];
    record.artifact_id = reads_.artifacts.Text(0);
    record.image_bytes = static_cast<uint64_t>(reads_.artifacts.Integer(1));
    record.chunk_bytes = static_cast<uint64_t>(reads_.artifacts.Integer(2));
    record.tensor_count = static_cast<uint32_t>(reads_.artifacts.Integer(3));
    record.created = absl::FromUnixNanos(reads_.artifacts.Integer(4));
    record.updated = absl::FromUnixNanos(reads_.artifacts.Integer(5));
    record.deleted = reads_.artifacts.Integer(6) != 0;
    record.versioned = reads_.artifacts.Integer(7) != 0;
  }
  while (true) {
    TC_ASSIGN_OR_RETURN(const bool row, reads_.origins.Step());
    if (!row) return absl::OkStatus();
    auto artifact = artifacts.find(reads_.origins.Text(0));
    if (artifact == artifacts.end()) {
      return absl::DataLossError("metadata database: an origin without its artifact");
    }
    absl::StatusOr<Origin> origin = DecodeOrigin(reads_.origins.Text(1));
    if (!origin.ok()) {
      return absl::DataLossError(absl::StrCat("metadata database: ", origin.status().message()));
    }
    artifact->second.origins.push_back(*std::move(origin));
  }
}

absl::Status SqliteStore::LoadKeys(std::vector<KeyRecord>& keys) {
  const absl::Cleanup reset = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    reads_.keys.Reset();
    reads_.versions.Reset();
  };
  while (true) {
    TC_ASSIGN_OR_RETURN(const bool row, reads_.keys.Step());
    if (!row) break;
    keys.push_back({.name = reads_.keys.Text(0),
                    .artifact_id = reads_.keys.Text(1),
                    .revision = static_cast<uint64_t>(reads_.keys.Integer(2)),
                    .updated = absl::FromUnixNanos(reads_.keys.Integer(3)),
                    .deleted = reads_.keys.Integer(4) != 0,
                    .keep = static_cast<uint32_t>(reads_.keys.Integer(5))});
  }
  // Both come in order of name.
  auto key = keys.begin();
  while (true) {
    TC_ASSIGN_OR_RETURN(const bool row, reads_.versions.Step());
    if (!row) return absl::OkStatus();
    const std::string name = reads_.versions.Text(0);
    while (key != keys.end() && key->name < name) ++key;
    if (key == keys.end() || key->name != name) {
      return absl::DataLossError("metadata database: a version without its key");
    }
    key->earlier.push_back({.artifact_id = reads_.versions.Text(1),
                            .revision = static_cast<uint64_t>(reads_.versions.Integer(2)),
                            .bound = absl::FromUnixNanos(reads_.versions.Integer(3))});
  }
}

absl::StatusOr<DurableFacts> SqliteStore::Load() {
  absl::MutexLock lock(&read_mutex_);
  DurableFacts facts;
  std::map<std::string, ArtifactRecord> artifacts;
  TC_RETURN_IF_ERROR(LoadArtifacts(artifacts));
  TC_RETURN_IF_ERROR(ReadTasks(reads_.tasks, facts.tasks));
  for (auto& [id, record] : artifacts) facts.artifacts.push_back(std::move(record));
  TC_RETURN_IF_ERROR(LoadKeys(facts.keys));
  const absl::Cleanup reset = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { reads_.nodes.Reset(); };
  while (true) {
    TC_ASSIGN_OR_RETURN(const bool row, reads_.nodes.Step());
    if (!row) return facts;
    facts.nodes.push_back({.node_id = reads_.nodes.Text(0), .name = reads_.nodes.Text(1)});
  }
}

absl::StatusOr<std::string> SqliteStore::ReadManifest(std::string_view artifact_id) {
  absl::MutexLock lock(&read_mutex_);
  const absl::Cleanup reset = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { reads_.pieces.Reset(); };
  reads_.pieces.BindText(1, artifact_id);
  std::string bytes;
  bool any = false;
  while (true) {
    TC_ASSIGN_OR_RETURN(const bool row, reads_.pieces.Step());
    if (!row) break;
    any = true;
    bytes += reads_.pieces.Text(0);
  }
  if (!any) return absl::NotFoundError(absl::StrCat("there is no manifest of ", artifact_id));
  return bytes;
}

absl::StatusOr<std::optional<std::string>> SqliteStore::FindResponse(std::string_view request) {
  absl::MutexLock lock(&read_mutex_);
  const absl::Cleanup reset = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { reads_.response.Reset(); };
  reads_.response.BindText(1, request);
  TC_ASSIGN_OR_RETURN(const bool row, reads_.response.Step());
  if (!row) return std::nullopt;
  return reads_.response.Text(0);
}

absl::Status SqliteStore::Purge(const PurgeTimes& before) {
  absl::MutexLock lock(&write_mutex_);
  TC_RETURN_IF_ERROR(Check());
  // Each statement is a transaction of its own: what a failure leaves is dropped by the next purge.
  const std::pair<const char*, absl::Time> wanted[] = {
      {"DELETE FROM requests WHERE recorded_ns < ?", before.requests},
      {"DELETE FROM artifacts WHERE deleted AND NOT versioned AND updated_ns < ?", before.tombstones},
      {"DELETE FROM artifacts WHERE deleted AND versioned AND updated_ns < ?", before.versions},
      {"DELETE FROM keys WHERE deleted AND updated_ns < ?", before.tombstones},
      {"DELETE FROM tasks WHERE state <> 0 AND updated_ns < ?", before.tasks},
  };
  static_assert(static_cast<int>(TaskState::kOpen) == 0, "the last statement says so");
  for (const auto& [sql, time] : wanted) {
    TC_ASSIGN_OR_RETURN(SqliteStatement drop, writer_.Prepare(sql));
    TC_RETURN_IF_ERROR(drop.BindInteger(1, absl::ToUnixNanos(time)).Run());
  }
  return writer_.Execute("PRAGMA incremental_vacuum");
}

// WAL lets readers go on during a write. FULL: a commit is on the disk when it returns.
absl::Status Configure(SqliteConnection& writer, const SqliteOptions& options) {
  TC_RETURN_IF_ERROR(PrepareSchema(writer));
  TC_RETURN_IF_ERROR(
      writer.Execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                     "PRAGMA journal_size_limit = 67108864"));
  if (options.max_database_bytes == 0) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const int64_t page_bytes, writer.QueryInteger("PRAGMA page_size"));
  const auto pages = static_cast<int64_t>(options.max_database_bytes) / std::max<int64_t>(page_bytes, 1);
  return writer.Execute(absl::StrCat("PRAGMA max_page_count = ", std::max<int64_t>(pages, 1)).c_str());
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetadataStore>> OpenSqliteStore(const SqliteOptions& options) {
  if (options.path.empty()) return absl::InvalidArgumentError("the sqlite metadata store needs a path");
  TC_ASSIGN_OR_RETURN(DatabaseFile file, DatabaseFile::Open(options.path));
  const std::string reserve = absl::StrCat(options.path, ".reserve");
  // Given free for SQLite to open with on a full disk, and taken again below.
  ReleaseSpace(reserve);
  TC_ASSIGN_OR_RETURN(SqliteConnection writer, SqliteConnection::Open(options.path));
  TC_RETURN_IF_ERROR(Annotate(Configure(writer, options), options.path));
  // After the writer has made the schema and the log: the reader may make nothing.
  TC_ASSIGN_OR_RETURN(SqliteConnection reader, SqliteConnection::Open(options.path));
  TC_RETURN_IF_ERROR(Annotate(reader.Execute("PRAGMA query_only = 1"), options.path));
  TC_ASSIGN_OR_RETURN(WriteStatements writes, PrepareWrites(writer));
  TC_ASSIGN_OR_RETURN(ReadStatements reads, PrepareReads(reader));
  // By now both are there, for as long as a connection is.
  for (const char* suffix : {"-wal", "-shm"}) {
    TC_RETURN_IF_ERROR(file.Watch(absl::StrCat(writer.path(), suffix)));
  }
  ReserveSpace(reserve, kReserveBytes);
  TC_RETURN_IF_ERROR(file.Check());  // SQLite opened the file that is locked
  return std::make_unique<SqliteStore>(std::move(file), std::move(writer), std::move(reader),
                                       std::move(writes), std::move(reads));
}

}  // namespace tensorcast::global_store
