// The calls that one daemon makes to another, by address; tests use a double. Thread-safe.
#pragma once

#include <compare>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "proto/daemon.pb.h"
#include "proto/records.pb.h"

namespace grpc {
class Channel;
}

namespace tensorcast::daemon {

// A daemon's address, and the node's name that the daemon's certificate must have; empty: any node.
struct PeerAddress {
  // Not explicit, because nodes without certificates have only an address.
  PeerAddress(std::string where, std::string name = "") : address(std::move(where)), node(std::move(name)) {}
  std::string address;
  std::string node;
  friend auto operator<=>(const PeerAddress&, const PeerAddress&) = default;
};

class PeerClient {
 public:
  virtual ~PeerClient() = default;

  virtual absl::StatusOr<v1::AttachReplicaResponse> AttachReplica(
      const RequestContext& context, const PeerAddress& peer, const v1::AttachReplicaRequest& request) = 0;
  virtual absl::StatusOr<v1::OpenPullResponse> OpenPull(const RequestContext& context,
                                                        const PeerAddress& peer,
                                                        const v1::OpenPullRequest& request) = 0;
  virtual absl::StatusOr<v1::ClosePullResponse> ClosePull(const RequestContext& context,
                                                          const PeerAddress& peer,
                                                          const v1::ClosePullRequest& request) = 0;
  virtual absl::StatusOr<v1::TransferHop> DescribeHop(const RequestContext& context, const PeerAddress& peer,
                                                      const v1::DescribeHopRequest& request) = 0;
  virtual absl::StatusOr<v1::RecordedSlice> ReadTrace(const RequestContext& context, const PeerAddress& peer,
                                                      const v1::ReadTraceRequest& request) = 0;
  // The duration of one small call on an established connection, which is the round trip to the peer.
  virtual absl::StatusOr<absl::Duration> MeasureRoundTrip(const RequestContext& context,
                                                          const PeerAddress& peer) = 0;
};

// Keeps one channel per peer, made by `connect` at the first call.
using ChannelFactory = std::function<std::shared_ptr<grpc::Channel>(const PeerAddress& peer)>;
std::unique_ptr<PeerClient> MakePeerClient(ChannelFactory connect);

}  // namespace tensorcast::daemon
