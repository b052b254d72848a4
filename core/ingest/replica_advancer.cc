#include "core/ingest/replica_advancer.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/ingest/advance.h"
#include "core/ingest/scatter_plan.h"

namespace tensorcast {
namespace {

constexpr Location kHostMemory{LocationKind::kCpu, 0};
// Of buffers that an advance takes for itself.
constexpr uint64_t kMaxBufferBytes = uint64_t{32} << 20;
// Where the wanted version can be made beside the earlier one, what keeps that is not waited for longer.
constexpr absl::Duration kMaxPreferredWait = absl::Seconds(2);

SourceInfo InfoOf(const Advance& advance) {
  return {.type = SourceType::kLocal, .lane = std::string(kAdvanceLane), .name = advance.base_id()};
}

// Room for a chunk that is made before it has its place.
absl::StatusOr<ChunkBuffer> BufferOf(StagingRing& staging, const RequestContext& context, ByteRange range) {
  TC_ASSIGN_OR_RETURN(StagingBuffer buffer, staging.Acquire(context));
  std::vector<HostSpan> spans = buffer.Spans(range.bytes);
  return ChunkBuffer{std::move(spans), std::move(buffer)};
}

// Chunks are made in a buffer, and written over the old ones once they are right.
// From Place on, the old chunk is gone. The retirement came before (Take), so no lease, record or listing
// promises the old bytes by then.
class AdvancingDestination final : public Destination {
 public:
  AdvancingDestination(std::shared_ptr<const HostAllocation> memory, StagingRing* staging,
                       std::unique_ptr<StagingRing> own)
      : own_(std::move(own)), staging_(staging), memory_(std::move(memory)) {}

  int max_chunks() const override { return staging_->buffers(); }
  bool places() const override { return true; }

  absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) override {
    return BufferOf(*staging_, context, range);
  }

  absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) override {
    uint64_t offset = range.offset;
    for (const ConstHostSpan& piece : bytes) {
      ConstHostSpan rest = piece;
      for (const HostSpan& place : memory_->Spans(offset, piece.size())) {
        StreamingCopy(place.data(), rest.first(place.size()));
        rest = rest.subspan(place.size());
      }
      offset += piece.size();
    }
    return AwaitPlaced();
  }

  ReplicaStorage memory() const override { return {.host = memory_, .device = nullptr, .file = nullptr}; }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>&) override {
    return ReplicaStorage{.host = std::move(memory_), .device = nullptr, .file = nullptr};
  }

 private:
  const std::unique_ptr<StagingRing> own_;
  StagingRing* const staging_;
  std::shared_ptr<const HostAllocation> memory_;
};

// Chunks are made in a buffer, and compared with the base, which stays as it is until Finish.
// memory() is empty, so the table serves nothing of the replica while it is staged, and each chunk counts as
// placed once its differences are kept.
class CommittingDestination final : public Destination {
 public:
  // `retire` ends when the holders of `base` have let it go.
  using Retire = std::function<absl::StatusOr<RetiredReplica>()>;
  CommittingDestination(std::shared_ptr<Advance> advance, std::shared_ptr<const ReplicaLease> base,
                        std::function<void()> wake, Retire retire, ScatterPlan::Allocate allocate,
                        int threads, StagingRing* staging, std::unique_ptr<StagingRing> own)
      : own_(std::move(own)),
        staging_(staging),
        advance_(std::move(advance)),
        base_(std::move(base)),
        wake_(std::move(wake)),
        retire_(std::move(retire)),
        threads_(threads),
        plan_(std::move(allocate)) {}

  int max_chunks() const override { return staging_->buffers(); }
  bool places() const override { return true; }

  absl::StatusOr<ChunkBuffer> Acquire(const RequestContext& context, ByteRange range) override {
    return BufferOf(*staging_, context, range);
  }

