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
  std::optional<uint32_t> keep;      // versions to keep from now on; unset: the key's number stays
  std::string files_id =
      {};  // an artifact of kind files; empty: the files of an earlier binding, as the README says
};

// The effect of a change of durable facts. Commit `facts`, then call Apply with them.
struct PublishPlan {
  DurableFacts facts;                       // empty if all facts are known already
  std::vector<std::string> artifacts = {};  // the artifact and its difference: both must exist at Apply
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
  kIntact,     // every file can be read and is the same file as at the import
  kComparing,  // like kIntact, and the node compares the digests of the files now; OriginNote::reason has the
               // progress
  kMutable,    // shared objects that others may replace or delete: a source, but not a copy
  kGone,       // a file cannot be read or has changed: the origin can no longer be a source
  kUnclear,    // the check failed: the state of the files is not known
  kSilent,     // the node did not answer
};

}  // namespace tensorcast::global_store
