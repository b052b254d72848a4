// The calls that one daemon makes to another, by address: a seam that tests fill with a double. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "proto/daemon.pb.h"

namespace grpc {
class Channel;
}

namespace tensorcast::daemon {

class PeerClient {
 public:
  virtual ~PeerClient() = default;

  virtual absl::StatusOr<v1::AttachReplicaResponse> AttachReplica(
      const RequestContext& context, const std::string& address, const v1::AttachReplicaRequest& request) = 0;
  virtual absl::StatusOr<v1::OpenPullResponse> OpenPull(const RequestContext& context,
                                                        const std::string& address,
                                                        const v1::OpenPullRequest& request) = 0;
  virtual absl::StatusOr<v1::ClosePullResponse> ClosePull(const RequestContext& context,
                                                          const std::string& address,
                                                          const v1::ClosePullRequest& request) = 0;
};

// Keeps one channel an address, made by `connect` at first use.
using ChannelFactory = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;
std::unique_ptr<PeerClient> MakePeerClient(ChannelFactory connect);

}  // namespace tensorcast::daemon
