#include "daemon/serving/serve_registry.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "rpc/grant_token/grant_token.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::daemon {
namespace {

// Longer than any token lives.
constexpr absl::Duration kRememberClosed = absl::Hours(2);

absl::Status HasEnded(std::string_view grant_id) {
  return absl::FailedPreconditionError(absl::StrCat("grant ", grant_id, " has ended; ask for a new one"));
}

bool Matches(const std::string& claimed, const std::string& asked) {
  return asked.empty() || claimed == asked;
}

}  // namespace

ServeRegistry::Served::Served(LocationKind location, TraceContext made_by,
                              std::shared_ptr<ServedReplica> image,
                              std::unique_ptr<transport::Serving> serving, ServeRecord record,
                              ServeReport asked, ServeLog* ended)
    : location_(location),
      made_by_(std::move(made_by)),
      image_(std::move(image)),
      serving_(std::move(serving)),
      record_(std::move(record)),
      asked_(std::move(asked)),
      ended_(ended) {}

ServeRegistry::Served::~Served() {
  const transport::ServeStats stats = serving_->stats();
  // A receiver may want a part only: of a source that it turned to at the end.
  const bool whole = stats.bytes >= image_->image_bytes();
  const uint64_t filling_bytes = image_->availability() == nullptr ? 0 : filling_bytes_.value_or(stats.bytes);
  record_.End(stats,
              whole || end_.ok()        ? "ok"
              : absl::IsCancelled(end_) ? "cancelled"
                                        : "failed",
              filling_bytes);
  ServeReport report = Report();
  if (!whole) report.error = end_;
  ingest_ = Availability::Watch();
  serving_.reset();
  image_->Release();
  report.closed = SteadyNow();
  ended_->Add(report);
}

void ServeRegistry::Served::WatchIngest(const std::function<void()>& on_end) {
  const std::shared_ptr<const Availability> filling = image_->availability();
  if (filling == nullptr) return;
  const Availability& chunks = *filling;  // the image keeps it
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

ServeReport ServeRegistry::Served::Report() const {
  const transport::ServeStats stats = serving_->stats();
  ServeReport report = asked_;
  report.bytes = stats.bytes;
  report.requests = stats.requests;
  report.first_request = stats.first_request;
  report.last_completion = stats.last_completion;
  report.reading = image_->reading();
  return report;
}

absl::StatusOr<rpc::GrantClaims> ServeRegistry::CheckedClaims(const PullOpening& opening) const {
  TC_ASSIGN_OR_RETURN(rpc::GrantClaims claims,
                      rpc::VerifyGrant(options_.grant_key(), opening.grant_token, options_.now()));
  if (claims.grant_id != opening.grant_id || claims.replica_id != opening.replica_id ||
      !Matches(claims.artifact_id, opening.artifact_id) ||
      !Matches(claims.receiver_node_id, opening.receiver_node_id) ||
      !transport::LaneCovers(claims.lane, opening.lane) ||
      (!opening.receiver_name.empty() && claims.receiver_name != opening.receiver_name)) {
    return absl::PermissionDeniedError(
        absl::StrCat("the token is of grant ", claims.grant_id, ", which permits node ",
                     claims.receiver_node_id, " (", claims.receiver_name, ") to pull replica ",
                     claims.replica_id, " over ", claims.lane, ": that is not what was asked for",
                     opening.receiver_name.empty() ? "" : absl::StrCat(" by ", opening.receiver_name)));
  }
  if (!options_.name.empty() && claims.source_name != options_.name) {
    return absl::PermissionDeniedError(absl::StrCat("the token is of a grant to pull from ",
                                                    claims.source_name, ", and this is ", options_.name));
  }
  absl::MutexLock lock(&mutex_);
  if (closed_.contains(opening.grant_id)) return HasEnded(opening.grant_id);
  return claims;
}

absl::StatusOr<std::unique_ptr<ServeRegistry::Served>> ServeRegistry::Serve(const PullOpening& opening,
                                                                            const std::string& receiver,
                                                                            const TraceContext& trace) {
  transport::Transport* transport = transport::FindTransport(options_.transports, opening.lane);
  if (transport == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("this node does not serve the lane ", opening.lane));
  }
  TC_ASSIGN_OR_RETURN(std::shared_ptr<ReplicaLease> lease, options_.engine->LeaseToServe(opening.replica_id));
  if (!Matches(lease->manifest()->id(), opening.artifact_id)) {
    return absl::FailedPreconditionError(absl::StrCat("replica ", opening.replica_id, " is of ",
                                                      lease->manifest()->id(), ", not of ",
                                                      opening.artifact_id));
  }
  const LocationKind location = lease->location().kind;
  const bool reached = transport->memory() == transport::LaneMemory::kHostAndDevice;
  TraceContext made_by = lease->made_by();
  TC_ASSIGN_OR_RETURN(
      std::shared_ptr<ServedReplica> image,
      ServeReplica(std::move(lease), options_.devices, options_.staging, options_.staging_wait));
  absl::StatusOr<std::unique_ptr<transport::Serving>> serving = transport->Serve(image, receiver);
  if (!serving.ok()) {
    image->Release();
    return serving.status();
  }
  ServeReport asked{.grant_id = opening.grant_id,
                    .artifact_id = opening.artifact_id,
                    .replica_id = opening.replica_id,
                    .receiver_node_id = opening.receiver_node_id,
                    .lane = opening.lane,
                    .opened = SteadyNow(),
                    .in_place = image->in_place() || (reached && image->device_image())};
  return std::make_unique<Served>(location, std::move(made_by), std::move(image), *std::move(serving),
                                  ServeRecord(trace, opening.lane, opening.grant_id, opening.artifact_id),
                                  std::move(asked), &ended_);
}

