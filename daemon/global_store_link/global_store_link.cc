#include "daemon/global_store_link/global_store_link.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/upkeep.h"
#include "core/replica/inventory_digest.h"
#include "daemon/global_store_link/republication.h"
#include "otel/api/span.h"
#include "rpc/convert/convert.h"
#include "rpc/retry_after.h"

namespace tensorcast::daemon {
namespace {

constexpr size_t kReplicasPerMessage = 500;

// Links of one report to the requests that caused it: as many as a span keeps by default.
constexpr size_t kMaxCauses = 32;

// Taken for the global store's node_ttl by a node that it never took: longer than is usual.
constexpr absl::Duration kUnknownNodeTtl = absl::Seconds(30);

constexpr absl::Duration kMinHeartbeatInterval = absl::Milliseconds(10);

constexpr std::string_view kForCopies =
    "if the state directory was copied, remove the file node_id from the copy, so that the copy becomes a "
    "new node";

constexpr std::string_view kTelling = "tell the global store what changed on this node: ";

// The global store no longer knows this node, or this incarnation of it.
bool MustRegister(const absl::Status& status) { return absl::IsAborted(status) || absl::IsNotFound(status); }

// The spans in which the replicas changed, each once.
std::vector<otel::SpanLink> CausesOf(const std::vector<ReplicaChange>& changed) {
  std::vector<otel::SpanLink> causes;
  for (const ReplicaChange& change : changed) {
    const auto is_its_cause = [&](const otel::SpanLink& link) { return link.context == change.cause; };
    if (!change.cause.IsValid() || std::ranges::any_of(causes, is_its_cause)) continue;
    if (causes.size() == kMaxCauses) break;
    causes.push_back({.context = change.cause});
  }
  return causes;
}

}  // namespace

GlobalStoreLink::GlobalStoreLink(Options options)
    : options_(std::move(options)),
      node_ttl_(kUnknownNodeTtl),
      standing_(absl::UnavailableError("the global store has not answered yet; wait, or start the global "
                                       "store that daemon.global_store names")) {
  options_.feed->SetWake([this] { Wake(); });
}

GlobalStoreLink::~GlobalStoreLink() {
  Stop(false);
  options_.feed->SetWake(nullptr);
}

absl::Status GlobalStoreLink::Start(LinkedNode* node, std::string grpc_address) {
  node_ = node;
  options_.node.set_grpc_address(std::move(grpc_address));
  TC_ASSIGN_OR_RETURN(thread_,
                      StartThread(absl::StrCat("register node ", options_.node.name()), [this] { Loop(); }));
  return absl::OkStatus();
}

// The goodbye is an empty inventory, sent after the thread has ended, so that nothing comes after it. Only
// where the global store took the last report: else it is away, or takes another for this node.
void GlobalStoreLink::Stop(bool goodbye) {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (!thread_.joinable()) return;
  thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    const bool heard = registered_ && standing_.ok();
    registered_ = false;
    if (!goodbye || !heard) return;
  }
  v1::ReconcileInventoryRequest nothing;
  *nothing.mutable_node() = identity();
  nothing.set_sequence(sequence_);
  const absl::Status status =
      options_.client->ReconcileInventory(UpkeepContext(options_.call_timeout), {nothing}).status();
  LOG_IF(WARNING, !status.ok()) << "tell the global store that this node stops: " << status
                                << "; the global store will notice that heartbeats are missing";
}

v1::NodeIdentity GlobalStoreLink::identity() const {
  v1::NodeIdentity identity;
  identity.set_node_id(options_.node.node_id());
  identity.set_incarnation(options_.node.incarnation());
  return identity;
}

rpc::GrantKey GlobalStoreLink::grant_key() const {
  absl::MutexLock lock(&mutex_);
  return grant_key_;
}

std::string GlobalStoreLink::cluster_id() const {
  absl::MutexLock lock(&mutex_);
  return cluster_id_;
}

absl::Status GlobalStoreLink::standing() const {
  absl::MutexLock lock(&mutex_);
  return standing_;
}

