#include "daemon/serving/serve_registry.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/telemetry/telemetry.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"
#include "rpc/grant_token/grant_token.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::daemon {
namespace {

// Longer than any token lives.
constexpr absl::Duration kRememberClosed = absl::Hours(2);

std::string OpenUnder(std::string_view grant_id) {
  return absl::StrCat("open a pull under grant ", grant_id, ": ");
}

absl::Status HasEnded(std::string_view grant_id) {
  return absl::FailedPreconditionError(
      absl::StrCat(OpenUnder(grant_id), "the grant has ended; ask the global store for a new grant"));
}

// A receiver need not repeat what the token says.
bool Matches(const std::string& claimed, const std::string& asked) {
  return asked.empty() || claimed == asked;
}

}  // namespace

// The life of a pull: Open verifies the grant, leases the replica and begins the serving; the entry in
// `open_` is the pull. Whatever ends it (Close, Revoke, Sweep, a failed ingest, another lane, CloseAll) takes
// the entry out under the mutex with its reason, and destroys it without the mutex, since the end of a
// serving may wait for the receiver. The destructor makes the report.
ServeRegistry::Served::Served(v1::ServeReport report, const rpc::GrantClaims& claims,
                              const ReplicaLease& lease, std::shared_ptr<ServedReplica> image,
                              std::unique_ptr<transport::Serving> serving, TraceContext call,
                              ServeRegistry* registry)
    : asked_(std::move(report)),
      receiver_(claims.receiver_name),
      location_(lease.location().kind),
      made_by_(lease.made_by()),
      call_(std::move(call)),
      image_(std::move(image)),
      serving_(std::move(serving)),
      registry_(registry) {}

uint64_t ServeRegistry::Served::End() {
  ingest_ = Availability::Watch();
  serving_->End();
  return bytes();
}

ServeRegistry::Served::~Served() {
  // First, so that everything that the receiver has is counted.
  End();
  const transport::ServeStats stats = serving_->stats();
  // A receiver may want a part only: of a source that it turned to at the end.
  const bool whole = stats.bytes >= image_->image_bytes();
  // Bytes served before the replica was complete. A pull that ended while the ingest still ran served all of
  // them in that time.
  const uint64_t filling_bytes = image_->availability() == nullptr ? 0 : filling_bytes_.value_or(stats.bytes);
  const char* const outcome = whole || end_.ok() ? "ok" : absl::IsCancelled(end_) ? "cancelled" : "failed";
  RecordServing(asked_, stats, opened_, call_, outcome, filling_bytes);
  v1::ServeReport report = Report();
  // A pull that its receiver ended without an error, or that gave the whole image, has not failed.
  if (!whole && !end_.ok()) *report.mutable_error() = rpc::ToProto(end_);
  // The transport ends first: from here on no thread of it reads the replica, so its lease can end.
  serving_.reset();
  image_->Release();
  *report.mutable_closed() = rpc::ToProto(ToWallTime(SteadyNow()));
  registry_->NoteEnded(this, report);
}

v1::OpenPullResponse ServeRegistry::Served::Opened() const {
  v1::OpenPullResponse response;
  response.set_pull_descriptor(serving_->descriptor());
  response.set_made_by(made_by_.ToTraceparent());
  return response;
}

// The second look is for an end that came before the watch. Both may tell; NoteIngestEnd is idempotent.
void ServeRegistry::Served::WatchIngest(const std::function<void()>& on_end) {
  const std::shared_ptr<const Availability> filling = image_->availability();
  if (filling == nullptr) return;
  const Availability& chunks = *filling;  // the image keeps it
  // `on_end` only posts a task: the thread that fills the replica must not wait for a peer.
  ingest_ = chunks.OnChange([&chunks, on_end] {
    if (chunks.ended()) on_end();
  });
  if (chunks.ended()) on_end();
}

absl::Status ServeRegistry::Served::NoteIngestEnd() {
  const std::shared_ptr<const Availability> filling = image_->availability();
  if (filling == nullptr || !filling->ended()) return absl::OkStatus();  // opened anew meanwhile
  if (!filling_bytes_.has_value()) filling_bytes_ = bytes();
  return filling->end();
}

