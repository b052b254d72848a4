#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "global_store/metadata/database_file.h"
#include "global_store/metadata/fact_records.h"
#include "global_store/metadata/metadata_store.h"
#include "global_store/metadata/sqlite_connection.h"

namespace tensorcast::global_store {
namespace {

// Tells a database of ours from another program's, which must not be written to.
constexpr int64_t kApplicationId = 0x54436d64;  // "TCmd"
constexpr int kSchemaVersion = 7;

constexpr char kCreate[] = R"sql(
BEGIN IMMEDIATE;
CREATE TABLE facts (
  kind INTEGER NOT NULL, name TEXT NOT NULL, record BLOB NOT NULL, ageing INTEGER NOT NULL, updated_ns INTEGER NOT NULL,
  PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE manifests (
  id INTEGER PRIMARY KEY, artifact_id TEXT NOT NULL, piece INTEGER NOT NULL, bytes BLOB NOT NULL,
  UNIQUE (artifact_id, piece)
);
CREATE TABLE requests (
  request TEXT PRIMARY KEY NOT NULL, response BLOB NOT NULL, recorded_ns INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests (recorded_ns);
PRAGMA application_id = 1413705060;
PRAGMA user_version = 7;
COMMIT;
)sql";
static_assert(kApplicationId == 1413705060 && kSchemaVersion == 7, "kCreate names them");

// SQLite limits a blob to 10^9 bytes and holds one in memory whole.
constexpr size_t kPieceBytes = size_t{16} << 20;

// What opening a database takes: the index of its log (32 KiB), and a page or two.
constexpr uint64_t kReserveBytes = 128 << 10;

struct WriteStatements {
  SqliteStatement put_fact, drop_fact, drop_facts, drop_manifest, put_piece, put_request;
};

struct ReadStatements {
  SqliteStatement facts, pieces, response;
};

using Wanted = std::initializer_list<std::pair<SqliteStatement*, const char*>>;

absl::Status Prepare(SqliteConnection& db, Wanted wanted) {
  for (const auto& [statement, sql] : wanted) {
    TC_ASSIGN_OR_RETURN(*statement, db.Prepare(sql));
  }
  return absl::OkStatus();
}

absl::Status Prepare(SqliteConnection& db, WriteStatements& all) {
  return Prepare(db, {{&all.put_fact, "REPLACE INTO facts VALUES (?, ?, ?, ?, ?)"},
                      {&all.drop_fact, "DELETE FROM facts WHERE kind = ? AND name = ?"},
                      {&all.drop_facts, "DELETE FROM facts WHERE kind = ? AND name >= ? AND name < ?"},
                      {&all.drop_manifest, "DELETE FROM manifests WHERE artifact_id = ?"},
                      {&all.put_piece, "INSERT INTO manifests (artifact_id, piece, bytes) VALUES (?, ?, ?)"},
                      {&all.put_request, "REPLACE INTO requests VALUES (?, ?, ?)"}});
}

absl::Status Prepare(SqliteConnection& db, ReadStatements& all) {
  return Prepare(db, {{&all.facts, "SELECT kind, name, record FROM facts ORDER BY kind, name"},
                      {&all.pieces, "SELECT bytes FROM manifests WHERE artifact_id = ? ORDER BY piece"},
                      {&all.response, "SELECT response FROM requests WHERE request = ?"}});
}

// Two connections, each with its statements and its lock: WAL lets one read while the other writes.
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
  absl::Status WriteFact(const Fact& fact) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status WriteManifest(const ManifestBlob& manifest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);

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

// REQUIRES: a transaction is open. Where one write fails, the caller rolls all of them back.
absl::Status SqliteStore::WriteAll(const WriteBatch& batch) {
  for (const Fact& fact : Encode(batch.facts)) TC_RETURN_IF_ERROR(WriteFact(fact));
  for (const ManifestBlob& manifest : batch.manifests) TC_RETURN_IF_ERROR(WriteManifest(manifest));
  if (!batch.request.has_value()) return absl::OkStatus();
  return writes_.put_request
      .Bind(batch.request->request, Blob{batch.request->response}, absl::ToUnixNanos(batch.request->recorded))
      .Run();
}

absl::Status SqliteStore::WriteFact(const Fact& fact) {
  const auto kind = static_cast<int64_t>(fact.kind);
  if (fact.forgotten) return writes_.drop_fact.Bind(kind, fact.name).Run();
  if (fact.DeletesArtifact()) {
    TC_RETURN_IF_ERROR(writes_.drop_manifest.Bind(fact.name).Run());
    // The range of all names with the prefix: it ends in '/', and '0' is the next character.
    const std::string begin = TaskPrefix(fact.name);
    std::string end = begin;
    ++end.back();
    const auto task = static_cast<int64_t>(FactKind::kTask);
    TC_RETURN_IF_ERROR(writes_.drop_facts.Bind(task, begin, end).Run());
  }
  return writes_.put_fact
      .Bind(kind, fact.name, Blob{fact.record}, static_cast<int64_t>(fact.ageing),
            absl::ToUnixNanos(fact.updated))
      .Run();
}

absl::Status SqliteStore::WriteManifest(const ManifestBlob& manifest) {
  // A manifest of a previous publication goes with all of its pieces.
  TC_RETURN_IF_ERROR(writes_.drop_manifest.Bind(manifest.artifact_id).Run());
  int64_t piece = 0;
  size_t offset = 0;
  do {  // an empty manifest is one empty piece
    const std::string_view bytes = manifest.bytes.substr(offset, kPieceBytes);
    TC_RETURN_IF_ERROR(writes_.put_piece.Bind(manifest.artifact_id, piece++, Blob{bytes}).Run());
    offset += bytes.size();
  } while (offset < manifest.bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<DurableFacts> SqliteStore::Load() {
  absl::MutexLock lock(&read_mutex_);
  DurableFacts facts;
  TC_RETURN_IF_ERROR(reads_.facts.ForEachRow([&facts](const SqliteStatement& row) {
    return Decode(static_cast<FactKind>(row.Integer(0)), row.Text(1), row.Text(2), facts);
  }));
  return facts;
}

absl::StatusOr<std::string> SqliteStore::ReadManifest(std::string_view artifact_id) {
  absl::MutexLock lock(&read_mutex_);
  std::optional<std::string> bytes;
  TC_RETURN_IF_ERROR(reads_.pieces.Bind(artifact_id).ForEachRow([&bytes](const SqliteStatement& row) {
    if (!bytes.has_value()) bytes.emplace();
    *bytes += row.Text(0);
    return absl::OkStatus();
  }));
  if (!bytes.has_value()) return NoManifest(artifact_id);
  return *std::move(bytes);
}

absl::StatusOr<std::optional<std::string>> SqliteStore::FindResponse(std::string_view request) {
  absl::MutexLock lock(&read_mutex_);
  std::optional<std::string> response;
  TC_RETURN_IF_ERROR(reads_.response.Bind(request).ForEachRow([&response](const SqliteStatement& row) {
    response = row.Text(0);
    return absl::OkStatus();
  }));
  return response;
}

absl::Status SqliteStore::Purge(const PurgeTimes& before) {
  absl::MutexLock lock(&write_mutex_);
  TC_RETURN_IF_ERROR(Check());
  // Each statement is a transaction of its own: what a failure leaves is dropped by the next purge.
  TC_ASSIGN_OR_RETURN(SqliteStatement requests,
                      writer_.Prepare("DELETE FROM requests WHERE recorded_ns < ?"));
  TC_RETURN_IF_ERROR(requests.Bind(absl::ToUnixNanos(before.requests)).Run());
  TC_ASSIGN_OR_RETURN(SqliteStatement facts,
                      writer_.Prepare("DELETE FROM facts WHERE ageing = ? AND updated_ns < ?"));
  for (const Ageing ageing : kAgeings) {
    TC_RETURN_IF_ERROR(
        facts.Bind(static_cast<int64_t>(ageing), absl::ToUnixNanos(LimitOf(ageing, before))).Run());
  }
  // Gives the pages that the deletions freed back to the file system.
  return writer_.Execute("PRAGMA incremental_vacuum");
}

// Makes the tables of an empty database, and refuses one that another version or another program made.
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
    return absl::FailedPreconditionError(absl::StrCat(
        "open the metadata database ", connection.path(),
        ": the file is the database of another program; set another global_store.metadata_path"));
  }
  if (version != kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("open the metadata database ", connection.path(), ": the file has schema version ",
                     version, ", and this program uses schema version ", kSchemaVersion,
                     "; run the release that wrote the file, or set another global_store.metadata_path"));
  }
  return absl::OkStatus();
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
  if (options.path.empty()) {
    return absl::InvalidArgumentError(
        "open the sqlite metadata store: no path is given; set global_store.metadata_path");
  }
  TC_ASSIGN_OR_RETURN(DatabaseFile file, DatabaseFile::Open(options.path));
  const std::string reserve = absl::StrCat(options.path, ".reserve");
  // Given free for SQLite to open with on a full disk, and taken again below.
  ReleaseSpace(reserve);
  TC_ASSIGN_OR_RETURN(SqliteConnection writer, SqliteConnection::Open(options.path));
  TC_RETURN_IF_ERROR(Configure(writer, options));
  // After the writer has made the schema and the log: the reader may make nothing.
  TC_ASSIGN_OR_RETURN(SqliteConnection reader, SqliteConnection::Open(options.path));
  TC_RETURN_IF_ERROR(reader.Execute("PRAGMA query_only = 1"));
  WriteStatements writes;
  ReadStatements reads;
  TC_RETURN_IF_ERROR(Prepare(writer, writes));
  TC_RETURN_IF_ERROR(Prepare(reader, reads));
  // By now both are there, for as long as a connection is.
  for (const char* suffix : {"-wal", "-shm"}) {
    TC_RETURN_IF_ERROR(file.Watch(absl::StrCat(writer.path(), suffix)));
  }
  ReserveSpace(reserve, kReserveBytes);
  TC_RETURN_IF_ERROR(file.Check());  // SQLite opened the file that is locked
  return std::make_unique<SqliteStore>(std::move(file), std::move(writer), std::move(reader),
                                       std::move(writes), std::move(reads));
}

absl::StatusOr<std::unique_ptr<MetadataStore>> OpenMetadataStore(std::string_view kind,
                                                                 const std::string& path) {
  if (kind == "memory") return MakeMemoryStore();
  if (kind == "sqlite") return OpenSqliteStore({.path = path});
  return absl::InvalidArgumentError(absl::StrCat("open the metadata store: there is no kind \"", kind,
                                                 "\"; choose \"sqlite\" or \"memory\""));
}

}  // namespace tensorcast::global_store
