// The schema of FORMAT.md: making it, and refusing files that have another. Private to this folder.
#pragma once

#include "absl/status/status.h"
#include "global_store/metadata/sqlite_connection.h"

namespace tensorcast::global_store {

inline constexpr int kSchemaVersion = 6;

// Makes the tables of an empty database. FAILED_PRECONDITION when another version or another program made it.
absl::Status PrepareSchema(SqliteConnection& connection);

}  // namespace tensorcast::global_store
