// Stores the durable facts of the global store, the manifests of artifacts, and the responses to recent
// mutations. Each backend has its own source file or folder, and passes the contract suite of testing/.
//
// Thread-safe. A commit is atomic. A durable backend syncs the commit before Commit returns. A failed commit
// changes nothing; etcd/store.h names one exception. Errors: RESOURCE_EXHAUSTED for a full disk, DATA_LOSS
// for a damaged store, UNAVAILABLE where a retry may help.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

// The response to a mutation, kept to answer a repeated request.
struct RequestRecord {
  std::string request;   // opaque: identifies the caller's request id, method and content
  std::string response;  // opaque
  absl::Time recorded;
};

// The canonical bytes of a manifest. The store does not interpret them. `bytes` is borrowed for the call.
struct ManifestBlob {
  std::string artifact_id;
  std::string_view bytes;
};

struct WriteBatch {
  DurableFacts facts;  // the tombstone of an artifact also deletes its manifest, origins and tasks
  std::vector<ManifestBlob> manifests;
  std::optional<RequestRecord> request;
};

struct PurgeTimes {
  absl::Time requests;
  absl::Time tombstones;  // tombstones of deleted artifacts and keys
  absl::Time versions;    // tombstones of released versions (ArtifactRecord::versioned)
  absl::Time tasks;       // ended tasks
};

class MetadataStore {
 public:
  virtual ~MetadataStore() = default;

  virtual std::string_view name() const = 0;  // "sqlite", "memory", "etcd"

  virtual absl::Status Commit(const WriteBatch& batch) = 0;
  // Returns everything except manifests and requests.
  virtual absl::StatusOr<DurableFacts> Load() = 0;
  // NOT_FOUND when the artifact has no manifest here.
  virtual absl::StatusOr<std::string> ReadManifest(std::string_view artifact_id) = 0;
  // The response that was recorded for `request`, if any.
  virtual absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view request) = 0;
  // Deletes the records that are older than the time for their kind.
  virtual absl::Status Purge(const PurgeTimes& before) = 0;
  // Returns an error if the store knows that the next commit would fail. Cheap.
  virtual absl::Status Check() const = 0;
};

// A store that ends with its process: for tests and for a daemon that works alone.
std::unique_ptr<MetadataStore> MakeMemoryStore();

struct SqliteOptions {
  std::string path;
  uint64_t max_database_bytes = 0;  // 0: no limit
};

// Opens a store in one SQLite file (FORMAT.md) with a write-ahead log. The store locks the file, which
// excludes a second global store. If the file or its log is removed or replaced, commits fail with DATA_LOSS.
// Errors of OpenSqliteStore: ALREADY_EXISTS if another process has the file open; DATA_LOSS if the file is
// damaged or is not a database; FAILED_PRECONDITION if the file has another schema version or belongs to
// another program.
absl::StatusOr<std::unique_ptr<MetadataStore>> OpenSqliteStore(const SqliteOptions& options);

// Wraps `store`: records a span (MetadataStore/Put, ...), the duration and the error of each operation. The
// span is a child of the thread's current span.
std::unique_ptr<MetadataStore> MakeObservedStore(std::unique_ptr<MetadataStore> store);

// `kind`: "sqlite" or "memory"; INVALID_ARGUMENT for another kind. `path`: the file for "sqlite", in an
// existing folder.
absl::StatusOr<std::unique_ptr<MetadataStore>> OpenMetadataStore(std::string_view kind,
                                                                 const std::string& path);

}  // namespace tensorcast::global_store
