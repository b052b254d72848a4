// Whether this node reaches another one: operators find a firewall, a wrong address or a wrong certificate
// between two hosts by it. Only nodes that the global store knows are called, and at the address that
// it says: no caller makes this daemon connect to anything else. Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/sources/peer_client.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

class NodeProbe {
 public:
  static constexpr absl::Duration kTime = absl::Seconds(2);  // of an attempt, the connecting included

  struct Options {
    GlobalStoreClient* global_store = nullptr;  // both must outlive it
    PeerClient* peers = nullptr;
  };

  explicit NodeProbe(const Options& options) : options_(options) {}

  // That the node does not answer is not an error but the answer. NOT_FOUND for a node that the global store
  // does not know, and the error of the store where it does not say.
  absl::StatusOr<v1::ProbeNodeResponse> Probe(const RequestContext& context,
                                              const std::string& node_id) const;

 private:
  const Options options_;
};

}  // namespace tensorcast::daemon
