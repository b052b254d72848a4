#include "core/engine/local_sources.h"

#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/disk/disk_source.h"
#include "core/source/device_source.h"
#include "core/source/mapped_source.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast {
namespace {

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

void LocalFirstSources::ObserveWaits(const WaitObserver& observer) {
  if (others_ != nullptr) others_->ObserveWaits(observer);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> LocalFirstSources::Next(const RequestContext& context,
                                                                     const SourceFailure* failure) {
  // A replica of ours has rotted (or its file was written to): whoever reads it next would fail likewise.
  // Readers that hold a lease keep it.
  if (!local_replica_.empty() && failure != nullptr && failure->corrupt) {
    const absl::Status withdrawn = table_->Drain(local_replica_, {.even_pinned = true});
    if (withdrawn.ok()) {
      otel::metrics::kPoolEvictions.Add(1, {LocationKindName(local_location_.kind), "corrupt"});
    }
    if (local_location_.kind == LocationKind::kDisk && options_.artifact_store != nullptr) {
      options_.artifact_store->NoteDamaged(options_.artifact_id, failure->status);
    }
    LOG(ERROR) << "replica " << local_replica_ << " of " << options_.artifact_id
               << " does not match its manifest and is withdrawn: " << failure->status << "; " << withdrawn;
  }
  local_replica_.clear();
  // Once elsewhere, always elsewhere: a replica that became ready here meanwhile is not looked for again.
  if (!others_asked_) {
    if (std::unique_ptr<ChunkSource> local = NextLocal(); local != nullptr) return local;
  }
  if (others_ == nullptr) {
    return absl::NotFoundError(absl::StrCat("no other replica of ", options_.artifact_id,
                                            " on this node, and no source elsewhere was given"));
  }
  // The provider is told of failures of sources that it gave, not of ours.
  return others_->Next(context, std::exchange(others_asked_, true) ? failure : nullptr);
}

std::unique_ptr<ChunkSource> LocalFirstSources::NextLocal() {
  if (options_.artifact_id.empty()) return nullptr;
  while (std::unique_ptr<ReplicaLease> lease = table_->LeaseAnywhere(options_.artifact_id, tried_)) {
    const Location location = lease->location();
    // Before it is opened, so that one that cannot be is not tried forever.
    tried_.insert(location);
    const std::string replica_id = lease->replica_id();
    absl::StatusOr<std::unique_ptr<ChunkSource>> source = Open(std::move(lease));
    if (source.ok()) {
      local_replica_ = replica_id;
      local_location_ = location;
      return *std::move(source);
    }
    LOG(WARNING) << "replica " << replica_id << " cannot be read: " << source.status();
    unopened_.push_back({.source = InfoOf(location), .status = source.status()});
  }
  return nullptr;
}

std::vector<SourceFailure> LocalFirstSources::TakeUnopened() {
  std::vector<SourceFailure> unopened = std::exchange(unopened_, {});
  if (others_ != nullptr) {
    for (SourceFailure& other : others_->TakeUnopened()) unopened.push_back(std::move(other));
  }
  return unopened;
}

absl::StatusOr<std::unique_ptr<ChunkSource>> LocalFirstSources::Open(
    std::unique_ptr<ReplicaLease> lease) const {
  // The source owns the lease: what it reads cannot be evicted under it.
  const std::shared_ptr<ReplicaLease> shared = std::move(lease);
  const ReplicaMemory& memory = shared->memory();
  const uint64_t image_bytes = shared->manifest()->layout().image_bytes;
  SourceInfo info = InfoOf(shared->location());
  info.made_by = shared->made_by();
  switch (shared->location().kind) {
    case LocationKind::kCpu: {
      const std::vector<HostSpan> spans = memory.host->Spans(0, image_bytes);
      return MakeMappedSource(std::move(info), {spans.begin(), spans.end()}, shared, options_.copy_threads);
    }
    case LocationKind::kGpu:
      return MakeDeviceSource(std::move(info), devices_, memory.device, shared, options_.copy_threads);
    case LocationKind::kDisk: {
      DiskSourceOptions disk;
      disk.made_by = shared->made_by();
      return OpenPackedSource(info.name, memory.file, memory.file_image_offset, image_bytes, shared, disk);
    }
  }
  return absl::InternalError("a replica at no known location");
}

}  // namespace tensorcast
