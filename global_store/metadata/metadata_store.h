// Durable storage of the global store: artifacts and their manifests, keys, origins, owners of node ids, and
// the responses to recent mutations. One interface, one contract suite (testing/), a source file or folder
// per backend.
//
// Thread-safe. Commits are atomic and, where the backend is durable, synced before they return. A failed
// commit changes nothing. Errors: RESOURCE_EXHAUSTED for a full disk, DATA_LOSS for a damaged store,
// UNAVAILABLE where a retry may help.
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

// The response to a mutation, recorded to answer repetitions of its request.
struct RequestRecord {
  std::string request;   // opaque: identifies the caller's request id, method and content
  std::string response;  // opaque
  absl::Time recorded;
};

// The canonical bytes of a manifest, which the store does not interpret. Borrowed for the call.
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
  absl::Time tombstones;  // of deleted artifacts and keys
  absl::Time versions;    // tombstones of released versions (ArtifactRecord::versioned)
  absl::Time tasks;       // of ended tasks
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
  // Deletes what is older than these times.
  virtual absl::Status Purge(const PurgeTimes& before) = 0;
  // The error that the next commit would return, as far as that is known without a commit. Cheap.
  virtual absl::Status Check() const = 0;
};

// A store that ends with its process: for tests and for a daemon that works alone.
std::unique_ptr<MetadataStore> MakeMemoryStore();

struct SqliteOptions {
  std::string path;
  uint64_t max_database_bytes = 0;  // 0: limited by the disk
};

// A store in one SQLite file (FORMAT.md): a write-ahead log, every commit synced, one connection that writes
// and one that reads. A lock on the file excludes a second global store while this one lives. After the file
// (or its log) was removed or replaced, commits fail with DATA_LOSS. Errors of OpenSqliteStore:
// ALREADY_EXISTS when another process has the file open; DATA_LOSS when the file is damaged or not a
// database; FAILED_PRECONDITION when a newer version, or another program, wrote the file.
absl::StatusOr<std::unique_ptr<MetadataStore>> OpenSqliteStore(const SqliteOptions& options);

// Wraps `store` and records each operation: a span (MetadataStore/Put, ...), its duration and its errors. The
// span is a child of the thread's current span.
std::unique_ptr<MetadataStore> MakeObservedStore(std::unique_ptr<MetadataStore> store);

// `kind` is "sqlite" (with the file's path; its folder must exist) or "memory". INVALID_ARGUMENT for another
// kind.
absl::StatusOr<std::unique_ptr<MetadataStore>> OpenMetadataStore(std::string_view kind,
                                                                 const std::string& path);

}  // namespace tensorcast::global_store
