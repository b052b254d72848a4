#include "daemon/session/sessions.h"

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/handles/handles.h"
#include "core/memory/reserved_range.h"
#include "core/source/device_source.h"
#include "core/source/mapped_source.h"
#include "daemon/session/ring_source.h"

namespace tensorcast::daemon {
namespace {

constexpr int kMaxCopySlots = 4;  // more copies at once than this gain nothing on one memory bus

int CopySlots() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxCopySlots);
}

// A client's memory, mapped for as long as the ingest reads it. The seals keep it from changing or shrinking.
struct OfferMapping {
  Offer offer;
  ReservedRange memory;  // at a boundary, so that huge pages, if it has any, are mapped whole
};

// A client's device memory, opened for as long as the ingest reads it.
struct OpenedDevice {
  OpenedDevice(DeviceRuntime* runtime, DevicePtr pointer) : devices(runtime), memory(pointer) {}
  ~OpenedDevice() { devices->CloseIpc(memory).IgnoreError(); }

  DeviceRuntime* const devices;
  const DevicePtr memory;
};

// A put has no second source: only its client has the bytes.
class SingleSourceProvider : public SourceProvider {
 public:
  explicit SingleSourceProvider(std::unique_ptr<ChunkSource> source) : source_(std::move(source)) {}

  absl::StatusOr<MoreSources> Next(const RequestContext&, std::span<const SourceFailure> ended,
                                   bool /*needed*/) override {
    // Only the first call gets the source: a failure means that this source failed, and it is the only one.
    if (ended.empty() && source_ != nullptr) {
      MoreSources more;
      more.sources.push_back(std::move(source_));
      return more;
    }
    if (ended.empty()) {
      return absl::UnavailableError("read the tensors of a put: the only source was used already; put again");
    }
    const SourceFailure& failure = ended.front();
    // A fetch names its source already.
    if (absl::StrContains(failure.status.message(), failure.source.name)) return failure.status;
    return Annotate(failure.status, failure.source.name);
  }

 private:
  std::unique_ptr<ChunkSource> source_;
};

absl::StatusOr<std::unique_ptr<ChunkSource>> MapOffer(Offer offer, uint64_t image_bytes) {
  auto mapping = std::make_shared<OfferMapping>();
  mapping->offer = std::move(offer);
  std::vector<ConstHostSpan> image;
  if (image_bytes > 0) {
    const Offer& offered = mapping->offer;
    TC_ASSIGN_OR_RETURN(mapping->memory,
                        ReservedRange::Reserve(ReservedRange::MappedBytes(offered.memfd.get(), offered.bytes),
                                               "the memory handed over for the put"));
    TC_RETURN_IF_ERROR(
        mapping->memory.Map(0, offered.memfd.get(), 0, offered.bytes, ReservedRange::Access::kRead));
    image.emplace_back(mapping->memory.base(), image_bytes);
  }
  SourceInfo info{.type = SourceType::kLocal, .lane = std::string(kMemoryLane), .name = "a client's memory"};
  return MakeMappedSource(std::move(info), image, std::move(mapping), CopySlots());
}

}  // namespace

absl::StatusOr<Claim> Sessions::ClaimOf(const ReplicaLease& lease) const {
  Claim claim;
  claim.handles.replica_id = lease.replica_id();
  claim.handles.artifact_id = lease.manifest()->id();
  claim.handles.image_bytes = lease.manifest()->layout().image_bytes;
  claim.availability = lease.availability();
  const ReplicaMemory& memory = lease.memory();
  switch (lease.location().kind) {
    case LocationKind::kCpu:
      SetHostMemory(claim, *pool_, pool_->id(), *memory.host);
      break;
    case LocationKind::kGpu: {
      TC_ASSIGN_OR_RETURN(IpcHandle ipc, devices_->Export(memory.device));
      claim.handles.memory = DeviceHandles{.ipc = std::move(ipc)};
      break;
    }
    case LocationKind::kDisk:
      claim.handles.memory = FileHandles{.image_offset = memory.file_image_offset};
      claim.fds = {memory.file};
      break;
  }
  return claim;
}

// The claim holds the live lease and not the replica's lease: the latter is exchanged when the replica is
// rewritten, while the connection stays.
absl::StatusOr<std::string> Sessions::IssueLiveTicket(std::shared_ptr<LiveLease> lease) {
  TC_ASSIGN_OR_RETURN(Claim claim, ClaimOf(*lease->lease()));
  claim.hold = std::move(lease);
  return handles_->IssueTicket(std::move(claim));
}

absl::StatusOr<std::string> Sessions::IssueTicket(std::unique_ptr<ReplicaLease> lease, Holder holder,
                                                  std::shared_ptr<void> companion) {
  // What keeps the claim's memory where it is, until the connection that claimed the ticket ends (or the
  // ticket, if no client claims it).
  struct Hold {
    std::shared_ptr<void> companion;
    std::unique_ptr<ReplicaLease> lease;  // ends first
  };
  TC_ASSIGN_OR_RETURN(Claim claim, ClaimOf(*lease));
  claim.holder = holder;
  // The connection that claims the ticket keeps this, and so the replica, until the client goes.
  auto hold = std::make_shared<Hold>();
  hold->companion = std::move(companion);
  hold->lease = std::move(lease);
  claim.hold = std::move(hold);
  return handles_->IssueTicket(std::move(claim));
}

// A sealed memfd cannot change, so it is read where it is. A ring and device memory can change: their sources
// copy the bytes first, and digest the copy.
absl::StatusOr<std::unique_ptr<ChunkSource>> Sessions::SourceOf(Offer offer, uint64_t image_bytes,
                                                                LeaseReplica lease_replica) {
  if (!offer.files.empty()) {
    return absl::InvalidArgumentError("put: files were offered, not memory; import the files");
  }
  // An offer has one of three: a memfd, a ring, or an IPC handle of device memory.
  const bool on_device = !offer.memfd && offer.ring == nullptr;
  const uint64_t offered = on_device ? offer.ipc.bytes : offer.bytes;
  // Nothing is read beyond what was handed over, whatever the call describes.
  if (offered < image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("put: the image of the described tensors has ",
                                                   image_bytes, " bytes, but the offered memory has only ",
                                                   offered, " bytes; offer memory for the whole image"));
  }
  if (offer.ring != nullptr) {
    TC_ASSIGN_OR_RETURN(HeldBytes held,
                        HoldHanded(std::move(offer.handed), image_bytes, pool_->id(), lease_replica));
    return MakeRingSource(std::move(offer.ring), image_bytes, std::move(held));
  }
  if (!on_device) return MapOffer(std::move(offer), image_bytes);
  TC_ASSIGN_OR_RETURN(DevicePtr pointer, devices_->OpenIpc(offer.ipc));
  auto opened = std::make_shared<OpenedDevice>(devices_, pointer);
  SourceInfo info{
      .type = SourceType::kLocal, .lane = std::string(kMemoryLane), .name = "a client's device memory"};
  return MakeDeviceSource(std::move(info), devices_, pointer, std::move(opened), CopySlots());
}

absl::StatusOr<ForeignFds> Sessions::TakeOfferedFiles(std::string_view token) {
  TC_ASSIGN_OR_RETURN(Offer offer, handles_->TakeOffer(token));
  if (offer.files.empty()) {
    return absl::InvalidArgumentError("import: memory was offered, not files; put the memory");
  }
  return std::move(offer.files);
}

std::shared_ptr<SourceProvider> MakeSingleSourceProvider(std::unique_ptr<ChunkSource> source) {
  return std::make_shared<SingleSourceProvider>(std::move(source));
}

}  // namespace tensorcast::daemon