absl::Status GlobalStoreLink::CheckNotReplaced() const {
  absl::MutexLock lock(&mutex_);
  return replaced_;
}

absl::Status GlobalStoreLink::WaitRegistered(SteadyTime deadline) {
  absl::MutexLock lock(&mutex_);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return registered_ || stopping_; };
  mutex_.AwaitWithTimeout(absl::Condition(&done), TimeLeft(deadline));
  if (registered_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("wait for the registration of node ", options_.node.name(), ": ", standing_.message()));
}

void GlobalStoreLink::HeartbeatSoon() {
  absl::MutexLock lock(&mutex_);
  heartbeat_wanted_ = true;
  woken_ = true;
}

absl::Status GlobalStoreLink::CheckIn(SteadyTime deadline) {
  {
    absl::MutexLock lock(&mutex_);
    heartbeat_wanted_ = true;
  }
  return Flush(deadline);
}

absl::Status GlobalStoreLink::Flush(SteadyTime deadline) {
  // A heartbeat of this node shows a store that was restarted that it has to register the node again.
  absl::MutexLock lock(&mutex_);
  // The round that runs now may have taken its changes before this call: the one after it has not.
  const uint64_t wanted = rounds_ + 2;
  // `woken_` is set for each round anew, since the one that begins takes it away.
  while (rounds_ < wanted && !stopping_ && replaced_.ok()) {
    woken_ = true;
    const uint64_t before = rounds_;
    const auto moved = [this, before]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return rounds_ > before || stopping_ || !replaced_.ok();
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&moved), TimeLeft(deadline))) {
      return absl::UnavailableError(
          absl::StrCat(kTelling, standing_.ok() ? "the global store has not answered in time; try again"
                                                : standing_.message()));
    }
  }
  if (!replaced_.ok()) return replaced_;
  if (rounds_ >= wanted) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat(kTelling, "this daemon is stopping; try again when the daemon runs again"));
}

void GlobalStoreLink::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
}

bool GlobalStoreLink::HeartbeatDue() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(heartbeat_wanted_, false) || SteadyNow() >= next_heartbeat_;
}

bool GlobalStoreLink::WaitForWork(SteadyTime until) {
  absl::MutexLock lock(&mutex_);
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return woken_ || stopping_; };
  mutex_.AwaitWithTimeout(absl::Condition(&due), TimeLeft(until));
  woken_ = false;
  return !stopping_;
}

// A round is one Step: what is due, in a fixed order. After a good one the thread sleeps until something
// changed or a heartbeat is due; after a bad one for the backoff, whatever happens meanwhile.
void GlobalStoreLink::Loop() {
  rpc::Backoff backoff(options_.backoff);
  bool registering = false;
  while (true) {
    const absl::Status status = Step();
    // A store that answers but does not know this node (it restarted) is told at once, the first time.
    const bool at_once = MustRegister(status) && !std::exchange(registering, true);
    NoteOutcome(status, /*final=*/!at_once);
    if (at_once) continue;
    if (SteadyNow() - replaced_since_ >= Patience()) return GiveUp();
    if (status.ok()) {
      registering = false;
      backoff.Reset();
      if (!WaitForWork(next_heartbeat_)) return;
      continue;
    }
    // Changes that arrive meanwhile do not cut the wait short.
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), rpc::WaitAfter(status, backoff))) return;
  }
}

void GlobalStoreLink::GiveUp() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;  // for the calls that wait
  }
  if (options_.on_replaced) {
    options_.on_replaced(absl::FailedPreconditionError(
        absl::StrCat(replaced_by_, "; the other daemon is alive, so this daemon stops; ", kForCopies)));
  }
}

void GlobalStoreLink::NoteOutcome(const absl::Status& status, bool final) {
  if (final && status.code() != std::exchange(logged_, status.code())) {
    LOG_IF(WARNING, !status.ok()) << "report to the global store: " << status << "; this daemon tries again";
    LOG_IF(INFO, status.ok()) << "The global store accepts this node's reports";
  }
  absl::MutexLock lock(&mutex_);
  standing_ = status;
  if (status.ok()) {
    ++rounds_;
    return;
  }
  // UNAVAILABLE and the like leave it registered: the global store may have been away for a moment only.
  if (MustRegister(status)) registered_ = false;
}

