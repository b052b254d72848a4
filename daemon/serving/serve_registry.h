// The pulls that this node serves now. Each pull has a grant and holds a lease on its replica. A pull ends
// with ClosePull, when the global store revokes the grant, when the ingest that fills the replica fails, or
// when the grant has expired and no more bytes move.
//
// A grant has one pull. Opening the grant again over the same lane returns the same pull descriptor; over
// another lane, it replaces the pull. A closed pull stays closed. Thread-safe.
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
    StoreEngine* engine = nullptr;  // must outlive the registry, like the other pointers
    DeviceRuntime* devices = nullptr;
    std::vector<transport::Transport*> transports;
    std::shared_ptr<StagingBuffers> staging;
    std::function<rpc::GrantKey()> grant_key;       // the key that the global store gave at registration
    std::string name;                               // this node's name, which grants name as their source
    absl::Duration grant_life = absl::Seconds(30);  // max time without an answered heartbeat
    absl::Duration staging_wait = absl::Seconds(10);
    std::function<SteadyTime()> now = SteadyNow;
  };

  explicit ServeRegistry(Options options) : options_(std::move(options)) {}
  ~ServeRegistry() { CloseAll(); }

  // Returns the claims of the grant's token if the token permits this request at this node. Errors: an error
  // of rpc::VerifyGrant; PERMISSION_DENIED if the token permits another request; FAILED_PRECONDITION if the
  // grant has ended. An empty receiver or artifact in the request is not compared. `caller`: the name in the
  // caller's certificate. Empty: the caller has no certificate, and the name in the request counts.
  absl::StatusOr<rpc::GrantClaims> CheckGrant(const v1::OpenPullRequest& asked,
                                              std::string_view caller = {}) const;

  // Opens the pull of a grant. `caller` as for CheckGrant; `trace` is the receiver's.
  absl::StatusOr<v1::OpenPullResponse> Open(const v1::OpenPullRequest& asked, std::string_view caller = {},
                                            const TraceContext& trace = {});
  // Closes a pull and returns the bytes that it served; 0 for a pull that is unknown or closed. `why` is OK
  // when the receiver got everything that it wanted. `caller` as for CheckGrant. PERMISSION_DENIED when the
  // grant names another receiver.
  absl::StatusOr<uint64_t> Close(std::string_view grant_id, std::string_view caller, const absl::Status& why);
  void Revoke(const std::vector<std::string>& grant_ids);
  // Renews the grants of all open pulls. Call Renew when the global store answered a heartbeat.
  void Renew();
  // Ends expired pulls that move no more bytes.
  void Sweep();
  void CloseAll();

  int active() const;
  // The ids of the grants with open pulls.
  std::vector<std::string> OpenGrants() const;
  // Waits until no pull is open; false when the deadline came first.
  bool AwaitNone(SteadyTime deadline) const;
  // Reports of the open and ending pulls, then of the last ended pulls; newer ended pulls come first.
  std::vector<v1::ServeReport> Reports() const;
  // The bytes served since the start.
  BytesByLane bytes() const;
  // The number of leases that the pulls hold, by the location of their replicas.
  std::map<LocationKind, int> CountLeases() const;

 private:
  // An open pull: a transport::Serving, and the replica that it reads. The destructor ends the Serving first,
  // and then the replica's lease.
  class Served {
   public:
    // `report`: the fields known at the opening; this object adds the others. `call`: the trace span
    // of the opening. `registry` gets the final report from the destructor, which takes the registry's mutex.
    Served(v1::ServeReport report, const rpc::GrantClaims& claims, const ReplicaLease& lease,
           std::shared_ptr<ServedReplica> image, std::unique_ptr<transport::Serving> serving,
           TraceContext call, ServeRegistry* registry);
    ~Served();
    // Sets the reason for the end, which the destructor reports.
    void SetEnd(absl::Status why) { end_ = std::move(why); }
    // Stops reading the replica, and returns the total of the bytes served. Idempotent.
    uint64_t End();
    // If the replica is filling: calls `on_end` when its ingest ends, perhaps at once. `on_end` must not
    // block.
    void WatchIngest(const std::function<void()>& on_end);
    // Call this when the replica's ingest has ended: returns the ingest's error, or OK. Bytes
    // served after this call count as bytes of a ready replica.
    absl::Status NoteIngestEnd();
    v1::OpenPullResponse Opened() const;
    uint64_t bytes() const { return serving_->stats().bytes; }
    v1::ServeReport Report() const;
    const std::string& lane() const { return asked_.lane(); }
    const std::string& receiver() const { return receiver_; }
    LocationKind location() const { return location_; }

    // The registry's mutex guards the next two members.
    SteadyTime expires;
    uint64_t bytes_seen = 0;  // at the last sweep

   private:
    const v1::ServeReport asked_;
    const std::string receiver_;  // the receiver's name in the grant's token
    const LocationKind location_;
    const TraceContext made_by_;
    const TraceContext call_;
    const SteadyTime opened_ = SteadyNow();
    const ProcessTime::Watch process_{LimitedDirection::kSend};
    const std::shared_ptr<ServedReplica> image_;
    std::unique_ptr<transport::Serving> serving_;
    absl::Status end_ = absl::CancelledError("the pull ended while it was being opened");
    ServeRegistry* const registry_;
    Availability::Watch ingest_;
    std::optional<uint64_t> filling_bytes_;  // served before the ingest ended; not set: the ingest runs
  };
  using ServedPtr = std::unique_ptr<Served>;

  absl::StatusOr<ServedPtr> Serve(const v1::OpenPullRequest& asked, const rpc::GrantClaims& claims,
                                  const TraceContext& trace);
  // The answer to an opening that needs no new serving: the open pull, or the error that the grant has ended.
  // nullopt: the opening needs a new serving.
  absl::StatusOr<std::optional<v1::OpenPullResponse>> FindOpen(const v1::OpenPullRequest& asked) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The ingest that fills the pull's replica has ended: ends the pull if the ingest failed.
  void EndIfIngestFailed(std::string_view grant_id);
  // Removes and returns the pull, and remembers the grant as closed. Null: there is no such pull. The caller
  // destroys the pull without the lock.
  ServedPtr Take(std::string_view grant_id, absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes why a pull ends, after the pull has left `open_`. Until NoteEnded gets the final report, Reports
  // returns the report of this moment.
  void Ends(Served& served, absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteEnded(const Served* served, const v1::ServeReport& report) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  ServeLog ended_;
  mutable absl::Mutex mutex_;
  std::map<const Served*, v1::ServeReport> ending_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ServedPtr, std::less<>> open_ ABSL_GUARDED_BY(mutex_);  // by grant id
  std::map<std::string, SteadyTime, std::less<>> closed_
      ABSL_GUARDED_BY(mutex_);  // grant id -> when to forget it
  TaskLoop ends_;               // handles ends of ingests, since their threads must not wait for a peer
};

}  // namespace tensorcast::daemon
