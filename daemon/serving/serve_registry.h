// The pulls that this node serves at this moment. Each stands under a grant, holds a lease on its replica,
// and ends with ClosePull, when the global store revokes it, when the ingest that fills the replica fails, or
// when the grant has expired and no byte moves any more.
//
// A grant's token is verified before anything else; it names the replica, the receiver and the lane. One pull
// a grant: opening it again over the same lane gives the same descriptor, and one that was closed stays
// closed. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/posix/process_time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "core/engine/engine.h"
#include "core/replica/availability.h"
#include "daemon/serving/served_replica.h"
#include "daemon/telemetry/reports.h"
#include "proto/daemon.pb.h"
#include "rpc/grant_token/grant_token.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

class ServeRegistry {
 public:
  struct Options {
    StoreEngine* engine = nullptr;  // must outlive it, like the other pointers
    DeviceRuntime* devices = nullptr;
    std::vector<transport::Transport*> transports;
    std::shared_ptr<StagingBuffers> staging;
    std::function<rpc::GrantKey()> grant_key;       // the one given at registration
    std::string name;                               // of this node; grants name it as their source
    absl::Duration grant_life = absl::Seconds(30);  // without a word from the global store
    absl::Duration staging_wait = absl::Seconds(10);
    std::function<SteadyTime()> now = SteadyNow;
  };

  explicit ServeRegistry(Options options) : options_(std::move(options)) {}
  ~ServeRegistry() { CloseAll(); }

  // What the token permits, when it is this node's and permits just what is asked for, and the grant has not
  // ended; else as rpc::VerifyGrant says, PERMISSION_DENIED or FAILED_PRECONDITION. An empty receiver or
  // artifact is not compared. `caller`: the name in the caller's certificate; empty: it has none, and is what
  // it says.
  absl::StatusOr<rpc::GrantClaims> CheckGrant(const v1::OpenPullRequest& asked,
                                              std::string_view caller = {}) const;

  // `caller` as for CheckGrant; `trace` is the receiver's.
  absl::StatusOr<v1::OpenPullResponse> Open(const v1::OpenPullRequest& asked, std::string_view caller = {},
                                            const TraceContext& trace = {});
  // `why` is OK when the receiver had all that it wanted, of the whole image or of a part. The bytes it
  // served; none for one that is unknown or was closed. `caller` as for CheckGrant. PERMISSION_DENIED when
  // the grant names another receiver.
  absl::StatusOr<uint64_t> Close(std::string_view grant_id, std::string_view caller, const absl::Status& why);
  void Revoke(const std::vector<std::string>& grant_ids);
  // The global store was heard, and what it has not revoked lives on.
  void Renew();
  // Ends what expired. A pull that still moves bytes is left alone: its lease keeps the memory as it is.
  void Sweep();
  void CloseAll();

  int active() const;
  // Under which pulls are open.
  std::vector<std::string> OpenGrants() const;
  // Waits until there is none; false when the deadline came first.
  bool AwaitNone(SteadyTime deadline) const;
  // Those that are open, then the last ones that ended, newest first.
  std::vector<v1::ServeReport> Reports() const;
  // Served since the start.
  BytesByLane bytes() const;
  // The leases that the pulls hold, by where their replicas are.
  std::map<LocationKind, int> CountLeases() const;

 private:
  // A serving and its replica; the replica's lease ends right after the serving.
  class Served {
   public:
    // `report`: what the opening said; the rest is found here. `call`: the opening. `ended`: where the report
    // goes.
    Served(v1::ServeReport report, const rpc::GrantClaims& claims, const ReplicaLease& lease,
           std::shared_ptr<ServedReplica> image, std::unique_ptr<transport::Serving> serving,
           TraceContext call, ServeLog* ended);
    ~Served();
    // Why it is about to end; before the destructor, which tells it.
    void SetEnd(absl::Status why) { end_ = std::move(why); }
    // Reads the replica no more. The bytes that it served in all. Idempotent.
    uint64_t End();
    // Of a replica that fills: `on_end` is called when its ingest ends, perhaps at once, and must not block.
    void WatchIngest(const std::function<void()>& on_end);
    // Its ingest has ended: why it failed, or OK. What is served from now on is of a ready replica.
    absl::Status NoteIngestEnd();
    v1::OpenPullResponse Opened() const;
    uint64_t bytes() const { return serving_->stats().bytes; }
    v1::ServeReport Report() const;
    const std::string& lane() const { return asked_.lane(); }
    const std::string& receiver() const { return receiver_; }
    LocationKind location() const { return location_; }

    // The registry's, under its mutex.
    SteadyTime expires;
    uint64_t bytes_seen = 0;  // at the last sweep

   private:
    const v1::ServeReport asked_;
    const std::string receiver_;  // its name, as the grant's token has it
    const LocationKind location_;
    const TraceContext made_by_;
    const TraceContext call_;
    const SteadyTime opened_ = SteadyNow();
    const ProcessTime::Watch process_{LimitedDirection::kSend};
    const std::shared_ptr<ServedReplica> image_;
    std::unique_ptr<transport::Serving> serving_;
    absl::Status end_ = absl::CancelledError("it ended while it was being opened");
    ServeLog* const ended_;
    Availability::Watch ingest_;
    std::optional<uint64_t> filling_bytes_;  // served before the ingest ended; not set: it goes on
  };
  using ServedPtr = std::unique_ptr<Served>;

  absl::StatusOr<ServedPtr> Serve(const v1::OpenPullRequest& asked, const rpc::GrantClaims& claims,
                                  const TraceContext& trace);
  // What an opening comes to that needs no new serving: the pull that is open, or that it has ended; nullopt:
  // neither.
  absl::StatusOr<std::optional<v1::OpenPullResponse>> FindOpen(const v1::OpenPullRequest& asked) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The ingest that fills its replica has ended: ends the pull where that failed.
  void EndIfIngestFailed(std::string_view grant_id);
  // Removes it, null where there is none, and remembers that it is over; it is destroyed by the caller,
  // without the lock.
  ServedPtr Take(std::string_view grant_id, absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  ServeLog ended_;
  mutable absl::Mutex mutex_;
  std::map<std::string, ServedPtr, std::less<>> open_ ABSL_GUARDED_BY(mutex_);  // by grant id
  std::map<std::string, SteadyTime, std::less<>> closed_
      ABSL_GUARDED_BY(mutex_);  // grant id -> forget it then
  TaskLoop ends_;               // of ingests, told by threads that must not wait for a peer
};

}  // namespace tensorcast::daemon
