// Takes the leases of a client's host replicas again after a restart of the daemon (daemon/keeper). This
// works only if the daemon still has the memory that this process has mapped. Private to this folder.
//
// Runs a thread from the first Watch on. Thread-safe. If the daemon cannot be reached, the keeper retries
// while the replica lives. After any other error the replica stays lost.
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
  // `link` must outlive the keeper.
  explicit LeaseKeeper(DaemonLink* link) : link_(link) {}
  // Cancels the call that is in progress and ends the thread.
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  // Watches the lease of `claimed`, a replica in host memory. Holds only a weak pointer to `claimed`.
  void Watch(const std::shared_ptr<ClaimedReplica>& claimed);

 private:
  void Run();
  // True if the owner has released the replica, or if the lease is lost for good.
  bool IsOver(const std::weak_ptr<ClaimedReplica>& watched);
  // Tries once to take the lease on `artifact_id` again. Returns OK if the lease was taken or can never
  // be taken: the caller then stops. After an error the caller retries.
  absl::Status TakeAgain(const std::string& artifact_id, const std::weak_ptr<ClaimedReplica>& watched);

  DaemonLink* const link_;
  Cancellation stop_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<ClaimedReplica>> watched_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
  pid_t process_ = -1;  // the process that runs the thread: a forked child has no such thread
};

}  // namespace tensorcast::client