// An inventory makes the changes before it unnecessary, so it goes first; heartbeats come last, since they
// tell up to which change the global store should be.
// What is due is state, not messages: `registered_`, `inventory_due_`, the feed and `next_heartbeat_`. A call
// that fails leaves its work due, and the next round begins with it.
absl::Status GlobalStoreLink::Step() {
  bool registered;
  {
    absl::MutexLock lock(&mutex_);
    registered = registered_;
  }
  if (!registered) TC_RETURN_IF_ERROR(Register());
  if (options_.feed->TakeOverflow()) inventory_due_ = true;
  if (inventory_due_) TC_RETURN_IF_ERROR(SendInventory());
  TC_RETURN_IF_ERROR(SendChanges());
  if (HeartbeatDue()) TC_RETURN_IF_ERROR(SendHeartbeat());
  return absl::OkStatus();
}

absl::Status GlobalStoreLink::Register() {
  v1::RegisterNodeRequest request;
  *request.mutable_node() = options_.node;
  // Before its first heartbeat a client may request an artifact here that has no room.
  node_->FillPools(request.mutable_node()->mutable_pools());
  absl::StatusOr<v1::RegisterNodeResponse> registered =
      options_.client->RegisterNode(UpkeepContext(options_.call_timeout), request);
  // ABORTED at registration: another process holds this node id.
  if (absl::IsAborted(registered.status())) return Replaced(registered.status());
  replaced_since_ = SteadyTime::InfiniteFuture();
  SetReplaced(absl::OkStatus());
  TC_ASSIGN_OR_RETURN(const v1::RegisterNodeResponse response, std::move(registered));
  Obey(response.heartbeat_interval(), response.node_ttl());
  // Heartbeats compare the epoch: another one means that the store was restarted and has lost all soft state.
  store_epoch_ = response.store_epoch();
  inventory_due_ = true;
  next_heartbeat_ = SteadyNow() + heartbeat_interval_;
  LOG(INFO) << "Registered with the global store as " << options_.node.name() << " ("
            << options_.node.node_id() << ")";
  absl::MutexLock lock(&mutex_);
  grant_key_ = {.bytes = response.grant_key(),
                .given = SteadyNow() - rpc::FromProto(response.grant_key_age()),
                .epoch = response.store_epoch()};
  cluster_id_ = response.cluster_id();
  registered_ = true;
  standing_ = absl::OkStatus();  // it has answered: a call that waited for registered_ reads this next
  return absl::OkStatus();
}

absl::Status GlobalStoreLink::Replaced(const absl::Status& why) {
  replaced_since_ = std::min(replaced_since_, SteadyNow());
  replaced_by_ = why.message();
  const std::string text =
      absl::StrCat(replaced_by_, "; this daemon stops if the other daemon is still alive in ",
                   absl::FormatDuration(Patience()), "; ", kForCopies);
  SetReplaced(absl::FailedPreconditionError(text));
  return absl::AbortedError(text);
}

void GlobalStoreLink::SetReplaced(absl::Status replaced) {
  absl::MutexLock lock(&mutex_);
  replaced_ = std::move(replaced);
}

absl::Status GlobalStoreLink::SendInventory() {
  inventory_due_ = true;  // until it is taken
  // In this order: a change after the snapshot is in the queue, one before it may be in both.
  options_.feed->Clear();
  const std::vector<ReplicaInfo> inventory = node_->Inventory();
  std::vector<v1::ReconcileInventoryRequest> messages(1);
  *messages.front().mutable_node() = identity();
  messages.front().set_sequence(sequence_);
  for (const ReplicaInfo& replica : inventory) {
    // A first ingest has no artifact id yet, and no other node can want it.
    if (replica.artifact_id.empty()) continue;
    if (messages.back().replicas_size() >= static_cast<int>(kReplicasPerMessage)) messages.emplace_back();
    *messages.back().add_replicas() = rpc::ToProto(replica);
  }
  TC_ASSIGN_OR_RETURN(const v1::ReconcileInventoryResponse response,
                      options_.client->ReconcileInventory(UpkeepContext(options_.call_timeout), messages));
  inventory_due_ = false;
  RepublishUnknown({.client = options_.client,
                    .feed = options_.feed,
                    .node = node_,
                    .identity = identity(),
                    .call_timeout = options_.call_timeout},
                   inventory, response.unknown_artifacts());
  return absl::OkStatus();
}