v1::ServeReport ServeRegistry::Served::Report() const {
  const transport::ServeStats stats = serving_->stats();
  v1::ServeReport report = asked_;
  *report.mutable_opened() = rpc::ToProto(ToWallTime(opened_));
  report.set_bytes(stats.bytes);
  report.set_requests(stats.requests);
  if (stats.requests > 0) {
    *report.mutable_first_request() = rpc::ToProto(ToWallTime(stats.first_request));
    *report.mutable_last_completion() = rpc::ToProto(ToWallTime(stats.last_completion));
  }
  *report.mutable_reading() = rpc::ToProto(image_->reading());
  WallTime time = process_.Elapsed();
  // A receiver that reads this node's memory by itself makes no requests.
  if (stats.requests > 0) time[TimeUse::kIdle] = std::max(time.whole - stats.asked, absl::ZeroDuration());
  *report.mutable_wall_time() = rpc::ToProto(time);
  return report;
}

// The token is checked first, so an error tells nothing of this node's replicas to a caller without a grant.
absl::StatusOr<rpc::GrantClaims> ServeRegistry::CheckGrant(const v1::OpenPullRequest& asked,
                                                           std::string_view caller) const {
  TC_ASSIGN_OR_RETURN(rpc::GrantClaims claims,
                      rpc::VerifyGrant(options_.grant_key(), asked.grant_token(), options_.now()));
  // The token says what the store permitted, the request what is wanted: each of them has to agree in all
  // that both name.
  if (claims.grant_id != asked.grant_id() || claims.replica_id != asked.replica_id() ||
      !Matches(claims.artifact_id, asked.artifact_id()) ||
      !Matches(claims.receiver_node_id, asked.receiver_node_id()) ||
      !transport::LaneCovers(claims.lane, asked.lane()) ||
      (!caller.empty() && claims.receiver_name != caller)) {
    return absl::PermissionDeniedError(absl::StrCat(
        OpenUnder(asked.grant_id()), "the token belongs to grant ", claims.grant_id, " and permits node ",
        claims.receiver_node_id, " (", claims.receiver_name, ") to pull replica ", claims.replica_id,
        " over ", claims.lane, ", but the request", caller.empty() ? "" : absl::StrCat(" of ", caller),
        " asks for something else; ask the global store for a grant for this request"));
  }
  if (!options_.name.empty() && claims.source_name != options_.name) {
    return absl::PermissionDeniedError(
        absl::StrCat(OpenUnder(asked.grant_id()), "the token names the source ", claims.source_name,
                     ", and this source is ", options_.name, "; pull from the source in the token"));
  }
  absl::MutexLock lock(&mutex_);
  if (closed_.contains(asked.grant_id())) return HasEnded(asked.grant_id());
  return claims;
}

absl::StatusOr<ServeRegistry::ServedPtr> ServeRegistry::Serve(const v1::OpenPullRequest& asked,
                                                              const rpc::GrantClaims& claims,
                                                              const TraceContext& trace) {
  transport::Transport* transport = transport::FindTransport(options_.transports, asked.lane());
  if (transport == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(OpenUnder(asked.grant_id()),
                                                      "this node does not serve the lane ", asked.lane(),
                                                      "; use a lane that `tensorcast status` lists"));
  }
  // The replica is leased before it is served, so that the memory stays until the serving has ended.
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ReplicaLease> lease, options_.engine->LeaseToServe(asked.replica_id()));
  if (!Matches(lease->manifest()->id(), asked.artifact_id())) {
    return absl::FailedPreconditionError(absl::StrCat(
        OpenUnder(asked.grant_id()), "replica ", asked.replica_id(), " is a copy of ",
        lease->manifest()->id(), ", not of ", asked.artifact_id(), "; ask the global store for a new grant"));
  }
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ServedReplica> image,
                      ServeReplica(lease, options_.devices, options_.staging, options_.staging_wait));
  absl::StatusOr<std::unique_ptr<transport::Serving>> serving = transport->Serve(image, claims.receiver_name);
  if (!serving.ok()) {
    image->Release();
    return serving.status();
  }
  const bool reached = transport->memory() == transport::LaneMemory::kHostAndDevice;
  v1::ServeReport report;
  report.set_grant_id(asked.grant_id());
  report.set_artifact_id(asked.artifact_id());
  report.set_replica_id(asked.replica_id());
  report.set_receiver_node_id(asked.receiver_node_id());
  report.set_lane(asked.lane());
  report.set_in_place(image->in_place() || (reached && image->device_image()));
  return std::make_unique<Served>(std::move(report), claims, *lease, std::move(image), *std::move(serving),
                                  trace, this);
}

