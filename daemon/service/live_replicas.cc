#include "daemon/service/live_replicas.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/service/advances.h"
#include "daemon/service/replicas.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {

namespace {

absl::Status DaemonStops() {
  return absl::UnavailableError(
      "the daemon is stopping; when the daemon runs again, get the weights again with live=True");
}

// A holder made another call meanwhile.
absl::Status BeingRewritten(std::string_view what) {
  return absl::UnavailableError(
      absl::StrCat(what, ": the replica is being rewritten for another call; commit again"));
}

// Why a wait ended that had no result.
absl::Status WhyEnded(const RequestContext& context, const std::string& what, bool stopping) {
  if (stopping) return Annotate(DaemonStops(), what);
  const absl::Status ended = context.Check(what);
  return ended.ok()
             ? absl::DeadlineExceededError(absl::StrCat(what, ": the deadline passed; allow more time"))
             : ended;
}

}  // namespace

LiveReplicas::LiveReplicas(Options options)
    : options_(std::move(options)), updates_(std::make_shared<LiveUpdates>()) {}

LiveReplicas::~LiveReplicas() { Stop(); }

void LiveReplicas::Stop() {
  std::vector<LiveUpdates::Dropped> dropped;
  absl::MutexLock lock(&updates_->mutex);
  updates_->stopping = true;
  std::vector<LiveUpdatePtr> updates;
  for (const auto& [replica_id, update] : updates_->updates) updates.push_back(update);
  for (const LiveUpdatePtr& update : updates) {
    // The calls that are in the gate leave it, and the last one gives the ingest up.
    if (update->gate->empty()) dropped.push_back(updates_->Remove(update, DaemonStops()));
  }
}

std::pair<std::string, std::shared_ptr<LiveLease>> LiveReplicas::MakeHold(
    std::unique_ptr<ReplicaLease> lease) const {
  std::string name = RandomHex(16);
  const std::string replica_id = lease->replica_id();
  // The deleter runs wherever the last reference goes, and takes the mutex of the updates: no reference may
  // go while the mutex is held.
  const std::shared_ptr<LiveLease> held(new LiveLease(std::move(lease)),
                                        [updates = updates_, name](LiveLease* ended) {
                                          delete ended;
                                          updates->Forget(name);
                                        });
  absl::MutexLock lock(&updates_->mutex);
  updates_->holds[name] = {.lease = held, .replica_id = replica_id};
  return {std::move(name), held};
}

absl::StatusOr<std::shared_ptr<LiveLease>> LiveReplicas::Find(const std::string& hold,
                                                              std::string_view what) const {
  std::shared_ptr<LiveLease> lease;  // where it is the last reference it goes after the lock
  {
    absl::MutexLock lock(&updates_->mutex);
    if (const auto found = updates_->holds.find(hold); found != updates_->holds.end()) {
      lease = found->second.lease.lock();
    }
  }
  if (lease != nullptr) return lease;
  return absl::NotFoundError(absl::StrCat(
      what,
      ": the live lease ended because its connection or its daemon ended; get the weights again with "
      "live=True"));
}

absl::StatusOr<v1::AttachLiveResponse> LiveReplicas::Attach(const v1::AttachLiveRequest& request) {
  const std::string what = absl::StrCat("attach live to replica ", request.replica_id());
  absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = options_.engine->LeaseReplica(request.replica_id());
  if (!lease.ok()) return Annotate(lease.status(), what);
  TC_RETURN_IF_ERROR(Annotate(CheckCanChange((*lease)->location()), what));
  v1::AttachLiveResponse response;
  auto [name, held] = MakeHold(*std::move(lease));
  response.set_handle_socket(options_.handle_socket);
  TC_ASSIGN_OR_RETURN(*response.mutable_ticket(), options_.sessions->IssueLiveTicket(held));
  response.set_hold(name);
  return response;
}

absl::Status LiveReplicas::CheckCanChange(const Location& location) const {
  if (location.kind == LocationKind::kCpu) return absl::OkStatus();
  if (location.kind == LocationKind::kDisk) {
    return absl::FailedPreconditionError("the replica is on disk; get the artifact at cpu or gpu:N");
  }
  if (options_.devices->devices()[location.device].runs_kernels) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the daemon cannot run kernels on ", location.ToString(),
                   ", and so cannot change values in that GPU's memory; get the weights at cpu, or get each "
                   "version without live=True"));
}

absl::Status LiveReplicas::CheckNotHeldElsewhere(const std::string& artifact_id,
                                                 const Location& location) const {
  const absl::StatusOr<std::unique_ptr<ReplicaLease>> there =
      options_.engine->LeaseArtifact(artifact_id, location);
  if (!there.ok()) return absl::OkStatus();
  const std::string replica_id = (*there)->replica_id();
  absl::MutexLock lock(&updates_->mutex);
  if (!updates_->IsHeld(replica_id)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("other processes hold ", artifact_id, " live in replica ", replica_id,
                   "; get that version with live=True to share the replica"));
}

