#include "daemon/service/node_probe.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {

absl::StatusOr<v1::ProbeNodeResponse> NodeProbe::Probe(const RequestContext& context,
                                                       const std::string& node_id) const {
  if (node_id.empty()) {
    return absl::InvalidArgumentError("probe a node: the request names no node; give a node id");
  }
  TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> nodes,
                      options_.global_store->FindNodes(context, {node_id}));
  const auto node = std::ranges::find(nodes, node_id, &v1::Node::node_id);
  if (node == nodes.end()) {
    return absl::NotFoundError(absl::StrCat("probe node ", QuoteName(node_id),
                                            ": the global store knows no such node; `tensorcast status` "
                                            "lists the nodes"));
  }
  // After the answer of the global store: its slowness says nothing of the node.
  RequestContext bounded = context.Child();
  bounded.deadline = SteadyNow() + kTime;
  if (bounded.deadline > context.deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat("probe node ", QuoteName(node_id),
                     ": the global store's answer used up the time of the call; allow more time"));
  }
  const absl::StatusOr<absl::Duration> took =
      options_.peers->MeasureRoundTrip(bounded, PeerAddress(node->grpc_address(), node->name()));
  // The caller that gave up wants no answer; the node's silence is one.
  TC_RETURN_IF_ERROR(context.Check("probe a node"));
  v1::ProbeNodeResponse response;
  if (took.ok()) {
    *response.mutable_round_trip() = rpc::ToProto(*took);
  } else {
    *response.mutable_error() = rpc::ToProto(took.status());
  }
  return response;
}

}  // namespace tensorcast::daemon
