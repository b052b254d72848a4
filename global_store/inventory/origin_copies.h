// Origins as copies: the files that an artifact was imported from, and what nodes found when they checked
// them.
//
// A file can be deleted or changed without a message, so an origin counts as a copy only for a short time
// after its node found it intact. This finding is soft state: after a restart of the global store each origin
// is checked again. Also, an origin counts only after its node has read the files once more and found every
// digest right. Only this reveals a write during the import, or a write that set the mtime back. The result
// is a durable fact about these files. Files that may be written without a trace never count as a copy.
//
// The node that asks for the eviction checks shared objects: it can read them afterwards, and a false answer
// only harms its own replica. Shared objects count as a copy if that node found this very version and the
// version is immutable. Their digests are not compared again: an immutable version is what was imported.
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

// The state of an artifact's origins as copies of it now.
struct OriginsAsCopies {
  std::vector<const Origin*> intact;     // found intact within `age`
  std::vector<OriginToCheck> unchecked;  // the caller must ask their nodes, with no lock held
  std::string others;                    // for people: ", its origin on node a is gone: ..."
  std::string comparing;                 // for people: an origin that is being compared; empty: none
};

// Decides which origins count as copies now. `reader`: the live node that checks shared objects. `age`: how
// long a finding holds, and the pause before a silent node is asked again.
OriginsAsCopies JudgeOrigins(const Catalog& catalog, const Membership& nodes, std::string_view artifact_id,
                             const std::string& reader, absl::Duration age, SteadyTime now);

}  // namespace tensorcast::global_store
