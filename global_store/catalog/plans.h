// Requests to change the catalog, and its answers. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

struct BindRequest {
  std::string key;
  std::string artifact_id;
  std::optional<uint64_t> expected;  // compare-and-swap on the revision; 0: the key must not exist
  std::optional<uint32_t> keep;      // versions to keep from now on; unset: as before
  std::string files_id =
      {};  // an artifact of kind files; empty: the files of an earlier binding, as the README says
};

// The effect of a change of durable facts. Commit `facts`, then Apply them.
struct PublishPlan {
  DurableFacts facts;  // empty if all of them are known already
  std::vector<std::string>
      artifacts;  // must exist when the facts are applied: the artifact and the difference
  bool existed = false;
  bool difference_existed = false;  // the given difference was known already
  uint64_t key_revision = 0;
  std::string files_id = {};  // the files that the key binds with the artifact
};

struct KeyPlan {
  DurableFacts facts;
  KeyRecord key;
};

// The result of checking an origin's files.
enum class OriginFinding : uint8_t {
  kIntact,     // every file can be read and has its identity from the import
  kComparing,  // like kIntact, and the node reads the files to compare digests; OriginNote::reason tells the
               // progress
  kMutable,    // shared objects that others may replace or delete: a source, but not a copy
  kGone,       // a file cannot be read or has changed: the origin can no longer be a source
  kUnclear,    // the check failed this time, so nothing is known
  kSilent,     // the node did not answer
};

}  // namespace tensorcast::global_store