absl::StatusOr<OpenedPull> ServeRegistry::Open(const PullOpening& opening, const TraceContext& trace) {
  TC_ASSIGN_OR_RETURN(const rpc::GrantClaims claims, CheckedClaims(opening));
  std::optional<OpenedPull> open;
  {
    absl::MutexLock lock(&mutex_);
    TC_ASSIGN_OR_RETURN(open, FindOpen(opening));
  }
  if (open.has_value()) return *std::move(open);
  // Both are destroyed without the lock: that may wait for a peer.
  Entry replaced;  // the same grant over another lane, if there was one
  TC_ASSIGN_OR_RETURN(std::unique_ptr<Served> served, Serve(opening, claims.receiver_name, trace));
  OpenedPull opened = served->opened();
  absl::MutexLock lock(&mutex_);
  // Meanwhile it may have been revoked, or opened by a repetition of this call.
  TC_ASSIGN_OR_RETURN(open, FindOpen(opening));
  if (open.has_value()) return *std::move(open);
  Entry& entry = entries_[opening.grant_id];
  if (entry.served != nullptr) {
    entry.served->SetEnd(absl::CancelledError("the receiver went on over another lane"));
  }
  replaced = std::exchange(entry, Entry{.lane = opening.lane,
                                        .receiver = claims.receiver_name,
                                        .served = std::move(served),
                                        .expires = options_.now() + options_.grant_life});
  // From here on, since what ends the pull looks for its entry.
  entry.served->WatchIngest(
      [this, grant_id = opening.grant_id] { ends_.Post([this, grant_id] { EndIfIngestFailed(grant_id); }); });
  return opened;
}

void ServeRegistry::EndIfIngestFailed(std::string_view grant_id) {
  Entry ended;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(grant_id);
  if (found == entries_.end()) return;
  const absl::Status failure = found->second.served->NoteIngestEnd();
  if (!failure.ok()) ended = Take(grant_id, failure);
}

absl::StatusOr<std::optional<OpenedPull>> ServeRegistry::FindOpen(const PullOpening& opening) const {
  if (closed_.contains(opening.grant_id)) return HasEnded(opening.grant_id);
  const auto open = entries_.find(opening.grant_id);
  if (open == entries_.end() || open->second.lane != opening.lane) return std::nullopt;
  return open->second.served->opened();
}

