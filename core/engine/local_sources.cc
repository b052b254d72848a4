#include "core/engine/local_sources.h"

#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "core/disk/disk_source.h"
#include "core/source/device_source.h"
#include "core/source/mapped_source.h"
#include "core/status/status.h"

namespace tensorcast {

LocalFirstSources::LocalFirstSources(ReplicaTable* table, DeviceRuntime* devices, SourceProvider* others,
                                     Options options)
    : table_(table),
      devices_(devices),
      others_(others),
      options_(std::move(options)),
      tried_({options_.destination}) {}

absl::StatusOr<std::unique_ptr<ChunkSource>> LocalFirstSources::Next(const RequestContext& context,
                                                                     const SourceFailure* failure) {
  if (!local_replica_.empty() && failure != nullptr && failure->corrupt) {
    const absl::Status withdrawn = table_->Drain(local_replica_, {.even_pinned = true});
    LOG(ERROR) << "replica " << local_replica_ << " of " << options_.artifact_id
               << " does not match its manifest and is withdrawn: " << failure->status << "; " << withdrawn;
  }
  local_replica_.clear();
  if (!others_asked_) {
    if (std::unique_ptr<ChunkSource> local = NextLocal(); local != nullptr) {
      return local;
    }
  }
  if (others_ == nullptr) {
    return absl::NotFoundError(absl::StrCat("no other replica of ", options_.artifact_id,
                                            " on this node, and no source elsewhere was given"));
  }
  return others_->Next(context, std::exchange(others_asked_, true) ? failure : nullptr);
}

std::unique_ptr<ChunkSource> LocalFirstSources::NextLocal() {
  if (options_.artifact_id.empty()) {
    return nullptr;
  }
  while (std::unique_ptr<ReplicaLease> lease = table_->LeaseAnywhere(options_.artifact_id, tried_)) {
    tried_.insert(lease->location());
    const std::string replica_id = lease->replica_id();
    absl::StatusOr<std::unique_ptr<ChunkSource>> source = Open(std::move(lease));
    if (source.ok()) {
      local_replica_ = replica_id;
      return *std::move(source);
    }
    LOG(WARNING) << "replica " << replica_id << " cannot be read: " << source.status();
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<ChunkSource>> LocalFirstSources::Open(
    std::unique_ptr<ReplicaLease> lease) const {
  const std::shared_ptr<ReplicaLease> shared = std::move(lease);
  const ReplicaMemory& memory = shared->memory();
  const uint64_t image_bytes = shared->manifest()->layout().image_bytes;
  const std::string name = shared->location().ToString();
  switch (shared->location().kind) {
    case LocationKind::kCpu: {
      const std::vector<HostSpan> spans = memory.host->Spans(0, image_bytes);
      return MakeMappedSource({SourceType::kLocal, "memory", name}, {spans.begin(), spans.end()}, shared,
                              options_.copy_threads);
    }
    case LocationKind::kGpu:
      return MakeDeviceSource({SourceType::kLocal, "device", name}, devices_, memory.device, shared,
                              options_.copy_threads);
    case LocationKind::kDisk:
      return OpenPackedSource(name, memory.file, memory.file_image_offset, image_bytes, shared);
  }
  return absl::InternalError("a replica at no known location");
}

}  // namespace tensorcast
