// Checks whether this node reaches another node. Calls only nodes that the global store knows, at the address
// in the global store. Thread-safe.
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
  static constexpr absl::Duration kTime = absl::Seconds(2);  // max time of an attempt, including the
                                                             // connection

  struct Options {
    GlobalStoreClient* global_store = nullptr;  // both must outlive the probe
    PeerClient* peers = nullptr;
  };

  explicit NodeProbe(const Options& options) : options_(options) {}

  // A node that does not answer is a result, not an error. NOT_FOUND for a node that the global store does
  // not know; otherwise the error of the global store.
  absl::StatusOr<v1::ProbeNodeResponse> Probe(const RequestContext& context,
                                              const std::string& node_id) const;

 private:
  const Options options_;
};

}  // namespace tensorcast::daemon