ServeRegistry::Entry ServeRegistry::Take(std::string_view grant_id, absl::Status why) {
  closed_[std::string(grant_id)] = options_.now() + kRememberClosed;
  const auto found = entries_.find(grant_id);
  if (found == entries_.end()) return Entry{};
  Entry taken = std::move(found->second);
  entries_.erase(found);
  taken.served->SetEnd(std::move(why));
  return taken;
}

absl::StatusOr<uint64_t> ServeRegistry::Close(std::string_view grant_id, std::string_view caller,
                                              const absl::Status& why) {
  Entry ended;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = entries_.find(grant_id);
    if (found == entries_.end()) return 0;
    if (!caller.empty() && caller != found->second.receiver) {
      return absl::PermissionDeniedError(absl::StrCat("close the pull under grant ", grant_id, ": node ",
                                                      caller, " is not its receiver; only ",
                                                      found->second.receiver, " may close it"));
    }
    ended = Take(grant_id, why);
  }
  return ended.served->bytes();
}

void ServeRegistry::Revoke(const std::vector<std::string>& grant_ids) {
  std::vector<Entry> ended;  // destroyed without the lock: that may wait for a peer
  absl::MutexLock lock(&mutex_);
  for (const std::string& id : grant_ids) {
    // Also one that was not opened yet: its token may still be on its way here.
    ended.push_back(Take(id, absl::CancelledError("the global store revoked the grant")));
  }
}

void ServeRegistry::Renew() {
  absl::MutexLock lock(&mutex_);
  for (auto& [id, entry] : entries_) entry.expires = options_.now() + options_.grant_life;
}

void ServeRegistry::Sweep() {
  std::vector<Entry> ended;  // destroyed without the lock
  {
    absl::MutexLock lock(&mutex_);
    const SteadyTime now = options_.now();
    std::vector<std::string> expired;
    for (auto& [id, entry] : entries_) {
      const uint64_t bytes = entry.served->bytes();
      if (bytes != entry.bytes_seen) {
        // On a slow link there may be none between one sweep and the next.
        entry.expires = std::max(entry.expires, now + options_.grant_life);
        entry.bytes_seen = bytes;
      } else if (now > entry.expires) {
        expired.push_back(id);
      }
    }
    for (const std::string& id : expired) {
      LOG(WARNING) << "The pull under grant " << id
                   << " ended: the grant expired and nothing was heard of it since";
      ended.push_back(Take(id, absl::CancelledError("the grant expired and nothing was heard of it since")));
    }
    std::erase_if(closed_, [now](const auto& entry) { return entry.second < now; });
  }
}

void ServeRegistry::CloseAll() {
  std::map<std::string, Entry, std::less<>> ended;
  absl::MutexLock lock(&mutex_);
  ended.swap(entries_);
  for (auto& [id, entry] : ended) entry.served->SetEnd(absl::CancelledError("this daemon stopped"));
}

std::vector<ServeReport> ServeRegistry::Reports() const {
  std::vector<ServeReport> reports;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, entry] : entries_) reports.push_back(entry.served->Report());
  }
  std::ranges::sort(reports, std::greater<>(), &ServeReport::opened);
  const std::vector<ServeReport> ended = ended_.Newest();
  reports.insert(reports.end(), ended.begin(), ended.end());
  return reports;
}

BytesByLane ServeRegistry::bytes() const {
  BytesByLane bytes = ended_.bytes();
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, entry] : entries_) AddBytes(entry.served->Report(), &bytes);
  return bytes;
}

int ServeRegistry::active() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(entries_.size());
}

bool ServeRegistry::AwaitNone(SteadyTime deadline) const {
  auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return entries_.empty(); };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&none), TimeLeft(deadline));
}

std::map<LocationKind, int> ServeRegistry::CountLeases() const {
  std::map<LocationKind, int> leases;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, entry] : entries_) {
    if (entry.served != nullptr) ++leases[entry.served->location()];
  }
  return leases;
}

}  // namespace tensorcast::daemon