absl::StatusOr<v1::OpenPullResponse> ServeRegistry::Open(const v1::OpenPullRequest& asked,
                                                         std::string_view caller, const TraceContext& trace) {
  TC_ASSIGN_OR_RETURN(const rpc::GrantClaims claims, CheckGrant(asked, caller));
  std::optional<v1::OpenPullResponse> open;
  // The table is looked at before anything is opened: a repeated call gets the same pull.
  {
    absl::MutexLock lock(&mutex_);
    TC_ASSIGN_OR_RETURN(open, FindOpen(asked));
  }
  if (open.has_value()) return *std::move(open);
  // Both are destroyed without the lock: that may wait for a peer.
  ServedPtr replaced;  // the same grant over another lane, if there was one
  TC_ASSIGN_OR_RETURN(ServedPtr served, Serve(asked, claims, trace));
  v1::OpenPullResponse opened = served->Opened();
  absl::MutexLock lock(&mutex_);
  // Meanwhile it may have been revoked, or opened by a repetition of this call.
  TC_ASSIGN_OR_RETURN(open, FindOpen(asked));
  if (open.has_value()) return *std::move(open);
  // Each answer of the global store to a heartbeat moves this time on (Renew).
  served->expires = options_.now() + options_.grant_life;
  ServedPtr& entry = open_[asked.grant_id()];
  // One grant has one pull: the receiver goes on over another lane.
  replaced = std::exchange(entry, std::move(served));
  if (replaced != nullptr) Ends(*replaced, absl::CancelledError("the receiver continued over another lane"));
  // From here on, since what ends the pull looks for its entry.
  entry->WatchIngest(
      [this, grant_id = asked.grant_id()] { ends_.Post([this, grant_id] { EndIfIngestFailed(grant_id); }); });
  return opened;
}

// Runs on the thread of `ends_`. The pull may have ended, or have been opened anew, since the task was
// posted.
void ServeRegistry::EndIfIngestFailed(std::string_view grant_id) {
  ServedPtr ended;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  const auto found = open_.find(grant_id);
  if (found == open_.end()) return;
  const absl::Status failure = found->second->NoteIngestEnd();
  if (!failure.ok()) ended = Take(grant_id, failure);
}

absl::StatusOr<std::optional<v1::OpenPullResponse>> ServeRegistry::FindOpen(
    const v1::OpenPullRequest& asked) const {
  if (closed_.contains(asked.grant_id())) return HasEnded(asked.grant_id());
  const auto open = open_.find(asked.grant_id());
  if (open == open_.end() || open->second->lane() != asked.lane()) return std::nullopt;
  return open->second->Opened();
}

ServeRegistry::ServedPtr ServeRegistry::Take(std::string_view grant_id, absl::Status why) {
  // The grant is remembered first, so that a token which is still on its way cannot open the pull again.
  closed_[std::string(grant_id)] = options_.now() + kRememberClosed;
  auto taken = open_.extract(std::string(grant_id));
  if (taken.empty()) return nullptr;
  Ends(*taken.mapped(), std::move(why));
  return std::move(taken.mapped());
}

void ServeRegistry::Ends(Served& served, absl::Status why) {
  served.SetEnd(std::move(why));
  ending_[&served] = served.Report();
}

// Both under one lock: a reader finds the pull in one of them.
void ServeRegistry::NoteEnded(const Served* served, const v1::ServeReport& report) {
  absl::MutexLock lock(&mutex_);
  ending_.erase(served);
  ended_.Add(report);
}

