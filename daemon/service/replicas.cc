#include "daemon/service/replicas.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);

// Shared with callbacks that may outlive the wait.
struct Ended {
  absl::Mutex mutex;
  bool ended ABSL_GUARDED_BY(mutex) = false;

  void Set() {
    absl::MutexLock lock(&mutex);
    ended = true;
  }
  bool WaitUntil(SteadyTime deadline) {
    absl::MutexLock lock(&mutex);
    return mutex.AwaitWithTimeout(absl::Condition(&ended), TimeLeft(deadline));
  }
};

}  // namespace

// The engine has no callback for progress, so it is looked at every tick, and told where it moved. `ended`
// outlives this call: an ingest that ends while we leave may still call.
absl::StatusOr<std::unique_ptr<ReplicaLease>> Await(const RequestContext& context, PendingReplica& pending,
                                                    const OnProgress& on_progress) {
  auto ended = std::make_shared<Ended>();
  pending.OnDone([ended] { ended->Set(); });
  // Either event ends the wait; which one it was is said by the pending replica below.
  const auto on_cancel = context.cancellation.OnCancel([ended] { ended->Set(); });
  TransferProgress told;
  while (!ended->WaitUntil(std::min(context.deadline, SteadyNow() + kTick))) {
    TC_RETURN_IF_ERROR(context.Check("waiting for a replica"));
    const TransferProgress progress = pending.progress();
    if (on_progress && (progress.bytes_done != told.bytes_done || progress.waiting_for != told.waiting_for)) {
      told = progress;
      on_progress(progress);
    }
  }
  return pending.Wait(context);
}

absl::StatusOr<ReplicaInfo> FindReplica(const StoreEngine& engine, std::string_view replica_id) {
  for (ReplicaInfo& replica : engine.ListReplicas()) {
    if (replica.id == replica_id) return std::move(replica);
  }
  return absl::NotFoundError(absl::StrCat("there is no replica ", replica_id, " on this node"));
}

}  // namespace tensorcast::daemon
