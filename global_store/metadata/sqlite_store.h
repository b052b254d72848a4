// The metadata store in one SQLite file (FORMAT.md): WAL, every commit synced, one connection that writes and
// one that reads. A lock on the file keeps a second global store out while this one lives, however it ends.
// Nothing is committed once the file (or its log) was removed or replaced: that is DATA_LOSS.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

struct SqliteOptions {
  std::string path;
  uint64_t max_database_bytes = 0;  // 0: what the disk holds
};

// ALREADY_EXISTS when another process has it open, DATA_LOSS when the file is damaged or no database,
// FAILED_PRECONDITION when a newer version, or something other than a global store, wrote it.
absl::StatusOr<std::unique_ptr<MetadataStore>> OpenSqliteStore(const SqliteOptions& options);

}  // namespace tensorcast::global_store
