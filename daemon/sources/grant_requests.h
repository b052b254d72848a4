// What one transfer asks the global store for, and what it has learned of the replicas elsewhere: which are
// excluded, slow or corrupt.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/ingest/receive_rate.h"
#include "core/source/chunk_source.h"
#include "daemon/sources/held_grants.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class GrantRequests {
 public:
  // How many grants a transfer wants at most; the global store may give fewer. More gain nothing, and each
  // chunk then takes longer to come and be passed on.
  static constexpr size_t kMaxSources = 6;

  // `wanted`: the fields that all requests of the transfer have: artifact, destination, lane. Pointers must
  // outlive it.
  GrantRequests(const HeldGrants::Parts& parts, const HeldGrants* held,
                v1::RequestReplicaTransportRequest wanted)
      : parts_(parts), held_(held), wanted_(std::move(wanted)) {}

  // `again`: also those that gave nothing before. `beside_stalled`: those that are held give nothing, and so
  // many are wanted beside them at least; 0: they do. NOT_FOUND: the artifact was deleted, or never
  // published.
  absl::StatusOr<v1::RequestReplicaTransportResponse> Ask(const RequestContext& context, bool again,
                                                          uint32_t beside_stalled);

  // So many bytes came over the network so far.
  void NoteReceived(uint64_t bytes) { received_bytes_ = bytes; }
  // What became of a replica, by its name (HeldGrant). A source of it was given up:
  void NoteFailure(const std::string& replica_name, const SourceFailure& failure);
  // The try of it ended with this and gave nothing.
  void NoteFruitless(const std::string& replica_name, const absl::Status& status);
  // Its peer was overtaken lately.
  void NoteRests(const std::string& replica_name) { replicas_[replica_name].rests = true; }
  // A shared origin, by the URI of its first object, is read from now on; or could not be, or not to the end.
  void NoteOriginRead(const std::string& uri) { held_origin_ = uri; }
  void NoteOriginFailed(const std::string& uri);
  bool WasTried(const std::string& replica_name) const { return replicas_.contains(replica_name); }
  // Tries in a row that gave nothing.
  int Fruitless(const std::string& replica_name) const;

 private:
  struct Tried {
    int fruitless = 0;
    bool busy = false;  // perhaps, when it was tried last
    bool corrupt = false;
    bool rests = false;
    bool given_up() const;
  };
  absl::StatusOr<v1::RequestReplicaTransportResponse> Request(
      const RequestContext& context, const v1::RequestReplicaTransportRequest& request) const;

  const HeldGrants::Parts parts_;
  const HeldGrants* const held_;
  const v1::RequestReplicaTransportRequest wanted_;
  std::map<std::string, Tried> replicas_;
  std::string held_origin_;  // empty: none
  uint64_t received_bytes_ = 0;
  ReceiveRate rate_;
  std::vector<std::string> failed_origins_;
};

}  // namespace tensorcast::daemon
