#include "core/replicas/replica_record.h"

#include <algorithm>
#include <utility>

#include "base/ids.h"

namespace tensorcast {

bool ReplicaRecord::CanLeaseFilling() const { return CanCopyFilling() && storage.host != nullptr; }

bool ReplicaRecord::CanCopyFilling() const {
  // Without an availability it is a first ingest, not verified whole, or on disk.
  return (info.state == ReplicaState::kFilling || info.state == ReplicaState::kPartial) &&
         availability != nullptr && !withdrawn;
}

bool ReplicaRecord::Has(std::span<const uint32_t> wanted) const {
  return CanLeaseFilling() &&
         std::ranges::all_of(wanted, [&](uint32_t chunk) { return availability->Has(chunk); });
}

bool ReplicaRecord::IsHeld() const {
  // Leases to serve others yield when a partial replica is to go.
  const uint32_t yielding = info.state == ReplicaState::kPartial ? servings : 0;
  return info.leases > yielding;
}

bool ReplicaRecord::IsEvictable() const {
  return (info.state == ReplicaState::kReady || info.state == ReplicaState::kPartial) && !IsHeld() &&
         !info.pinned && !reserved;
}

uint64_t ReplicaRecord::BytesHeld() const {
  // On a GPU or on disk, space for the whole image is taken at once.
  if (storage.host == nullptr) return (info.image_bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  uint64_t bytes = 0;
  for (const ImageExtent& piece : storage.host->extents()) bytes += piece.extent.bytes;
  return bytes;
}

ReplicaMemory ReplicaRecord::Memory() const {
  ReplicaMemory memory;
  memory.host = storage.host.get();
  if (storage.device != nullptr) memory.device = storage.device->pointer();
  if (storage.file != nullptr) {
    memory.file = storage.file->fd();
    memory.file_image_offset = storage.file->image_offset();
  }
  return memory;
}

// Leases that began before keep the old allocation (ReplicaLease::host_), so the memory of missing chunks is
// free only when these have ended.
std::shared_ptr<const HostAllocation> ReplicaRecord::CutToPresent() {
  const ImageLayout& layout = manifest->layout();
  std::vector<ByteRange> present;
  for (uint32_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (chunks[chunk]) present.push_back(layout.chunk(chunk));
  }
  // The old one ends with the ingest's error. What stays can be read, and has one of its own.
  auto anew = std::make_shared<Availability>(layout.image_bytes, layout.chunk_bytes);
  anew->AddWords(0, availability->Words());
  availability = std::move(anew);
  // Granules with present chunks are shared; the others go with the old allocation.
  return std::exchange(storage.host, std::make_shared<const HostAllocation>(storage.host->Only(present)));
}

std::shared_ptr<ReplicaRecord> MakeReadyRecord(const std::string& node_id,
                                               std::shared_ptr<const Manifest> manifest, Location location,
                                               ReplicaStorage storage) {
  auto record = std::make_shared<ReplicaRecord>();
  const ImageLayout& layout = manifest->layout();
  record->info = {.id = NewUuid(),
                  .artifact_id = manifest->id(),
                  .node_id = node_id,
                  .location = location,
                  .state = ReplicaState::kReady,
                  .image_bytes = layout.image_bytes,
                  .chunks_total = layout.chunk_count(),
                  .chunks_present = layout.chunk_count(),
                  .ready_since = SteadyNow()};
  record->chunks.assign(layout.chunk_count(), true);
  record->manifest = std::move(manifest);
  record->storage = std::move(storage);
  return record;
}

}  // namespace tensorcast
