// Decides which origins of an artifact count as copies.
//
// Files of a node count while all of these are true:
// - The node found the files intact a short time ago. This finding is soft state.
// - After the import, the node read the files once more and found every digest right. This is a durable fact.
// - The files cannot be written without a trace.
//
// Shared objects count if the node that asks for the eviction found this version, and the version is
// immutable. Their digests are not compared again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/catalog/catalog.h"
#include "global_store/inventory/replica.h"
#include "global_store/membership/membership.h"

namespace tensorcast::global_store {

// The origins of an artifact as copies.
struct OriginsAsCopies {
  std::vector<const Origin*> intact;     // found intact within `age`
  std::vector<OriginToCheck> unchecked;  // the caller must ask their nodes, without a lock
  std::string others;                    // why other origins do not count: ", and ... is gone (...)"
  std::string comparing;                 // for people: an origin that is being compared; empty: none
};

// Decides which origins count as copies now. `reader`: the live node that checks shared objects. `age`: how
// long a finding holds, and the pause before a silent node is asked again.
OriginsAsCopies JudgeOrigins(const Catalog& catalog, const Membership& nodes, std::string_view artifact_id,
                             const std::string& reader, absl::Duration age, SteadyTime now);

}  // namespace tensorcast::global_store
