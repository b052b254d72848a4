#include "core/replicas/evicting_allocator.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/span.h"

namespace tensorcast {
namespace {

// No local event tells that the guard would now answer otherwise (a copy was made elsewhere), so waiters ask
// again.
constexpr absl::Duration kAskGuardAgain = absl::Seconds(2);
// The interval where the guard says that something is about to end.
constexpr absl::Duration kAskGuardSoon = absl::Milliseconds(250);
// The requester of a replica holds it when it is made, mostly for a moment only: such holds are waited for,
// too.
constexpr absl::Duration kHandover = absl::Seconds(1);

// The max number of reasons in the error of a full pool.
constexpr int kReasonsNamed = 3;

// What is free, or will be with small images that go: their granule comes back with the last of them.
uint64_t FreeBytes(const PoolStats& stats) {
  return stats.capacity_bytes - std::min(stats.used_bytes, stats.capacity_bytes) + stats.small_free_bytes;
}

std::string PoolName(Location pool) {
  return pool.kind == LocationKind::kCpu ? "the host pool" : absl::StrCat("the pool of ", pool.ToString());
}

void AppendShare(std::string& text, const PoolHolders::Share& share, std::string_view what,
                 std::string_view use = "") {
  if (share.replicas > 0) {
    absl::StrAppend(&text, ", ", share.replicas, " ", what, share.replicas == 1 ? " replica" : " replicas",
                    use, " (", share.bytes, " bytes)");
  }
}

// The setting that gives the pool more memory.
std::string_view SizeKey(Location pool) {
  return pool.kind == LocationKind::kCpu ? "daemon.host_pool" : "daemon.device_pool";
}

// What a person can do about what holds the pool. Why idle replicas must stay, the guard says itself.
std::string RemedyFor(const PoolHolders& holders, Location pool) {
  std::vector<std::string> ways;
  if (holders.leased.replicas > 0) {
    ways.emplace_back(
        "close the replicas that programs still hold (`tensorcast replica ls` shows the leases)");
  }
  if (holders.pinned.replicas > 0) ways.emplace_back("unpin replicas (`tensorcast replica unpin`)");
  ways.push_back(absl::StrCat("raise ", SizeKey(pool)));
  ways.emplace_back("or wait for space (--wait)");
  return absl::StrJoin(ways, ", ");
}

// An eviction concerns the replica that goes, not the request for room: a trace of its own, with a link. A
// request that is not sampled has its evictions not sampled either.
otel::Span EvictionSpan(const ReplicaInfo& victim, const TraceContext& needed_by) {
  if (!needed_by.IsSampled()) return otel::Span();
  namespace attr = otel::attr;
  const otel::SpanLink link{.context = needed_by};
  return otel::Span("StoreEngine/Evict", TraceContext(),
                    {{attr::kReplicaId, victim.id},
                     {attr::kArtifactId, victim.artifact_id},
                     {attr::kLocation, LocationKindName(victim.location.kind)},
                     {attr::kSizeBytes, victim.image_bytes},
                     {attr::kReason, "space"}},
                    {.links = {&link, 1}});
}

}  // namespace

EvictingAllocator::EvictingAllocator(ReplicaTable* table, HostPool* host, DevicePool* devices,
                                     EvictionGuard* guard, uint64_t reserved_host_bytes)
    : table_(table),
      host_(host),
      devices_(devices),
      guard_(guard),
      reserved_host_bytes_(reserved_host_bytes) {}

absl::StatusOr<HostAllocation> EvictingAllocator::AllocateHost(
    const AllocationRequest& request,
    absl::FunctionRef<absl::StatusOr<HostAllocation>(HostPool& pool)> allocate) {
  return AllocateIn<HostAllocation>({LocationKind::kCpu, 0}, request,
                                    [this, allocate] { return allocate(*host_); });
}

absl::StatusOr<DeviceBlock> EvictingAllocator::AllocateDevice(int device, const AllocationRequest& request) {
  TC_RETURN_IF_ERROR(devices_->CheckDevice(device));
  return AllocateIn<DeviceBlock>({LocationKind::kGpu, device}, request, [this, device, &request] {
    return devices_->Allocate(device, request.bytes);
  });
}

template <typename Memory>
absl::StatusOr<Memory> EvictingAllocator::AllocateIn(Location pool, const AllocationRequest& request,
                                                     absl::FunctionRef<absl::StatusOr<Memory>()> allocate) {
  // Rounds of: allocate; else evict one and try again; else wait for an event and try again. `refused` are
  // those that the guard or a new lease kept in this call; they are asked about again after kAskGuardAgain.
  Refusals refused;
  bool landing = false;
  SteadyTime handover_ends = SteadyTime::InfinitePast();
  while (true) {
    // Before the attempt, so that space which appears after it ends the wait below at once.
    const uint64_t seen = table_->space().events();
    RequestContext context = request.context();
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("wait for space in ", PoolName(pool))));
    absl::StatusOr<Memory> memory = allocate();
    if (memory.ok() || !absl::IsResourceExhausted(memory.status())) return memory;
    // Not even an empty pool would do: waiting is useless.
    if (!CanEverFit(pool, request)) return Full(pool, request, memory.status(), refused);
    const bool worth_evicting = WorthEvicting(pool, request.bytes);
    // What became free since the attempt may be enough.
    if (table_->space().events() != seen) continue;
    if (worth_evicting && TryEvictOne(pool, context.trace, refused)) continue;
    // When the last replica that filled has been made, its requester may hold it for a moment: the request is
    // not refused before kHandover has passed since then.
    const bool landed = std::exchange(landing, request.await_ingests && WillHaveRoom(pool, request.bytes));
    if (landing || landed) handover_ends = SteadyNow() + kHandover;
    const bool ends_by_itself = table_->Holders(pool).in_flux || !refused.awaited.empty();
    if (!request.wait && !ends_by_itself && SteadyNow() >= handover_ends) {
      // What was in flux at the attempt may have freed its memory since; looked at after `in_flux`, because
      // memory is free, and counted as an event, before its replica is out of flux.
      if (table_->space().events() != seen) continue;
      return Full(pool, request, memory.status(), refused);
    }
    // A request that does not wait for leases still waits for memory in flux, which comes back by itself,
    // and for replicas that fill, which can be evicted afterwards.
    const absl::Duration ask_after = refused.awaited.empty() ? kAskGuardAgain : kAskGuardSoon;
    const SteadyTime deadline = std::min(context.deadline, SteadyNow() + ask_after);
    const bool handing_over = !request.wait && SteadyNow() < handover_ends;
    context.deadline = handing_over ? std::min(deadline, handover_ends) : deadline;
    if (request.on_wait) {
      request.on_wait(refused.awaited.empty() ? absl::StrCat("room in ", PoolName(pool)) : refused.awaited);
    }
    table_->space().AwaitEvent(seen, context);
    if (request.on_wait) request.on_wait("");
    if (SteadyNow() >= deadline) refused = Refusals();
  }
}

