// The requests of one transfer to the global store, and what the transfer learned about remote replicas:
// which are excluded, slow or corrupt.
// Thread-compatible.
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
  // The max number of grants in a request, except beside stalled sources; the global store may give fewer.
  static constexpr size_t kMaxSources = 6;

  // `wanted`: the fields that all requests of the transfer share: artifact, destination, lane, and the number
  // of sources, if fewer than kMaxSources. The pointers must outlive this object.
  GrantRequests(const HeldGrants::Parts& parts, const HeldGrants* held,
                v1::RequestReplicaTransportRequest wanted)
      : parts_(parts), held_(held), wanted_(std::move(wanted)) {}

  // `again`: include replicas that delivered nothing before. `beside_stalled`: the min number of additional
  // sources while the held sources deliver nothing; 0: the held sources deliver bytes. NOT_FOUND: the
  // artifact was deleted, or never published.
  absl::StatusOr<v1::RequestReplicaTransportResponse> Ask(const RequestContext& context, bool again,
                                                          uint32_t beside_stalled);

  // Sets the replica that the transfer fills; every request names this replica.
  void NoteFills(const std::string& replica_id) { wanted_.set_fills(replica_id); }
  // Sets the number of bytes that came over the network so far.
  void NoteReceived(uint64_t bytes) { received_bytes_ = bytes; }
  // The next functions record what happened with a replica, by its name (HeldGrant::replica_name).
  // NoteFailure: the transfer gave up a source of the replica.
  void NoteFailure(const std::string& replica_name, const SourceFailure& failure);
  // NoteFruitless: an attempt with the replica ended with this status and delivered nothing.
  void NoteFruitless(const std::string& replica_name, const absl::Status& status);
  // NoteRests: the replica's peer was overtaken recently (overtaken_peers.h).
  void NoteRests(const std::string& replica_name) { replicas_[replica_name].rests = true; }
  // NoteOriginRead: the transfer reads a shared origin from now on; `uri`: the URI of the origin's first
  // object. NoteOriginFailed: the origin could not be read, or not to its end.
  void NoteOriginRead(const std::string& uri) { held_origin_ = uri; }
  void NoteOriginFailed(const std::string& uri);
  bool WasTried(const std::string& replica_name) const { return replicas_.contains(replica_name); }
  // The number of consecutive attempts that delivered nothing.
  int Fruitless(const std::string& replica_name) const;

 private:
  struct Tried {
    int fruitless = 0;
    bool busy = false;  // may have been busy at the last attempt
    bool corrupt = false;
    bool rests = false;
    bool given_up() const;
  };
  absl::StatusOr<v1::RequestReplicaTransportResponse> Request(
      const RequestContext& context, const v1::RequestReplicaTransportRequest& request) const;

  const HeldGrants::Parts parts_;
  const HeldGrants* const held_;
  v1::RequestReplicaTransportRequest wanted_;
  std::map<std::string, Tried> replicas_;
  std::string held_origin_;  // empty: none
  uint64_t received_bytes_ = 0;
  ReceiveRate rate_;
  std::vector<std::string> failed_origins_;
};

}  // namespace tensorcast::daemon
