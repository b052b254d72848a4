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

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/device/copy_queue.h"
#include "core/ingest/advance.h"
#include "core/ingest/scatter_plan.h"
#include "core/source/device_source.h"

namespace tensorcast {
namespace {

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

// Host memory. Chunks are made in a buffer, and written over the old ones once they are right.
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

// The bytes of a base on a GPU, brought to the host to be compared there. Thread-safe.
class BaseOnGpu {
 public:
  BaseOnGpu(DeviceRuntime* devices, DevicePtr image, std::unique_ptr<StagingRing> buffers)
      : image_(image), buffers_(std::move(buffers)), copies_(devices, image.device) {}

  DevicePtr image() const { return image_; }
  // Calls `use` for the range piece by piece; a piece is gone after its call. A thread holds one buffer and
  // waits for no other.
  absl::Status Read(ByteRange range, absl::FunctionRef<absl::Status(uint64_t offset, ConstHostSpan)> use) {
    TC_ASSIGN_OR_RETURN(const StagingBuffer buffer, buffers_->Acquire(RequestContext()));
    for (uint64_t done = 0; done < range.bytes;) {
      const uint64_t bytes = std::min(buffers_->buffer_bytes(), range.bytes - done);
      const HostSpan piece = buffer.Spans(bytes).front();  // a granule, so in one piece
      TC_ASSIGN_OR_RETURN(CopyQueue::Pending copy, copies_.ToHost(piece, image_ + range.offset + done));
      TC_RETURN_IF_ERROR(copy.Await());
      TC_RETURN_IF_ERROR(use(range.offset + done, piece));
      done += bytes;
    }
    return absl::OkStatus();
  }

 private:
  const DevicePtr image_;
  const std::unique_ptr<StagingRing> buffers_;
  CopyQueue copies_;
};

// Chunks are made in a buffer, and compared with the base, which stays as it is until Finish.
// memory() is empty, so the table serves nothing of the replica while it is staged, and each chunk counts as
// placed once its differences are kept.
class CommittingDestination final : public Destination {
 public:
  // `retire` ends when the holders of `base` have let it go.
  using Retire = std::function<absl::StatusOr<RetiredReplica>()>;
  // `on_gpu`: null if the base is in host memory.
  CommittingDestination(std::shared_ptr<Advance> advance, std::shared_ptr<const ReplicaLease> base,
                        std::function<void()> wake, Retire retire, ScatterPlan::Allocate allocate,
                        int threads, StagingRing* staging, std::unique_ptr<StagingRing> own,
                        DeviceRuntime* devices, std::unique_ptr<BaseOnGpu> on_gpu)
      : own_(std::move(own)),
        staging_(staging),
        advance_(std::move(advance)),
        base_(std::move(base)),
        devices_(devices),
        on_gpu_(std::move(on_gpu)),
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
      const auto compare = [&](uint64_t at, ConstHostSpan there) -> absl::Status {
        TC_RETURN_IF_ERROR(plan_.Add(at, there, rest.first(there.size())));
        rest = rest.subspan(there.size());
        return absl::OkStatus();
      };
      TC_RETURN_IF_ERROR(ReadBase({.offset = offset, .bytes = piece.size()}, compare));
      offset += piece.size();
    }
    return AwaitPlaced();
  }

  absl::StatusOr<ReplicaStorage> Finish(const std::shared_ptr<const Manifest>&) override {
    std::unique_ptr<Stream> stream;
    if (on_gpu_ != nullptr) {
      TC_ASSIGN_OR_RETURN(stream, Rehearse());
    }
    // The buffers: the commit needs none.
    own_.reset();
    on_gpu_.reset();
    // The lease of this ingest goes to the gate, which counts it among the leases that may end. From here on
    // the holders may commit.
    advance_->gate()->Staged(std::move(base_), wake_);
    TC_ASSIGN_OR_RETURN(const RetiredReplica base, retire_());
    // From here on no process reads, and only a GPU can fail.
    if (stream == nullptr) {
      plan_.Scatter(*base.storage.host, threads_);
    } else {
      TC_RETURN_IF_ERROR(ScatterOnGpu(*stream, base));
    }
    return base.storage;
  }

 private:
  absl::Status ReadBase(ByteRange range,
                        absl::FunctionRef<absl::Status(uint64_t offset, ConstHostSpan)> use) {
    if (on_gpu_ != nullptr) {
      return Annotate(on_gpu_->Read(range, use), absl::StrCat("compare with ", advance_->base_id()));
    }
    for (const ConstHostSpan& there : base_->HostSpans(range.offset, range.bytes)) {
      TC_RETURN_IF_ERROR(use(range.offset, there));
      range.offset += there.size();
    }
    return absl::OkStatus();
  }