  absl::StatusOr<AwaitPlaced> Place(ByteRange range, std::span<const ConstHostSpan> bytes) override {
    uint64_t offset = range.offset;
    for (const ConstHostSpan& piece : bytes) {
      ConstHostSpan rest = piece;
      for (const ConstHostSpan& there : base_->HostSpans(offset, piece.size())) {
        TC_RETURN_IF_ERROR(plan_.Add(offset, there, rest.first(there.size())));
        rest = rest.subspan(there.size());
        offset += there.size();
      }
    }
    return AwaitPlaced();
  }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>&) override {
    own_.reset();  // the buffers: the commit needs none
    // The lease of this ingest goes to the gate, which counts it among the leases that may end. From here on
    // the holders may commit.
    advance_->gate()->Staged(std::move(base_), wake_);
    TC_ASSIGN_OR_RETURN(const RetiredReplica base, retire_());
    // From here on nothing fails, and no process reads.
    plan_.Scatter(*base.memory, threads_);
    return ReplicaStorage{.host = base.memory, .device = nullptr, .file = nullptr};
  }

 private:
  std::unique_ptr<StagingRing> own_;
  StagingRing* const staging_;
  const std::shared_ptr<Advance> advance_;
  std::shared_ptr<const ReplicaLease> base_;
  const std::function<void()> wake_;
  const Retire retire_;
  const int threads_;
  ScatterPlan plan_;
};

// Reads in the replica's own memory, where these chunks stay.
class StayingChunks final : public ChunkSource {
 public:
  StayingChunks(SourceInfo info, std::shared_ptr<const RetiredReplica> base,
                std::shared_ptr<const Availability> has, int threads)
      : info_(std::move(info)), base_(std::move(base)), has_(std::move(has)), threads_(threads) {}

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return threads_; }
  std::shared_ptr<const Availability> availability() const override { return has_; }
  bool in_place() const override { return true; }

  std::vector<ConstHostSpan> HostSpans(ByteRange range) const override {
    if (!has_->HasRange(range.offset, range.bytes)) return {};
    const std::vector<HostSpan> spans = base_->memory->Spans(range.offset, range.bytes);
    return {spans.begin(), spans.end()};
  }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext&,
                                                    const ChunkRequest& request) override {
    return absl::FailedPreconditionError(
        absl::StrCat(DescribeFetch(info_, request),
                     ": this chunk is to be overwritten; fetch the chunk from another source"));
  }

 private:
  const SourceInfo info_;
  const std::shared_ptr<const RetiredReplica> base_;
  const std::shared_ptr<const Availability> has_;
  const int threads_;
};

// What a caller can do instead. A commit to live weights has a gate, and its caller asked for no advance.
std::string_view Otherwise(const Advance& advance) {
  return advance.gate() != nullptr ? "get the new version again, without live"
                                   : "get the new version without advance";
}

// Gives its source once. After a wrong chunk the chain asks again and gets none: what is missing is then
// brought from the next providers.
class StayingProvider final : public NodeProvider {
 public:
  StayingProvider(SourceInfo info, std::shared_ptr<const Advance> advance,
                  std::shared_ptr<const Availability> has, int threads)
      : info_(std::move(info)), advance_(std::move(advance)), has_(std::move(has)), threads_(threads) {}

  Given Next(const RequestContext&) override {
    Given given;
    if (std::exchange(given_, true)) return given;
    given.whole = has_->complete();
    given.sources.push_back(std::make_unique<StayingChunks>(info_, advance_->base(), has_, threads_));
    return given;
  }

 private:
  const SourceInfo info_;
  const std::shared_ptr<const Advance> advance_;
  const std::shared_ptr<const Availability> has_;
  const int threads_;
  bool given_ = false;
};

}  // namespace