void LiveReplicas::Start(const RequestContext& context, const ReplicaLease& base,
                         const LiveUpdatePtr& update) {
  absl::StatusOr<std::unique_ptr<PendingReplica>> begun = options_.materializer->BeginLive(
      context, update->artifact_id, base, update->gate,
      [&] { return CheckNotHeldElsewhere(update->artifact_id, base.location()); });
  std::shared_ptr<PendingReplica> pending;
  LiveUpdates::Dropped dropped;
  {
    absl::MutexLock lock(&updates_->mutex);
    if (!begun.ok()) {
      dropped = updates_->Remove(update, begun.status());
      return;
    }
    pending = *std::move(begun);
    if (update->ended) {  // it was given up meanwhile
      dropped = LiveUpdates::Dropped(pending);
      return;
    }
    update->pending = pending;
  }
  pending->OnDone([updates = updates_, weak = std::weak_ptr<LiveUpdate>(update)] {
    const LiveUpdatePtr done = weak.lock();
    if (done == nullptr) return;
    absl::MutexLock lock(&updates->mutex);
    done->ended = true;
  });
}

absl::StatusOr<LiveUpdatePtr> LiveReplicas::Stage(const RequestContext& context,
                                                  const std::shared_ptr<const ReplicaLease>& base,
                                                  const std::string& artifact_id) {
  const std::string what = absl::StrCat("prepare ", artifact_id, " for replica ", base->replica_id());
  while (true) {
    // A call joins the update of its artifact, or begins one. It waits until that is staged, and tries again
    // where the update ended for a reason that only concerns the call that began it.
    LiveUpdatePtr update;
    bool begins = false;
    LiveUpdates::Dropped dropped;
    {
      absl::MutexLock lock(&updates_->mutex);
      if (updates_->stopping) return Annotate(DaemonStops(), what);
      if (const auto found = updates_->updates.find(base->replica_id()); found != updates_->updates.end()) {
        update = found->second;
      }
      // Another version takes the place of the one that was prepared, unless a holder has committed to that
      // already.
      if (update != nullptr && update->artifact_id != artifact_id) {
        if (!update->gate->empty()) {
          return absl::FailedPreconditionError(
              absl::StrCat(what, ": other holders of the replica are committing to ", update->artifact_id,
                           "; commit to that version first"));
        }
        dropped = updates_->Remove(
            update, absl::AbortedError(absl::StrCat("another holder of the replica prepared ", artifact_id,
                                                    " instead; prepare that version")));
        update = nullptr;
      }
      begins = update == nullptr;
      if (begins) {
        update = std::make_shared<LiveUpdate>(artifact_id, base->replica_id());
        // The pointer is weak, since the update owns the gate.
        update->gate =
            std::make_shared<CommitGate>([updates = updates_, weak = std::weak_ptr<LiveUpdate>(update)] {
              const LiveUpdatePtr staged = weak.lock();
              if (staged == nullptr) return;
              absl::MutexLock lock(&updates->mutex);
              staged->staged = true;
            });
        updates_->updates[base->replica_id()] = update;
      }
      ++update->calls;
    }
    // Ends the ingest of the version that is not wanted any more, with no lock held.
    {
      const LiveUpdates::Dropped ends = std::move(dropped);
    }
    if (begins) Start(context, *base, update);
    updates_->Await(context, [&] { return update->staged || update->ended; });
    std::shared_ptr<PendingReplica> pending;
    absl::Status error;
    {
      absl::MutexLock lock(&updates_->mutex);
      --update->calls;
      if (update->staged) return update;
      pending = update->pending;
      error = update->error;
      if (!update->ended) {
        if (update->calls == 0) {
          dropped = updates_->Remove(update,
                                     absl::CancelledError("the last call that waited for the version ended"));
        }
        return WhyEnded(context, what, updates_->stopping);
      }
      updates_->Remove(update, absl::OkStatus());
    }
    if (error.ok() && pending != nullptr) error = pending->Wait(context).status();
    if (error.ok()) {
      error = absl::FailedPreconditionError(
          "another request made a separate replica of this version on this node; evict that replica, and "
          "prepare the version again");
    }
    // The call that began it was given up, and this one was not.
    const bool of_other = !begins && (absl::IsCancelled(error) || absl::IsDeadlineExceeded(error));
    if (!of_other || !context.Check(what).ok()) return Annotate(error, what);
  }
}

absl::StatusOr<v1::PrepareVersionResponse> LiveReplicas::Prepare(const RequestContext& context,
                                                                 const v1::PrepareVersionRequest& request) {
  const std::string what = absl::StrCat("prepare ", request.artifact_id());
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<LiveLease> holder, Find(request.hold(), what));
  const std::shared_ptr<const ReplicaLease> base = holder->lease();
  if (base == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(what, ": the replica is being rewritten; prepare the version again"));
  }
  if (base->manifest()->id() != request.artifact_id()) {
    TC_RETURN_IF_ERROR(Stage(context, base, request.artifact_id()).status());
  }
  return v1::PrepareVersionResponse();
}