// Evicting for a request that would not fit even then destroys copies for nothing, and so does evicting more
// while room enough is about to come.
bool EvictingAllocator::WorthEvicting(Location pool, uint64_t bytes) const {
  const PoolHolders holders = table_->Holders(pool);
  if (holders.freeing) return false;
  const uint64_t coming = FreeBytes(Stats(pool)) + holders.ending.bytes;
  const uint64_t wanted = BytesFor(pool, bytes);
  if (holders.ending.replicas > 0 && coming >= wanted) return false;
  return coming + holders.idle.bytes + holders.served.bytes >= wanted;
}

bool EvictingAllocator::WillHaveRoom(Location pool, uint64_t bytes) const {
  const PoolHolders holders = table_->Holders(pool);
  if (holders.landing.replicas == 0) return false;
  return FreeBytes(Stats(pool)) + holders.landing.bytes + holders.idle.bytes + holders.served.bytes +
             holders.ending.bytes >=
         BytesFor(pool, bytes);
}

// The victim is reserved, then the guard is asked (an RPC, without a lock), then it drains unless it was
// leased or pinned meanwhile. True after each victim that was tried, evicted or not: the caller allocates
// again and comes back.
bool EvictingAllocator::TryEvictOne(Location pool, const TraceContext& needed_by, Refusals& refused) {
  const std::optional<ReplicaInfo> victim = table_->ReserveVictim(pool, refused.ids);
  if (!victim.has_value()) return false;
  otel::Span span = EvictionSpan(*victim, needed_by);
  const otel::Scope scope(span.context().IsValid() ? span.context()
                                                   : needed_by);  // the guard's call is its child
  // A partial replica is not counted as a copy, so the guard has nothing to say.
  const bool guarded = guard_ != nullptr && victim->state == ReplicaState::kReady;
  absl::Status evicted = guarded ? guard_->MayEvict(*victim) : absl::OkStatus();
  // UNAVAILABLE: the guard could not ask the global store. ABORTED: the replica may go once something that is
  // under way has ended. Any other error is a reason why the replica stays.
  if (absl::IsUnavailable(evicted)) {
    refused.not_asked = evicted;
  } else if (absl::IsAborted(evicted)) {
    refused.awaited = std::string(evicted.message());
  } else if (!evicted.ok()) {
    PoolHolders::Share& share = refused.reasons[std::string(evicted.message())];
    ++share.replicas;
    share.bytes += BytesFor(pool, victim->image_bytes);
  }
  // The guard was asked with no lock held: a lease or pin that came meanwhile wins.
  if (evicted.ok()) evicted = table_->Drain(victim->id, {.only_unheld = true, .reason = "space"});
  if (!evicted.ok()) {
    span.SetError(evicted);
    VLOG(1) << "replica " << victim->id << " of " << victim->artifact_id << " is not evicted: " << evicted;
    // True, as after an eviction: the next round asks for another victim.
    refused.ids.insert(victim->id);
    table_->Unreserve(victim->id);
    return true;
  }
  LOG(INFO) << "evicted replica " << victim->id << " of " << victim->artifact_id << " ("
            << victim->image_bytes << " bytes) from " << pool.ToString();
  return true;
}

