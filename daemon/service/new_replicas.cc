#include "daemon/service/new_replicas.h"

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/replica/replica.h"

namespace tensorcast::daemon {
namespace {

constexpr int kPackAgain = 3;

// A put's hold on its artifact. The ingest takes it when it knows which artifact that is, before it makes a
// replica ready or finds one; the put takes it over at the ingest's end. An ingest may go on for a moment
// after its put has given up: then nothing is held any more.
class EarlyHold {
 public:
  EarlyHold(Publications& publications, StoreEngine& engine) : publications_(publications), engine_(engine) {}

  void Take(const std::string& artifact_id) {
    auto hold = std::make_unique<Publications::Hold>(
        &publications_, artifact_id, [&engine = engine_](const std::string& replica_id) {
          const absl::Status dropped = engine.Evict(replica_id, /*force=*/true);
          LOG_IF(WARNING, !dropped.ok())
              << "drop replica " << replica_id << " of an artifact that was not published: " << dropped;
        });
    absl::MutexLock lock(&mutex_);
    if (!left_) hold_ = std::move(hold);
  }

  // Null where the ingest ended before it knew its artifact. From here on none is taken.
  std::unique_ptr<Publications::Hold> TakeOver() {
    absl::MutexLock lock(&mutex_);
    left_ = true;
    return std::move(hold_);
  }

 private:
  Publications& publications_;
  StoreEngine& engine_;
  absl::Mutex mutex_;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Publications::Hold> hold_ ABSL_GUARDED_BY(mutex_);
};

void NoteMade(const PendingReplica& pending, const ReplicaLease& lease, Publications::Hold& hold) {
  if (pending.made() && !pending.shared()) hold.Made(lease.replica_id());
}

}  // namespace

absl::StatusOr<NewReplica> NewReplicas::Make(const RequestContext& context, IngestRequest request,
                                             const OnProgress& on_progress) const {
  // Deleted and put again, the global store would have the artifact's replicas dropped until it is published.
  const auto early_hold = std::make_shared<EarlyHold>(publications_, engine_);
  request.on_identified = [early_hold](const std::string& artifact_id) { early_hold->Take(artifact_id); };
  NewReplica made;
  TC_ASSIGN_OR_RETURN(made.pending, engine_.Ingest(context, std::move(request)));
  absl::StatusOr<std::unique_ptr<ReplicaLease>> ingested = Await(context, *made.pending, on_progress);
  made.hold = early_hold->TakeOver();
  TC_ASSIGN_OR_RETURN(made.lease, std::move(ingested));
  NoteMade(*made.pending, *made.lease, *made.hold);
  return made;
}

absl::Status NewReplicas::PackOnce(const RequestContext& context, const ReplicaLease& lease,
                                   Publications::Hold& hold) const {
  const Location disk{LocationKind::kDisk};
  IngestRequest pack{.manifest = lease.manifest(),
                     .location = disk,
                     .sources = sources_.Find({lease.manifest(), disk, ""}),
                     .wait_for_space = true};
  TC_ASSIGN_OR_RETURN(std::unique_ptr<PendingReplica> pending, engine_.Ingest(context, std::move(pack)));
  const absl::StatusOr<std::unique_ptr<ReplicaLease>> packed = Await(context, *pending, nullptr);
  if (!packed.ok()) {
    return Annotate(packed.status(), absl::StrCat("pack ", lease.manifest()->id(), " to disk"));
  }
  NoteMade(*pending, **packed, hold);
  return absl::OkStatus();
}

absl::Status NewReplicas::PackToDisk(const RequestContext& context, const ReplicaLease& lease,
                                     Publications::Hold& hold) const {
  if (lease.location().kind == LocationKind::kDisk) return absl::OkStatus();
  // The packed file that was found ready may be evicted before it is leased: then it is packed anew.
  absl::Status packed = PackOnce(context, lease, hold);
  for (int again = 0; again < kPackAgain && absl::IsNotFound(packed); ++again) {
    packed = PackOnce(context, lease, hold);
  }
  return packed;
}

}  // namespace tensorcast::daemon