absl::Status LiveReplicas::NameMissing(const absl::Status& ended, const LiveUpdate& update) const {
  const std::vector<std::string> missing = ReadersOf(
      update.base_id, *options_.sessions, *options_.servings,
      [&](const void* lease) { return update.gate->HasEntered(static_cast<const LiveLease*>(lease)); });
  const absl::Status refusal = update.gate->refusal();
  std::string why = missing.empty() ? std::string(refusal.message())
                                    : absl::StrCat(ListReaders(missing), " did not commit");
  if (why.empty()) why = "other readers still hold the replica";
  return absl::Status(ended.code(), absl::StrCat(ended.message(), " (", why, "; nothing was written)"));
}

absl::Status LiveReplicas::Rewrite(const RequestContext& context, const LiveUpdatePtr& update,
                                   const std::shared_ptr<LiveLease>& holder) {
  const std::string what = absl::StrCat("commit to ", update->artifact_id);
  // From here on the holder does not read: its replica may be rewritten as soon as all other holders have
  // entered.
  update->gate->Enter(holder);
  const auto ended = [&] { return update->ended; };
  updates_->Await(context, ended);
  std::shared_ptr<PendingReplica> pending;
  absl::Status error;
  const auto look = [&] {
    absl::MutexLock lock(&updates_->mutex);
    pending = update->pending;
    error = update->error;
    return update->ended;
  };
  if (!look()) {
    bool stopping = false;
    {
      absl::MutexLock lock(&updates_->mutex);
      stopping = updates_->stopping;
    }
    // While this holder is among those that have entered.
    const absl::Status missing = NameMissing(WhyEnded(context, what, stopping), *update);
    if (update->gate->Leave(holder.get())) {
      LiveUpdates::Dropped dropped;
      absl::MutexLock lock(&updates_->mutex);
      if (updates_->stopping && update->gate->empty()) dropped = updates_->Remove(update, missing);
      return missing;
    }
    // It is too late to leave. Only a GPU can fail between here and the end.
    absl::MutexLock lock(&updates_->mutex);
    updates_->mutex.Await(absl::Condition(&ended));
    pending = update->pending;
    error = update->error;
  }
  const auto wait = [&]() -> absl::StatusOr<std::unique_ptr<ReplicaLease>> {
    if (pending == nullptr) return error;  // it was removed with a reason
    return pending->Wait(RequestContext());
  };
  absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = wait();
  // False: its leases have ended.
  const bool left = lease.ok() || update->gate->Leave(holder.get());
  bool is_lost = false;
  {
    absl::MutexLock lock(&updates_->mutex);
    updates_->Remove(update, absl::OkStatus());
    if (lease.ok()) {
      // The other holders keep the names of their holds, which are about the new replica from now on.
      for (auto& [name, hold] : updates_->holds) {
        if (hold.replica_id == update->base_id) hold.replica_id = (*lease)->replica_id();
      }
    } else if (!left) {
      // The first of the holders that come here finds the holds.
      is_lost = std::erase_if(updates_->holds, [&](const auto& hold) {
                  return hold.second.replica_id == update->base_id;
                }) > 0;
    }
  }
  // Their memory has a mixture of both versions. After its call has ended a holder learns that only this way.
  if (is_lost) options_.sessions->Fence(update->base_id, absl::DataLossError(lease.status().message()));
  if (!lease.ok()) return Annotate(lease.status(), what);
  holder->Set(*std::move(lease));
  return absl::OkStatus();
}

absl::StatusOr<v1::CommitVersionResponse> LiveReplicas::Commit(const RequestContext& context,
                                                               const v1::CommitVersionRequest& request) {
  const std::string what = absl::StrCat("commit to ", request.artifact_id());
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<LiveLease> holder, Find(request.hold(), what));
  std::shared_ptr<const ReplicaLease> lease = holder->lease();
  if (lease == nullptr) return BeingRewritten(what);
  if (lease->manifest()->id() != request.artifact_id()) {
    RequestContext waits = context;
    if (request.has_wait()) {
      waits.deadline = std::min(waits.deadline, SteadyNow() + rpc::FromProto(request.wait()));
    }
    TC_ASSIGN_OR_RETURN(const LiveUpdatePtr update, Stage(waits, lease, request.artifact_id()));
    lease.reset();  // a lease that is held here would be waited for
    TC_RETURN_IF_ERROR(Rewrite(waits, update, holder));
    // So the keeper has the record of the new version before a holder goes on: a daemon that is killed from
    // here on comes back with it.
    options_.engine->AwaitListener();
    lease = holder->lease();
    if (lease == nullptr) return BeingRewritten(what);
  }
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ReplicaLease> own, options_.engine->LeaseReplica(lease->replica_id()));
  v1::CommitVersionResponse response;
  TC_ASSIGN_OR_RETURN(*response.mutable_replica(), DescribeReplica(*options_.engine, own->replica_id()));
  auto [name, held] = MakeHold(std::move(own));
  response.set_handle_socket(options_.handle_socket);
  TC_ASSIGN_OR_RETURN(*response.mutable_ticket(), options_.sessions->IssueLiveTicket(held));
  response.set_hold(name);
  return response;
}

}  // namespace tensorcast::daemon
