// Doubles of other daemons for tests: they answer as a test sets them up, and record their calls.
// Thread-safe.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "daemon/sources/peer_client.h"

namespace tensorcast::daemon {

// Without a set function every call is UNAVAILABLE. Every pull can be closed.
class FakePeers : public PeerClient {
 public:
  std::function<absl::StatusOr<v1::AttachReplicaResponse>(const v1::AttachReplicaRequest&)> attach;
  std::function<absl::StatusOr<v1::OpenPullResponse>(const v1::OpenPullRequest&)> open;
  std::function<absl::StatusOr<v1::TransferHop>(const PeerAddress&, const v1::DescribeHopRequest&)> describe;
  std::function<absl::StatusOr<absl::Duration>(const RequestContext&, const PeerAddress&)> measure;
  // Grants for which OpenPull does not answer before the call is cancelled or its deadline passes.
  std::set<std::string> silent;

  absl::StatusOr<v1::AttachReplicaResponse> AttachReplica(const RequestContext&, const PeerAddress&,
                                                          const v1::AttachReplicaRequest& request) override {
    if (!attach) return absl::UnavailableError("no answer");
    return attach(request);
  }
  absl::StatusOr<v1::OpenPullResponse> OpenPull(const RequestContext& context, const PeerAddress&,
                                                const v1::OpenPullRequest& request) override {
    {
      absl::MutexLock lock(&mutex_);
      opened_.push_back(request);
    }
    if (silent.contains(request.grant_id())) {
      absl::Notification over;
      const auto cancelled = context.cancellation.OnCancel([&over] { over.Notify(); });
      if (over.WaitForNotificationWithTimeout(TimeLeft(context.deadline))) {
        return absl::CancelledError("CANCELLED");
      }
      return absl::DeadlineExceededError("no answer");
    }
    if (!open) return absl::UnavailableError("no answer");
    return open(request);
  }
  absl::StatusOr<v1::ClosePullResponse> ClosePull(const RequestContext&, const PeerAddress&,
                                                  const v1::ClosePullRequest& request) override {
    absl::MutexLock lock(&mutex_);
    closed_.push_back(request.grant_id());
    return v1::ClosePullResponse();
  }
  absl::StatusOr<v1::TransferHop> DescribeHop(const RequestContext&, const PeerAddress& peer,
                                              const v1::DescribeHopRequest& request) override {
    if (!describe) return absl::UnavailableError("no answer");
    return describe(peer, request);
  }
  absl::StatusOr<v1::RecordedSlice> ReadTrace(const RequestContext&, const PeerAddress&,
                                              const v1::ReadTraceRequest&) override {
    return absl::UnavailableError("no answer");
  }
  absl::StatusOr<absl::Duration> MeasureRoundTrip(const RequestContext& context,
                                                  const PeerAddress& peer) override {
    if (!measure) return absl::UnavailableError("no answer");
    return measure(context, peer);
  }

  std::vector<v1::OpenPullRequest> opened() const {
    absl::MutexLock lock(&mutex_);
    return opened_;
  }
  std::vector<std::string> closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<v1::OpenPullRequest> opened_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
