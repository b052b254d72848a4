#include "daemon/service/replicas.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/node/node_messages.h"
#include "daemon/telemetry/telemetry.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

// How often the progress of an ingest is looked at.
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
  otel::Span joined = JoinSpan(context, pending);
  pending.OnDone([ended] { ended->Set(); });
  // Either event ends the wait; which one it was is said by the pending replica below.
  const auto on_cancel = context.cancellation.OnCancel([ended] { ended->Set(); });
  TransferProgress told;
  while (!ended->WaitUntil(std::min(context.deadline, SteadyNow() + kTick))) {
    const absl::Status wanted = context.Check("wait for the replica");
    if (!wanted.ok()) return joined.Record(wanted);
    const TransferProgress progress = pending.progress();
    if (on_progress && (progress.bytes_done != told.bytes_done || progress.waiting_for != told.waiting_for)) {
      told = progress;
      on_progress(progress);
    }
  }
  return joined.Record(pending.Wait(context));
}

absl::StatusOr<v1::Replica> DescribeReplica(const StoreEngine& engine, std::string_view replica_id) {
  for (const ReplicaInfo& replica : engine.ListReplicas()) {
    if (replica.id == replica_id) return rpc::ToProto(replica);
  }
  return absl::NotFoundError(
      absl::StrCat("find replica ", replica_id,
                   ": this node has no replica with this id; `tensorcast replica ls` lists the replicas"));
}

absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(const RequestContext& context,
                                                             const StoreEngine& engine,
                                                             GlobalStoreClient& global_store,
                                                             const std::string& artifact_id,
                                                             const std::string& received) {
  // The places are asked in the order of what an answer costs: this node's replicas, what the caller has
  // received already, then a call.
  absl::StatusOr<std::shared_ptr<const Manifest>> held = engine.FindManifest(artifact_id);
  if (held.ok()) return held;
  if (!received.empty()) return DecodeManifest(received, artifact_id);
  const absl::StatusOr<std::string> bytes = global_store.FetchManifest(context, artifact_id);
  if (absl::IsUnavailable(bytes.status())) {
    return Annotate(bytes.status(),
                    absl::StrCat("find ", artifact_id, ": this node has no replica of the artifact"));
  }
  TC_RETURN_IF_ERROR(bytes.status());
  return DecodeManifest(*bytes, artifact_id);
}

}  // namespace tensorcast::daemon
