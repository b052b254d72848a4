#include "global_store/service/speaker.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "security/name.h"

namespace tensorcast::global_store {

absl::Status CheckSpeaksFor(Coordinator& coordinator, std::string_view peer, std::string_view node_id) {
  // Such a caller came by a unix socket of this host, or the store has no certificates: both are trusted.
  if (peer.empty()) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const security::Name name, security::ParseName(peer));
  // Roles other than a node's are not bound to one node; the role decides which calls they may make.
  if (name.role != security::Role::kNode) return absl::OkStatus();
  return coordinator.WithDirectory([&](Directory& directory, SteadyTime) -> absl::Status {
    // The durable binding counts first, also for a node that is away. Then counts the name of the live node.
    TC_RETURN_IF_ERROR(directory.membership().CheckBinding(node_id, name.name));
    const Node* node = directory.membership().Find(node_id);
    if (node == nullptr || node->facts.name == name.name) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("permission denied: ", peer, " may not act as node ",
                                                    node->facts.name, " (", node_id,
                                                    "); use the certificate of node ", node->facts.name));
  });
}

}  // namespace tensorcast::global_store
