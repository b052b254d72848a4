#include "core/ingest/replica_advancer.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/ingest/advance.h"
#include "core/ingest/base_destinations.h"
#include "core/ingest/staying_chunks.h"

namespace tensorcast {
namespace {

// Of buffers that an advance takes for itself.
constexpr uint64_t kMaxBufferBytes = uint64_t{32} << 20;
// Where the wanted version can be made beside the earlier one, what keeps that is not waited for longer.
constexpr absl::Duration kMaxPreferredWait = absl::Seconds(2);

// What a caller can do instead. A commit to live weights has a gate, and its caller asked for no advance.
std::string_view Otherwise(const Advance& advance) {
  return advance.gate() != nullptr ? "get the new version again without live"
                                   : "get the new version without advance";
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagingRing>> ReplicaAdvancer::MakeBuffers(
    uint64_t bytes, const AllocationRequest& space) const {
  // First without evicting: the differences lie in the same pool, and are worth more than buffers.
  const auto max_buffers = static_cast<int>(kMaxBufferBytes / std::max(bytes, kGranuleBytes));
  const int wanted = std::clamp(max_buffers, 1, options_.copy_threads + 2);
  for (const int buffers : {wanted, 1}) {
    absl::StatusOr<std::unique_ptr<StagingRing>> made = StagingRing::Create(options_.pool, buffers, bytes);
    if (made.ok()) return made;
  }
  std::unique_ptr<StagingRing> own;
  AllocationRequest one = space;
  one.subject = "a buffer for new chunks";
  one.bytes = bytes;
  const auto make = [&](HostPool& pool) -> absl::StatusOr<HostAllocation> {
    TC_ASSIGN_OR_RETURN(own, StagingRing::Create(&pool, 1, bytes));
    return HostAllocation();  // the ring has the memory
  };
  TC_RETURN_IF_ERROR(options_.allocator->AllocateHost(one, make).status());
  return own;
}

bool ReplicaAdvancer::IsOwn(const HostAllocation& memory) const {
  const std::vector<PoolSegment>& segments = options_.pool->segments();
  return std::ranges::all_of(memory.extents(), [&](const ImageExtent& part) {
    const auto next = std::ranges::upper_bound(segments, part.extent.offset, {}, &PoolSegment::offset);
    const auto segment = static_cast<size_t>(next - segments.begin()) - 1;
    return options_.pool->kind(segment) == SegmentKind::kOwn;
  });
}

// Everything that may refuse comes before Retire, which cannot be taken back: a refusal leaves the earlier
// version as it was.
absl::StatusOr<std::unique_ptr<Destination>> ReplicaAdvancer::Take(const IngestRequest& request,
                                                                   const AllocationRequest& space,
                                                                   bool partial) const {
  Advance& advance = *request.advance;
  const std::string what = absl::StrCat("write over ", advance.base_id());
  // Leased meanwhile, so that no buffer takes its place.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> lease =
      options_.table->LeaseAt(advance.base_id(), request.location);
  if (!lease.ok()) return Annotate(lease.status(), what);
  std::unique_ptr<ReplicaLease> leased = *std::move(lease);
  if (advance.gate() != nullptr && leased->replica_id() != advance.held_replica()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": replica ", leased->replica_id(), " has taken the place of replica ",
                     advance.held_replica(), "; get the weights again with live=True"));
  }
  if (partial) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": this node already has a partial replica of ", request.artifact_id(),
                     "; evict that partial replica first, or ", Otherwise(advance)));
  }
  const ImageLayout& layout = leased->manifest()->layout();
  if (layout.image_bytes != request.layout().image_bytes ||
      layout.chunk_bytes != request.layout().chunk_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": the earlier version and the new version differ in image size or chunk size; ",
                     Otherwise(advance)));
  }
  const bool on_gpu = leased->device_block() != nullptr;
  if (!on_gpu && !IsOwn(*leased->memory().host)) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": an earlier daemon filled the replica's memory, so this memory is read-only ",
                     "(daemon.keep_pool); ",
                     advance.gate() != nullptr ? "evict the replica, and get the weights again with live=True"
                                               : absl::StrCat("evict the replica, or ", Otherwise(advance))));
  }
  StagingRing* staging = options_.staging;
  std::unique_ptr<StagingRing> own;
  const uint64_t chunk_bytes = std::min(layout.chunk_bytes, layout.image_bytes);
  // Always large enough for a GPU (IngestRunner::Check).
  if (staging->buffers() == 0 || staging->buffer_bytes() < chunk_bytes) {
    TC_ASSIGN_OR_RETURN(own, MakeBuffers(chunk_bytes, space));
    staging = own.get();
  }
  RetirementRequest retirement{.artifact_id = advance.base_id(),
                               .location = request.location,
                               .replica_id = advance.held_replica(),
                               .wait = request.wait_for_space,
                               .context = space.context,
                               .on_wait = space.on_wait,
                               .gate = advance.gate()};
  if (advance.gate() != nullptr) {
    retirement.wait = true;  // its holders do when they commit
    std::unique_ptr<StagingRing> reads;
    if (on_gpu) {
      TC_ASSIGN_OR_RETURN(reads, MakeBuffers(kGranuleBytes, space));
    }
    return MakeCommitting(request, space, std::move(leased), std::move(retirement), staging, std::move(own),
                          std::move(reads));
  }
  // Retire refuses a replica that is leased, also by this function.
  leased.reset();
  // Without `required` the holders are waited for only shortly: new memory is the alternative.
  if (!advance.required()) {
    retirement.context = [&space, ends = SteadyNow() + kMaxPreferredWait] {
      RequestContext context = space.context();
      context.deadline = std::min(context.deadline, ends);
      return context;
    };
  }
  TC_ASSIGN_OR_RETURN(RetiredReplica base, options_.retirement->Retire(retirement));
  ReplicaStorage storage = base.storage;
  advance.Begin(std::move(base));
  // Whole chunks are copied: to compare them with the old ones, these would have to be copied to the host.
  if (on_gpu) {
    return MakeDeviceDestination(options_.devices, std::move(storage.device), staging, options_.direct);
  }
  return MakeAdvancingDestination(std::move(storage.host), {.staging = staging, .own = std::move(own)});
}