absl::Status GlobalStoreLink::SendChanges() {
  while (true) {
    const std::vector<ReplicaChange> changed = options_.feed->Take(kReplicasPerMessage);
    if (changed.empty()) return absl::OkStatus();
    RequestContext report = UpkeepContext(options_.call_timeout);
    // It is told where the report fails or takes long: then the links say which requests it is about.
    const std::vector<otel::SpanLink> causes = CausesOf(changed);
    otel::Span span("StoreDaemon/ReportReplicas", report, {}, {.links = causes});
    span.AttachTo(&report);
    v1::UpdateReplicasRequest request;
    *request.mutable_node() = identity();
    // A number for each message; the global store that misses one asks for the inventory.
    request.set_sequence(++sequence_);
    for (const ReplicaChange& change : changed) *request.add_replicas() = rpc::ToProto(change.replica);
    const absl::StatusOr<v1::UpdateReplicasResponse> response =
        span.Record(options_.client->UpdateReplicas(report, request));
    // What a call reported that failed may or may not have arrived.
    if (!response.ok()) inventory_due_ = true;
    TC_RETURN_IF_ERROR(response.status());
    if (response->inventory_wanted()) TC_RETURN_IF_ERROR(SendInventory());
  }
}

void GlobalStoreLink::Obey(const google::protobuf::Duration& heartbeat_interval,
                           const google::protobuf::Duration& node_ttl) {
  heartbeat_interval_ = std::max(kMinHeartbeatInterval, rpc::FromProto(heartbeat_interval));
  node_ttl_ = rpc::FromProto(node_ttl);
}

// All changes were told, and none came while the node was looked at. A change that the engine has made, and
// not told the feed yet, is still missed: the global store waits until a difference has lasted.
std::optional<uint64_t> GlobalStoreLink::InventoryDigest() {
  const uint64_t changes = options_.feed->changes();
  if (!options_.feed->empty()) return std::nullopt;
  uint64_t digest = 0;
  for (const ReplicaInfo& replica : node_->Inventory()) digest += InventoryDigestOf(replica);
  if (options_.feed->changes() != changes) return std::nullopt;
  return digest;
}

absl::Status GlobalStoreLink::SendHeartbeat() {
  v1::HeartbeatRequest request;
  *request.mutable_node() = identity();
  request.set_inventory_sequence(sequence_);
  if (const auto digest = InventoryDigest(); digest.has_value()) request.set_inventory_digest(*digest);
  node_->FillPools(request.mutable_pools());
  node_->FillHeartbeat(&request);
  next_heartbeat_ = SteadyTime::InfinitePast();  // until it is answered
  TC_ASSIGN_OR_RETURN(const v1::HeartbeatResponse response,
                      options_.client->Heartbeat(UpkeepContext(options_.call_timeout), request));
  Obey(response.heartbeat_interval(), response.node_ttl());
  next_heartbeat_ = SteadyNow() + heartbeat_interval_;
  {
    absl::MutexLock lock(&mutex_);
    grant_key_.given = SteadyNow() - rpc::FromProto(response.grant_key_age());
  }
  node_->OnHeartbeat(response);
  // ABORTED makes the loop register again, at once: a global store that was restarted has to be told
  // everything.
  if (response.store_epoch() != store_epoch_) {
    return absl::AbortedError(
        "heartbeat to the global store: the global store was restarted; no action is needed, this daemon "
        "registers again");
  }
  if (response.inventory_wanted()) TC_RETURN_IF_ERROR(SendInventory());
  return absl::OkStatus();
}

}  // namespace tensorcast::daemon
