#include "daemon/sources/peer_client.h"

#include <grpcpp/channel.h>

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/records.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/health.h"

namespace tensorcast::daemon {
namespace {

using Stub = v1::StoreDaemon::Stub;

// On one channel.
struct Stubs {
  std::shared_ptr<grpc::Channel> channel;
  std::shared_ptr<Stub> daemon;
  std::shared_ptr<v1::Records::Stub> records;
};

// A peer that does not answer at once is one more source that failed: the next one is tried instead.
rpc::CallOptions Once() { return {.retry_for = absl::ZeroDuration(), .what = "call another daemon"}; }

// Calls run without the mutex: it guards only the table, and the stubs that a call uses are shared.
class GrpcPeerClient : public PeerClient {
 public:
  explicit GrpcPeerClient(ChannelFactory connect) : connect_(std::move(connect)) {}

  absl::StatusOr<v1::AttachReplicaResponse> AttachReplica(const RequestContext& context,
                                                          const PeerAddress& peer,
                                                          const v1::AttachReplicaRequest& request) override {
    return rpc::CallUnary(*StubsOf(peer).daemon, &Stub::AttachReplica, context, request, Once());
  }

  absl::StatusOr<v1::OpenPullResponse> OpenPull(const RequestContext& context, const PeerAddress& peer,
                                                const v1::OpenPullRequest& request) override {
    return rpc::CallUnary(*StubsOf(peer).daemon, &Stub::OpenPull, context, request, Once());
  }

  absl::StatusOr<v1::ClosePullResponse> ClosePull(const RequestContext& context, const PeerAddress& peer,
                                                  const v1::ClosePullRequest& request) override {
    return rpc::CallUnary(*StubsOf(peer).daemon, &Stub::ClosePull, context, request, Once());
  }

  absl::StatusOr<v1::TransferHop> DescribeHop(const RequestContext& context, const PeerAddress& peer,
                                              const v1::DescribeHopRequest& request) override {
    return rpc::CallUnary(*StubsOf(peer).daemon, &Stub::DescribeHop, context, request, Once());
  }

  absl::StatusOr<v1::RecordedSlice> ReadTrace(const RequestContext& context, const PeerAddress& peer,
                                              const v1::ReadTraceRequest& request) override {
    return rpc::CallUnary(*StubsOf(peer).records, &v1::Records::Stub::ReadTrace, context, request, Once());
  }

  absl::StatusOr<absl::Duration> MeasureRoundTrip(const RequestContext& context,
                                                  const PeerAddress& peer) override {
    const std::shared_ptr<grpc::Channel> channel = StubsOf(peer).channel;
    // First, so that the time of the handshake is not measured.
    TC_RETURN_IF_ERROR(rpc::AwaitConnection(*channel, context, absl::StrCat("connect to ", peer.address)));
    const SteadyTime start = SteadyNow();
    TC_RETURN_IF_ERROR(rpc::CheckHealthOn(channel, context.deadline));
    return SteadyNow() - start;
  }

 private:
  // A peer has one channel, which stays: a later call need not connect again.
  Stubs StubsOf(const PeerAddress& peer) {
    absl::MutexLock lock(&mutex_);
    Stubs& stubs = stubs_[peer];
    if (stubs.daemon == nullptr) {
      const std::shared_ptr<grpc::Channel> channel = connect_(peer);
      stubs = {channel, v1::StoreDaemon::NewStub(channel), v1::Records::NewStub(channel)};
    }
    return stubs;
  }

  const ChannelFactory connect_;
  absl::Mutex mutex_;
  std::map<PeerAddress, Stubs> stubs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<PeerClient> MakePeerClient(ChannelFactory connect) {
  return std::make_unique<GrpcPeerClient>(std::move(connect));
}

}  // namespace tensorcast::daemon
