// What the catalog is asked to change and what it answers. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

struct BindRequest {
  std::string key;
  std::string artifact_id;
  std::optional<uint64_t> expected;  // compare-and-swap on the revision; 0: the key must not exist
  std::optional<uint32_t> keep;      // versions to keep from now on; unset: as before
  std::string files_id =
      {};  // an artifact of kind files; empty: those of an earlier binding, as the README says
};

// What a change of durable facts would be. Commit `facts`, then Apply them.
struct PublishPlan {
  DurableFacts facts;  // may be empty: all of it is known
  bool existed = false;
  bool difference_existed = false;  // of the one that was given
  uint64_t key_revision = 0;
  std::string files_id = {};  // that the key binds with it
};

struct KeyPlan {
  DurableFacts facts;
  KeyRecord key;
};

// What came of looking at an origin's files.
enum class OriginFinding : uint8_t {
  kIntact,     // each can be read and has the identity that it was imported with
  kComparing,  // as kIntact, and its node reads them to compare their digests; the reason says how far it is
  kMutable,    // shared objects that others may replace or delete: a source, and not a copy
  kGone,       // one at least cannot or has not: nothing can be made of it any more
  kUnclear,    // its node could not tell just now
  kSilent,     // its node did not answer
};

}  // namespace tensorcast::global_store