absl::StatusOr<StagingRing*> ReplicaAdvancer::FindBuffers(const ImageLayout& layout,
                                                          const AllocationRequest& space,
                                                          std::unique_ptr<StagingRing>& own) const {
  const uint64_t bytes = std::min(layout.chunk_bytes, layout.image_bytes);
  StagingRing* const shared = options_.staging;
  if (shared->buffers() > 0 && shared->buffer_bytes() >= bytes) return shared;
  // First without evicting: the differences lie in the same pool, and are worth more than buffers.
  const auto max_buffers = static_cast<int>(kMaxBufferBytes / std::max(bytes, kGranuleBytes));
  const int wanted = std::clamp(max_buffers, 1, options_.copy_threads + 2);
  for (const int buffers : {wanted, 1}) {
    absl::StatusOr<std::unique_ptr<StagingRing>> made = StagingRing::Create(options_.pool, buffers, bytes);
    if (made.ok()) own = *std::move(made);
    if (own != nullptr) return own.get();
  }
  AllocationRequest one = space;
  one.subject = "a buffer to make chunks in";
  one.bytes = bytes;
  const auto make = [&](HostPool& pool) -> absl::StatusOr<HostAllocation> {
    TC_ASSIGN_OR_RETURN(own, StagingRing::Create(&pool, 1, bytes));
    return HostAllocation();  // the ring has the memory
  };
  TC_RETURN_IF_ERROR(options_.allocator->AllocateHost(one, make).status());
  return own.get();
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
  std::unique_ptr<StagingRing> own;
  // Leased meanwhile, so that no buffer takes its place.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> lease =
      options_.table->LeaseAt(advance.base_id(), kHostMemory);
  if (!lease.ok()) return Annotate(lease.status(), what);
  std::unique_ptr<ReplicaLease> leased = *std::move(lease);
  if (advance.gate() != nullptr && leased->replica_id() != advance.held_replica()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": replica ", leased->replica_id(), " has taken the place of replica ",
                     advance.held_replica(), "; get the weights live again"));
  }
  if (partial) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": this node holds a part of ", request.artifact_id(),
                     " already; evict that replica first, or ", Otherwise(advance)));
  }
  const ImageLayout& layout = leased->manifest()->layout();
  if (layout.image_bytes != request.layout().image_bytes ||
      layout.chunk_bytes != request.layout().chunk_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": the earlier and the new version differ in image size or chunk size; ", Otherwise(advance)));
  }
  if (!IsOwn(*leased->memory().host)) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": the replica's memory was taken back from an earlier daemon, and is read-only ",
                     "(daemon.keep_pool); ",
                     advance.gate() != nullptr ? "evict the replica, and get the weights live again"
                                               : absl::StrCat("evict the replica, or ", Otherwise(advance))));
  }
  TC_ASSIGN_OR_RETURN(StagingRing* const staging, FindBuffers(request.layout(), space, own));
  RetirementRequest retirement{.artifact_id = advance.base_id(),
                               .replica_id = advance.held_replica(),
                               .wait = request.wait_for_space,
                               .context = space.context,
                               .on_wait = space.on_wait,
                               .gate = advance.gate()};
  if (advance.gate() != nullptr) {
    retirement.wait = true;  // its holders do when they commit
    return MakeCommitting(request, space, std::move(leased), std::move(retirement), staging, std::move(own));
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
  std::shared_ptr<const HostAllocation> memory = base.memory;
  advance.Begin(std::move(base));
  return std::make_unique<AdvancingDestination>(std::move(memory), staging, std::move(own));
}

// The lambdas outlive this call, so they hold copies of the requests.
std::unique_ptr<Destination> ReplicaAdvancer::MakeCommitting(
    const IngestRequest& request, const AllocationRequest& space, std::shared_ptr<const ReplicaLease> base,
    RetirementRequest retirement, StagingRing* staging, std::unique_ptr<StagingRing> own) const {
  const auto allocate = [allocator = options_.allocator,
                         space](uint64_t bytes) -> absl::StatusOr<HostAllocation> {
    AllocationRequest some = space;
    some.subject = "the changed values of a version";
    some.bytes = bytes;
    some.await_ingests = false;  // this one is among them
    return allocator->AllocateHost(some, [bytes](HostPool& pool) { return pool.Allocate(bytes); });
  };
  return std::make_unique<CommittingDestination>(
      request.advance, std::move(base), [table = options_.table] { table->NoteChance(); },
      [retires = options_.retirement, retirement = std::move(retirement)] {
        return retires->Retire(retirement);
      },
      allocate, options_.copy_threads, staging, std::move(own));
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
  progress.AddUnopened(InfoOf(*request.advance), taken.status());
  return nullptr;
}

std::unique_ptr<NodeProvider> ReplicaAdvancer::ChunksThatStay(const IngestRequest& request,
                                                              ProgressTracker& progress) const {
  const std::shared_ptr<const RetiredReplica> base = request.advance->base();
  if (base == nullptr) return nullptr;  // nothing is in its place before the commit
  const ImageLayout& layout = request.layout();
  auto has = std::make_shared<Availability>(layout.image_bytes, layout.chunk_bytes);
  for (uint32_t chunk = 0; chunk < has->chunks(); ++chunk) {
    if (base->manifest->digests()[chunk] == request.manifest->digests()[chunk]) has->Add(chunk);
  }
  has->End(absl::OkStatus());
  SourceInfo info = InfoOf(*request.advance);
  info.made_by = base->made_by;
  info.replica_id = base->replica_id;
  if (has->count() == 0) {
    auto clock = std::make_shared<StageClock>(info);
    clock->Leave(/*loss=*/std::nullopt, absl::OkStatus(), /*lost_chunks=*/0);
    progress.AddSource(std::move(clock));
    return nullptr;
  }
  return std::make_unique<StayingProvider>(std::move(info), request.advance, std::move(has),
                                           options_.copy_threads);
}

}  // namespace tensorcast
