#include "core/engine/local_sources.h"

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

LocalFirstSources::LocalFirstSources(ReplicaTable* table, DeviceRuntime* devices, SourceProvider* others,
                                     Options options)
    : table_(table),
      devices_(devices),
      others_(others),
      options_(std::move(options)),
      tried_({options_.destination}) {}

void LocalFirstSources::SetReceiver(DevicePtr memory, const TraceContext& ingest) {
  receiver_ = {.replica_id = options_.replica_id, .memory = memory, .ingest = ingest};
}

void LocalFirstSources::ObserveWaits(const WaitObserver& observer) {
  on_wait_ = observer;
  if (others_ != nullptr) others_->ObserveWaits(observer);
}

absl::StatusOr<MoreSources> LocalFirstSources::Next(const RequestContext& context,
                                                    std::span<const SourceFailure> ended, bool needed) {
  const std::vector<SourceFailure> of_others = NoteEnded(ended);
  MoreSources more;
  // A replica of this node is fast, and has all of it or will have.
  if (!given_.empty() && given_all_) return more;
  // After the provider was asked, a replica that became ready here is not looked for again.
  if (given_.empty() && !others_asked_) {
    if (std::unique_ptr<ChunkSource> local = NextLocal(context); local != nullptr) {
      more.sources.push_back(std::move(local));
      // While the local chunks are copied, the provider looks for other sources.
      if (!given_all_) more.look_again = absl::ZeroDuration();
      return more;
    }
  }
  if (others_ == nullptr) {
    return absl::NotFoundError(absl::StrCat("no other replica of ", options_.artifact_id,
                                            " on this node, and no source elsewhere was given"));
  }
  others_asked_ = true;
  others_given_ -= static_cast<int>(of_others.size());
  // What a partial replica of this node does not have is needed, though that one is in use.
  absl::StatusOr<MoreSources> others = others_->Next(context, of_others, needed || others_given_ == 0);
  if (others.ok()) others_given_ += static_cast<int>(others->sources.size());
  return others;
}

std::vector<SourceFailure> LocalFirstSources::NoteEnded(std::span<const SourceFailure> ended) {
  std::vector<SourceFailure> of_others;
  for (const SourceFailure& failure : ended) {
    if (given_.contains(failure.source.replica_id)) {
      NoteEnded(failure);
    } else {
      of_others.push_back(failure);
    }
  }
  return of_others;
}

void LocalFirstSources::NoteEnded(const SourceFailure& own) {
  const auto [replica_id, location] = *given_.find(own.source.replica_id);
  given_.erase(replica_id);
  // Wrong bytes of a broadcast do not prove the root wrong: a copy from the root will show that.
  if (!own.corrupt || own.source.lane == kNcclLane) return;
  // A replica of this node has rotted (or its file was written to): the next reader would fail, too.
  // Readers that hold a lease keep it.
  const absl::Status withdrawn = table_->Withdraw(replica_id);
  if (withdrawn.ok()) table_->CountEviction(location, "corrupt");
  if (location.kind == LocationKind::kDisk && options_.artifact_store != nullptr) {
    options_.artifact_store->NoteDamaged(options_.artifact_id, own.status);
  }
  LOG(ERROR) << "replica " << replica_id << " of " << options_.artifact_id
             << " does not match its manifest and is withdrawn: " << own.status << "; " << withdrawn;
}

void LocalFirstSources::Finished(const absl::Status& status, std::span<const SourceFailure> ended) {
  const std::vector<SourceFailure> of_others = NoteEnded(ended);
  if (others_ != nullptr) others_->Finished(status, of_others);
}

