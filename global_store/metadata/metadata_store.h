// Where the global store keeps what must survive it: artifacts and their manifests, keys, origins, owners of
// node ids, and the answers of recent mutations. One interface, one contract suite (testing/), a source file
// or folder a backend.
//
// Thread-safe. Commits are atomic and, where the backend is durable, synced before they return. A commit that
// failed changed nothing. Errors: RESOURCE_EXHAUSTED for a full disk, DATA_LOSS for a damaged store,
// UNAVAILABLE where trying again may help.
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

// The answer to a mutation, so that its repetition gets the same one.
struct RequestRecord {
  std::string request;   // opaque: identifies caller's request id, method and content
  std::string response;  // opaque
  absl::Time recorded;
};

// The canonical bytes, opaque here. Borrowed for the call.
struct ManifestBlob {
  std::string artifact_id;
  std::string_view bytes;
};

struct WriteBatch {
  DurableFacts facts;  // the tombstone of an artifact also removes its manifest, origins and tasks
  std::vector<ManifestBlob> manifests;
  std::optional<RequestRecord> request;
};

struct PurgeTimes {
  absl::Time requests;
  absl::Time tombstones;  // of deleted artifacts and keys
  absl::Time versions;    // tombstones of released versions (ArtifactRecord::versioned)
  absl::Time tasks;       // that ended
};

class MetadataStore {
 public:
  virtual ~MetadataStore() = default;

  virtual std::string_view name() const = 0;  // "sqlite", "memory", "etcd"

  virtual absl::Status Commit(const WriteBatch& batch) = 0;
  // Everything but manifests and requests.
  virtual absl::StatusOr<DurableFacts> Load() = 0;
  // NOT_FOUND when there is none of that artifact.
  virtual absl::StatusOr<std::string> ReadManifest(std::string_view artifact_id) = 0;
  // The response that was recorded for `request`, if any.
  virtual absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view request) = 0;
  // Drops what is older.
  virtual absl::Status Purge(const PurgeTimes& before) = 0;
  // Why the next commit would be refused, as far as can be told without one. Cheap.
  virtual absl::Status Check() const = 0;
};

// One that forgets everything with its process: for tests and for a daemon that works alone.
std::unique_ptr<MetadataStore> MakeMemoryStore();

struct SqliteOptions {
  std::string path;
  uint64_t max_database_bytes = 0;  // 0: what the disk holds
};

// In one SQLite file (FORMAT.md): a write-ahead log, every commit synced, one connection that writes and one
// that reads. A lock on the file keeps a second global store out while this one lives, however it ends.
// Nothing is committed once the file (or its log) was removed or replaced: that is DATA_LOSS. ALREADY_EXISTS
// when another process has it open, DATA_LOSS when the file is damaged or not a database, FAILED_PRECONDITION
// when a newer version, or something other than a global store, wrote it.
absl::StatusOr<std::unique_ptr<MetadataStore>> OpenSqliteStore(const SqliteOptions& options);

// Says what the store behind it does: a span (MetadataStore/Put, ...), the time and the errors of each
// operation. A span is the child of the thread's current one.
std::unique_ptr<MetadataStore> MakeObservedStore(std::unique_ptr<MetadataStore> store);

// `kind` is "sqlite" (with the file's path; its folder must exist) or "memory". INVALID_ARGUMENT for another
// kind.
absl::StatusOr<std::unique_ptr<MetadataStore>> OpenMetadataStore(std::string_view kind,
                                                                 const std::string& path);

}  // namespace tensorcast::global_store
