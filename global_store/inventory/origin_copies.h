// Origins as copies: the files that an artifact was imported from, and what their nodes found when they
// looked at them.
//
// A file can go or change without a message, so an origin is a copy only for a moment after its node
// found it intact. What was found is soft state: after a restart of the global store each is looked at again.
// Nor is it one before its node has read the files once more and found every digest right: what was written
// during the import, or behind an mtime that was set back, shows only so. That is a durable fact of these
// files. Files that may be written without a trace are never a copy.
//
// Shared objects are looked at by the node that asks for the eviction, since it can read them afterwards and
// a lie harms its own replica alone. They are a copy where that node found this very version, and finds it
// immutable. They are not compared: a version that is read by its name is what was imported.
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

// What can be said of an artifact's origins now as copies of it.
struct OriginsAsCopies {
  std::vector<const Origin*> intact;     // they were found so just now
  std::vector<OriginToCheck> unchecked;  // for the caller to ask their nodes with no lock held
  std::string others;                    // the rest, for people: ", its origin on node a is gone: ..."
  std::string comparing;  // one of the rest, of which a comparison is under way, for people; empty: none
};

// `reader`: the live node that looks at shared objects. `age`: for how long what was found holds, and for how
// long a silent node is not asked again.
OriginsAsCopies JudgeOrigins(const Catalog& catalog, const Membership& nodes, std::string_view artifact_id,
                             const std::string& reader, absl::Duration age, SteadyTime now);

}  // namespace tensorcast::global_store
