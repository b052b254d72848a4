// Takes the leases of a client's host replicas again after their daemon was restarted, where that still has
// the very memory that is mapped here (daemon/keeper). Private to this folder.
//
// A thread of its own, from the first replica on. Thread-safe. What fails is tried again for as long as the
// replica lives; one that the daemon does not have any more stays lost.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "client/daemon_link.h"
#include "core/handles/handle_client.h"

namespace tensorcast::client {

class LeaseKeeper {
 public:
  // `link` must outlive it.
  explicit LeaseKeeper(DaemonLink* link) : link_(link) {}
  // Gives up a call that is under way.
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  // Of this artifact in host memory. Does not keep it.
  void Watch(const std::string& artifact_id, const std::shared_ptr<ClaimedReplica>& claimed);

 private:
  struct Watched {
    std::string artifact_id;
    std::weak_ptr<ClaimedReplica> claimed;
  };

  void Run();
  // OK also when there is nothing to be had: then it is not watched any more.
  absl::Status TakeAgain(const std::string& artifact_id, ClaimedReplica& claimed);

  DaemonLink* const link_;
  Cancellation stop_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
  pid_t process_ = -1;  // that has the thread
};

}  // namespace tensorcast::client
