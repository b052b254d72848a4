// The other daemons, for tests: they do what a test says and remember what they were told. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/sources/peer_client.h"

namespace tensorcast::daemon {

// One function a call; all succeed with an empty answer unless a test says otherwise.
class FakePeers : public PeerClient {
 public:
  std::function<absl::Status(const v1::AttachReplicaRequest&, v1::AttachReplicaResponse*)> attach;
  std::function<absl::Status(const v1::OpenPullRequest&, v1::OpenPullResponse*)> open;

  absl::Status AttachReplica(const RequestContext&, const std::string&,
                             const v1::AttachReplicaRequest& request,
                             v1::AttachReplicaResponse* response) override {
    return attach ? attach(request, response) : absl::UnavailableError("nobody answers");
  }
  absl::Status OpenPull(const RequestContext&, const std::string&, const v1::OpenPullRequest& request,
                        v1::OpenPullResponse* response) override {
    absl::MutexLock lock(&mutex_);
    opened_.push_back(request);
    return open ? open(request, response) : absl::UnavailableError("nobody answers");
  }
  absl::Status ClosePull(const RequestContext&, const std::string&, const v1::ClosePullRequest& request,
                         v1::ClosePullResponse*) override {
    absl::MutexLock lock(&mutex_);
    closed_.push_back(request.grant_id());
    return absl::OkStatus();
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