absl::StatusOr<uint64_t> ServeRegistry::Close(std::string_view grant_id, std::string_view caller,
                                              const absl::Status& why) {
  ServedPtr ended;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = open_.find(grant_id);
    if (found == open_.end()) return 0;
    if (!caller.empty() && caller != found->second->receiver()) {
      return absl::PermissionDeniedError(absl::StrCat("close the pull under grant ", grant_id, ": node ",
                                                      caller, " is not the receiver of the pull; only ",
                                                      found->second->receiver(), " may close the pull"));
    }
    ended = Take(grant_id, why);
  }
  // The lock is not held here: the transport may have to wait for the receiver.
  return ended->End();
}

void ServeRegistry::Revoke(const std::vector<std::string>& grant_ids) {
  std::vector<ServedPtr> ended;  // destroyed without the lock: that may wait for a peer
  absl::MutexLock lock(&mutex_);
  for (const std::string& id : grant_ids) {
    // Also one that was not opened yet: its token may still be on its way here.
    ended.push_back(Take(id, absl::CancelledError("the global store revoked the grant")));
  }
}

void ServeRegistry::Renew() {
  absl::MutexLock lock(&mutex_);
  for (auto& [id, served] : open_) served->expires = options_.now() + options_.grant_life;
}

void ServeRegistry::Sweep() {
  std::vector<ServedPtr> ended;  // destroyed without the lock
  {
    absl::MutexLock lock(&mutex_);
    const SteadyTime now = options_.now();
    std::vector<std::string> expired;
    for (auto& [id, served] : open_) {
      const uint64_t bytes = served->bytes();
      if (bytes != served->bytes_seen) {
        // On a slow link there may be none between one sweep and the next.
        served->expires = std::max(served->expires, now + options_.grant_life);
        served->bytes_seen = bytes;
      } else if (now > served->expires) {
        expired.push_back(id);
      }
    }
    for (const std::string& id : expired) {
      const absl::Status why = absl::CancelledError(
          "the grant expired: the global store answered no heartbeat, and the receiver fetched nothing");
      LOG(WARNING) << "The pull under grant " << id << " ended: " << why.message();
      ended.push_back(Take(id, why));
    }
    std::erase_if(closed_, [now](const auto& entry) { return entry.second < now; });
  }
}

void ServeRegistry::CloseAll() {
  std::map<std::string, ServedPtr, std::less<>> ended;
  absl::MutexLock lock(&mutex_);
  // `ended` is declared before the lock, so the pulls are destroyed after it was released.
  ended.swap(open_);
  for (auto& [id, served] : ended) Ends(*served, absl::CancelledError("this daemon stopped"));
}

std::vector<v1::ServeReport> ServeRegistry::Reports() const {
  std::vector<v1::ServeReport> reports;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, served] : open_) reports.push_back(served->Report());
  for (const auto& [served, report] : ending_) reports.push_back(report);
  std::ranges::sort(reports, std::greater<>(),
                    [](const v1::ServeReport& report) { return rpc::FromProto(report.opened()); });
  const std::vector<v1::ServeReport> ended = ended_.Newest();
  reports.insert(reports.end(), ended.begin(), ended.end());
  return reports;
}

BytesByLane ServeRegistry::bytes() const {
  absl::MutexLock lock(&mutex_);
  BytesByLane bytes = ended_.bytes();
  for (const auto& [id, served] : open_) bytes[served->lane()] += served->bytes();
  for (const auto& [served, report] : ending_) AddBytes(report, &bytes);
  return bytes;
}

std::vector<std::string> ServeRegistry::OpenGrants() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> grant_ids;
  grant_ids.reserve(open_.size());
  for (const auto& [grant_id, served] : open_) grant_ids.push_back(grant_id);
  return grant_ids;
}

int ServeRegistry::active() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(open_.size());
}

bool ServeRegistry::AwaitNone(SteadyTime deadline) const {
  auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return open_.empty(); };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&none), TimeLeft(deadline));
}

std::map<LocationKind, int> ServeRegistry::CountLeases() const {
  std::map<LocationKind, int> leases;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, served] : open_) ++leases[served->location()];
  return leases;
}

}  // namespace tensorcast::daemon