uint64_t EvictingAllocator::BytesFor(Location pool, uint64_t image_bytes) const {
  return pool.kind == LocationKind::kCpu ? host_->BytesFor(image_bytes) : DevicePool::BytesFor(image_bytes);
}

PoolStats EvictingAllocator::Stats(Location pool) const {
  return pool.kind == LocationKind::kCpu ? host_->stats() : devices_->stats(pool.device);
}

uint64_t EvictingAllocator::UsableBytes(Location pool) const {
  const uint64_t reserved = pool.kind == LocationKind::kCpu ? reserved_host_bytes_ : 0;
  const uint64_t capacity = Stats(pool).capacity_bytes;
  return capacity - std::min(capacity, reserved);
}

bool EvictingAllocator::CanEverFit(Location pool, const AllocationRequest& request) const {
  return BytesFor(pool, request.bytes) + request.held_bytes <= UsableBytes(pool);
}

absl::Status EvictingAllocator::Full(Location pool, const AllocationRequest& request,
                                     const absl::Status& cause, const Refusals& refused) const {
  const PoolStats stats = Stats(pool);
  const PoolHolders holders = table_->Holders(pool);
  std::string text =
      absl::StrCat("make room for ", request.bytes, " bytes of ", request.subject, " in ", PoolName(pool),
                   ": ", stats.used_bytes, " of ", stats.capacity_bytes, " bytes are used");
  if (pool.kind == LocationKind::kCpu && reserved_host_bytes_ > 0) {
    absl::StrAppend(&text, ", ", reserved_host_bytes_, " by staging buffers");
  }
  AppendShare(text, holders.leased, "leased");
  AppendShare(text, holders.pinned, "pinned");
  AppendShare(text, holders.filling, "filling");
  AppendShare(text, holders.idle, "idle");
  AppendShare(text, holders.served, "partial", " that other nodes read");
  int named = 0;
  for (const auto& [reason, share] : refused.reasons) {
    if (++named > kReasonsNamed) {
      absl::StrAppend(&text, ". Other idle replicas must stay for other reasons");
      break;
    }
    absl::StrAppend(&text, ". ", share.replicas, share.replicas == 1 ? " idle replica (" : " idle replicas (",
                    share.bytes, " bytes) must stay: ", reason);
  }
  // To be tried again, as other calls are while the global store is away.
  if (!refused.not_asked.ok()) return Annotate(refused.not_asked, text);
  // The pool's own error. Its remedy, behind the ';', is the general form of the remedy below.
  const std::string_view why = cause.message().substr(0, cause.message().find(';'));
  return absl::ResourceExhaustedError(absl::StrCat(
      text, " (", why, "); ",
      CanEverFit(pool, request) ? RemedyFor(holders, pool)
                                : absl::StrCat("even an empty pool is too small; raise ", SizeKey(pool))));
}

}  // namespace tensorcast
