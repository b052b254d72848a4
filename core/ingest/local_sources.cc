#include "core/ingest/local_sources.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/disk/packed_source.h"
#include "core/source/device_source.h"
#include "core/source/mapped_source.h"

namespace tensorcast {
namespace {

// Longer than it takes to be given memory that is there, so that several gets at the same moment share a
// copy; and much less than a copy takes, for when the other waits for space.
constexpr absl::Duration kAllocationUsually = absl::Seconds(1);

// A disk may be slower than peers. What it gives in this time is not worth the work of asking for them.
constexpr absl::Duration kDiskAlone = absl::Seconds(1);

// Of a source with every chunk.
NodeProvider::Given Give(std::unique_ptr<ChunkSource> source) {
  NodeProvider::Given given{.whole = true};
  given.sources.push_back(std::move(source));
  return given;
}

SourceInfo InfoOf(const Location& location) {
  switch (location.kind) {
    case LocationKind::kCpu:
      return {SourceType::kLocal, std::string(kMemoryLane), location.ToString()};
    case LocationKind::kGpu:
      return {SourceType::kLocal, std::string(kDeviceLane), location.ToString()};
    case LocationKind::kDisk:
      return {SourceType::kDisk, std::string(kDiskLane), location.ToString()};
  }
  return {};
}

}  // namespace

// Replicas are tried in the order of the table (LeaseSource), each location once. An ingest to a GPU first
// looks for a broadcast that it can join: a wide one of several nodes, then one of this node with the
// replica's other receivers. It takes part in one broadcast at most; what that does not bring is copied.
NodeProvider::Given LocalSources::Next(const RequestContext& context) {
  const BroadcastReceiver& own = options_.receiver;
  if (receiver_.memory) {
    auto broadcast = OpenArrived(options_.wide_broadcasts->Join(context, receiver_, on_wait_));
    if (broadcast != nullptr) return Give(std::move(broadcast));
  }
  RequestContext moment = context;
  moment.deadline = std::min(context.deadline, SteadyNow() + kAllocationUsually);
  while (std::shared_ptr<ReplicaLease> lease =
             options_.table->LeaseSource(own.artifact_id, tried_, own.replica_id, moment)) {
    if (receiver_.memory && lease->location().kind == LocationKind::kGpu) {
      auto broadcast = OpenArrived(options_.fan_out->Join(context, lease, receiver_));
      receiver_ = {};  // one try
      if (broadcast != nullptr) return Give(std::move(broadcast));
    }
    // Before it is opened, so that one that cannot be is not tried forever.
    tried_.insert(lease->location());
    absl::StatusOr<std::unique_ptr<ChunkSource>> source = Open(lease);
    if (source.ok()) {
      Given given = Give(*std::move(source));
      given.whole = !lease->partial();
      if (lease->location().kind == LocationKind::kDisk) given.alone = kDiskAlone;
      return given;
    }
    LOG(WARNING) << "read replica " << lease->replica_id() << " of " << own.artifact_id
                 << ": the replica cannot be opened, and another source is tried: " << source.status();
    unopened_.push_back({.source = InfoOf(lease->location()), .status = source.status()});
  }
  return {};
}

void LocalSources::Ended(const SourceFailure& failure) {
  // Wrong bytes of a broadcast do not prove the root wrong: a copy from the root will show that.
  if (!failure.corrupt || failure.source.lane == kNcclLane) return;
  // A replica of this node has rotted (or its file was written to): the next reader would fail, too.
  // Readers that hold a lease keep it.
  const absl::Status withdrawn = options_.table->Withdraw(failure.source.replica_id);
  if (failure.source.type == SourceType::kDisk && options_.artifact_store != nullptr) {
    options_.artifact_store->NoteDamaged(options_.receiver.artifact_id, failure.status);
  }
  LOG(ERROR) << "read replica " << failure.source.replica_id << " of " << options_.receiver.artifact_id
             << ": the bytes do not match the manifest (" << failure.status << "); "
             << (withdrawn.ok() ? "the replica is withdrawn"
                                : absl::StrCat("the replica cannot be withdrawn: ", withdrawn.ToString()));
}

// What a broadcast does not bring is copied.
// `membership` goes into the source: it holds this ingest's part in the broadcast until the source ends.
std::unique_ptr<ChunkSource> LocalSources::OpenArrived(std::optional<BroadcastMember> member) {
  if (!member.has_value()) return nullptr;
  const BroadcastReceiver receiver = std::exchange(receiver_, {});
  absl::StatusOr<std::unique_ptr<ChunkSource>> source =
      MakeDeviceSource(member->source, options_.devices, receiver.memory, std::move(member->membership),
                       options_.copy_threads, std::move(member->arrived), /*in_place=*/true);
  if (source.ok()) return *std::move(source);
  unopened_.push_back({.source = std::move(member->source), .status = source.status()});
  return nullptr;
}

absl::StatusOr<std::unique_ptr<ChunkSource>> LocalSources::Open(
    const std::shared_ptr<ReplicaLease>& shared) const {
  // The source owns the lease: what it reads cannot be evicted under it.
  const ReplicaMemory& memory = shared->memory();
  const uint64_t image_bytes = shared->manifest()->layout().image_bytes;
  SourceInfo info = InfoOf(shared->location());
  info.made_by = shared->made_by();
  info.replica_id = shared->replica_id();
  switch (shared->location().kind) {
    case LocationKind::kCpu: {
      return MakeMappedSource(
          std::move(info), image_bytes,
          [shared](uint64_t offset, uint64_t bytes) { return shared->HostSpans(offset, bytes); },
          options_.copy_threads, shared->availability(), /*page_locked=*/true);
    }
    case LocationKind::kGpu:
      return MakeDeviceSource(std::move(info), options_.devices, memory.device, shared, options_.copy_threads,
                              shared->availability());
    case LocationKind::kDisk:
      return OpenPackedSource(std::move(info), memory.file, memory.file_image_offset, image_bytes, shared);
  }
  return absl::InternalError(
      "read a replica: the kind of the location is unknown; report this defect of the daemon");
}

}  // namespace tensorcast