// The lambdas outlive this call, so they hold copies of the requests.
std::unique_ptr<Destination> ReplicaAdvancer::MakeCommitting(
    const IngestRequest& request, const AllocationRequest& space, std::shared_ptr<const ReplicaLease> base,
    RetirementRequest retirement, StagingRing* staging, std::unique_ptr<StagingRing> own,
    std::unique_ptr<StagingRing> reads) const {
  const auto allocate = [allocator = options_.allocator,
                         space](uint64_t bytes) -> absl::StatusOr<HostAllocation> {
    AllocationRequest some = space;
    some.subject = "the changed values of a version";
    some.bytes = bytes;
    some.await_ingests = false;  // this one is among them
    return allocator->AllocateHost(some, [bytes](HostPool& pool) { return pool.Allocate(bytes); });
  };
  return MakeCommittingDestination(
      {.advance = request.advance,
       .base = std::move(base),
       .wake = [table = options_.table] { table->NoteChance(); },
       .retire = [retires = options_.retirement,
                  retirement = std::move(retirement)] { return retires->Retire(retirement); },
       .allocate = allocate,
       .threads = options_.copy_threads,
       .devices = options_.devices,
       .reads = std::move(reads)},
      {.staging = staging, .own = std::move(own)});
}

absl::StatusOr<std::unique_ptr<Destination>> ReplicaAdvancer::TakeBase(const IngestRequest& request,
                                                                       const AllocationRequest& space,
                                                                       bool partial,
                                                                       ProgressTracker& progress) const {
  if (request.advance == nullptr) return nullptr;
  absl::StatusOr<std::unique_ptr<Destination>> taken = Take(request, space, partial);
  // Without the earlier version one image is held in any case, but no process would hold it live.
  const bool is_live = request.advance->gate() != nullptr;
  const bool fails = request.advance->required() && (is_live || !absl::IsNotFound(taken.status()));
  if (taken.ok() || fails) return taken;
  progress.AddUnopened(AdvanceSourceInfo(*request.advance), taken.status());
  return nullptr;
}

std::unique_ptr<NodeProvider> ReplicaAdvancer::ChunksThatStay(const IngestRequest& request,
                                                              ProgressTracker& progress) const {
  return FindStayingChunks(options_.devices, options_.copy_threads, request, progress);
}

}  // namespace tensorcast