  // After the retirement it is too late for an error: the GPU has to do the work once before, without effect.
  absl::StatusOr<std::unique_ptr<Stream>> Rehearse() {
    const DevicePtr image = on_gpu_->image();
    TC_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, devices_->CreateStream(image.device));
    absl::Status done = plan_.Rehearse(*stream, image);
    if (const absl::Status synchronized = stream->Synchronize(); done.ok()) done = synchronized;
    if (!done.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "write over ", advance_->base_id(), ": gpu:", image.device, " cannot change values in its memory: ",
          done.message(), "; get the new version again, without live"));
    }
    return stream;
  }

  // An error leaves a mixture of both versions. The holders keep the memory until they have closed it.
  absl::Status ScatterOnGpu(Stream& stream, const RetiredReplica& base) const {
    const DevicePtr image = base.storage.device->pointer();
    absl::Status done = plan_.Scatter(stream, image);
    if (const absl::Status synchronized = stream.Synchronize(); done.ok()) done = synchronized;
    if (done.ok()) return done;
    return absl::InternalError(absl::StrCat(
        "write over replica ", base.replica_id, " of ", advance_->base_id(), " on gpu:", image.device, ": ",
        done.message(), "; the replica is lost: get the weights again with live=True"));
  }

  std::unique_ptr<StagingRing> own_;
  StagingRing* const staging_;
  const std::shared_ptr<Advance> advance_;
  std::shared_ptr<const ReplicaLease> base_;
  DeviceRuntime* const devices_;
  std::unique_ptr<BaseOnGpu> on_gpu_;  // its copies end before the lease
  const std::function<void()> wake_;
  const Retire retire_;
  const int threads_;
  ScatterPlan plan_;
};

// Reads in the replica's own host memory, where these chunks stay.
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
    const std::vector<HostSpan> spans = base_->storage.host->Spans(range.offset, range.bytes);
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
  StayingProvider(DeviceRuntime* devices, SourceInfo info, std::shared_ptr<const Advance> advance,
                  std::shared_ptr<const Availability> has, int threads)
      : devices_(devices),
        info_(std::move(info)),
        advance_(std::move(advance)),
        has_(std::move(has)),
        threads_(threads) {}

  Given Next(const RequestContext&) override {
    Given given;
    if (std::exchange(given_, true)) return given;
    absl::StatusOr<std::unique_ptr<ChunkSource>> source = Open();
    if (!source.ok()) {
      unopened_.push_back({.source = info_, .status = source.status()});
      return given;
    }
    given.whole = has_->complete();
    given.sources.push_back(*std::move(source));
    return given;
  }
  std::vector<SourceFailure> TakeUnopened() override { return std::exchange(unopened_, {}); }

 private:
  // A GPU digests its chunks where they are: their source is their place.
  absl::StatusOr<std::unique_ptr<ChunkSource>> Open() const {
    std::shared_ptr<const RetiredReplica> base = advance_->base();
    if (base->storage.device == nullptr) {
      return std::make_unique<StayingChunks>(info_, std::move(base), has_, threads_);
    }
    const DevicePtr image = base->storage.device->pointer();
    return MakeDeviceSource(info_, devices_, image,
                            std::make_shared<std::shared_ptr<const RetiredReplica>>(std::move(base)),
                            threads_, has_, /*in_place=*/true);
  }

  DeviceRuntime* const devices_;
  const SourceInfo info_;
  const std::shared_ptr<const Advance> advance_;
  const std::shared_ptr<const Availability> has_;
  const int threads_;
  bool given_ = false;
  std::vector<SourceFailure> unopened_;
};

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
  one.subject = "a buffer to make chunks in";
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
        absl::StrCat(what, ": this node holds a part of ", request.artifact_id(),
                     " already; evict that replica first, or ", Otherwise(advance)));
  }
  const ImageLayout& layout = leased->manifest()->layout();
  if (layout.image_bytes != request.layout().image_bytes ||
      layout.chunk_bytes != request.layout().chunk_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": the earlier and the new version differ in image size or chunk size; ", Otherwise(advance)));
  }
  const bool on_gpu = leased->device_block() != nullptr;
  if (!on_gpu && !IsOwn(*leased->memory().host)) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": the replica's memory was taken back from an earlier daemon, and is read-only ",
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
  return std::make_unique<AdvancingDestination>(std::move(storage.host), staging, std::move(own));
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
  std::unique_ptr<BaseOnGpu> on_gpu;
  if (base->device_block() != nullptr) {
    on_gpu = std::make_unique<BaseOnGpu>(options_.devices, base->memory().device, std::move(reads));
  }
  return std::make_unique<CommittingDestination>(
      request.advance, std::move(base), [table = options_.table] { table->NoteChance(); },
      [retires = options_.retirement, retirement = std::move(retirement)] {
        return retires->Retire(retirement);
      },
      allocate, options_.copy_threads, staging, std::move(own), options_.devices, std::move(on_gpu));
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
  return std::make_unique<StayingProvider>(options_.devices, std::move(info), request.advance, std::move(has),
                                           options_.copy_threads);
}

}  // namespace tensorcast