std::unique_ptr<ChunkSource> LocalFirstSources::NextLocal(const RequestContext& context) {
  if (options_.artifact_id.empty()) return nullptr;
  if (std::unique_ptr<ChunkSource> broadcast = JoinWideBroadcast(context); broadcast != nullptr) {
    given_all_ = true;
    given_.emplace(broadcast->info().replica_id, options_.destination);
    return broadcast;
  }
  RequestContext moment = context;
  moment.deadline = std::min(context.deadline, SteadyNow() + kAllocationUsually);
  table_->AwaitMemoryOfEarlier(options_.artifact_id, tried_, options_.replica_id, moment);
  while (std::shared_ptr<ReplicaLease> lease =
             table_->LeaseAnywhere(options_.artifact_id, tried_, options_.replica_id)) {
    const Location location = lease->location();
    const std::string replica_id = lease->replica_id();
    if (std::unique_ptr<ChunkSource> broadcast = JoinBroadcast(context, lease); broadcast != nullptr) {
      given_all_ = true;
      given_.emplace(replica_id, location);
      return broadcast;
    }
    // Before it is opened, so that one that cannot be is not tried forever.
    tried_.insert(location);
    given_all_ = !lease->partial();
    absl::StatusOr<std::unique_ptr<ChunkSource>> source = Open(lease);
    if (source.ok()) {
      given_.emplace(replica_id, location);
      return *std::move(source);
    }
    LOG(WARNING) << "replica " << replica_id << " cannot be read: " << source.status();
    unopened_.push_back({.source = InfoOf(location), .status = source.status()});
  }
  return nullptr;
}

std::unique_ptr<ChunkSource> LocalFirstSources::JoinBroadcast(const RequestContext& context,
                                                              const std::shared_ptr<ReplicaLease>& root) {
  if (!receiver_.memory || root->location().kind != LocationKind::kGpu) return nullptr;
  // One try: what a broadcast does not bring is copied.
  const FanOut::Receiver receiver = std::exchange(receiver_, {});
  std::shared_ptr<FanOut::Membership> membership = options_.fan_out->Join(context, root, receiver);
  if (membership == nullptr) return nullptr;
  SourceInfo info = InfoOf(root->location());
  info.lane = kNcclLane;
  info.made_by = root->made_by();
  info.replica_id = root->replica_id();
  const std::shared_ptr<const Availability> arrived = membership->arrived();
  return OpenArrived(std::move(info), receiver.memory, std::move(membership), arrived);
}

std::unique_ptr<ChunkSource> LocalFirstSources::JoinWideBroadcast(const RequestContext& context) {
  if (!receiver_.memory || options_.wide_broadcasts == nullptr) return nullptr;
  std::shared_ptr<WideBroadcasts::Membership> membership =
      options_.wide_broadcasts->Join(context,
                                     {.artifact_id = options_.artifact_id,
                                      .location = options_.destination,
                                      .replica_id = options_.replica_id,
                                      .memory = receiver_.memory,
                                      .ingest = receiver_.ingest},
                                     on_wait_);
  if (membership == nullptr) return nullptr;
  const FanOut::Receiver receiver = std::exchange(receiver_, {});
  const std::shared_ptr<const Availability> arrived = membership->arrived();
  SourceInfo info = membership->source();
  return OpenArrived(std::move(info), receiver.memory, std::move(membership), arrived);
}

std::unique_ptr<ChunkSource> LocalFirstSources::OpenArrived(SourceInfo info, DevicePtr memory,
                                                            std::shared_ptr<void> membership,
                                                            std::shared_ptr<const Availability> arrived) {
  absl::StatusOr<std::unique_ptr<ChunkSource>> source =
      MakeDeviceSource(info, devices_, memory, std::move(membership), options_.copy_threads,
                       std::move(arrived), /*in_place=*/true);
  if (source.ok()) return *std::move(source);
  unopened_.push_back({.source = std::move(info), .status = source.status()});
  return nullptr;
}

bool LocalFirstSources::NoteStall() { return others_ != nullptr && others_->NoteStall(); }

std::vector<SourceFailure> LocalFirstSources::TakeUnopened() {
  std::vector<SourceFailure> unopened = std::exchange(unopened_, {});
  if (others_ != nullptr) {
    for (SourceFailure& other : others_->TakeUnopened()) unopened.push_back(std::move(other));
  }
  return unopened;
}

absl::StatusOr<std::unique_ptr<ChunkSource>> LocalFirstSources::Open(
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
      return MakeDeviceSource(std::move(info), devices_, memory.device, shared, options_.copy_threads,
                              shared->availability());
    case LocationKind::kDisk: {
      return OpenPackedSource(std::move(info), memory.file, memory.file_image_offset, image_bytes, shared);
    }
  }
  return absl::InternalError("a replica at no known location");
}

}  // namespace tensorcast
