#include "daemon/service/difference_encoding.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status.h"
#include "core/difference/element_runs.h"

namespace tensorcast::daemon {
namespace {

constexpr Location kHostMemory{LocationKind::kCpu};
// More threads than this gain nothing on one memory bus.
constexpr int kMaxEncodeThreads = 4;

int EncodeThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxEncodeThreads);
}

// The codec reads pieces that it does not write to.
template <typename Span>
std::vector<std::span<std::byte>> ToPieces(std::span<const Span> spans) {
  std::vector<std::span<std::byte>> pieces;
  for (const Span& span : spans) pieces.emplace_back(const_cast<std::byte*>(span.data()), span.size());
  return pieces;
}
std::vector<std::span<std::byte>> PiecesOf(const ReplicaLease& lease, ByteRange range) {
  return ToPieces<ConstHostSpan>(lease.HostSpans(range.offset, range.bytes));
}

// Scratch memory of the host pool.
class PoolRecordMemory final : public RecordMemory {
 public:
  PoolRecordMemory(StoreEngine* engine, std::string subject, const RequestContext& context)
      : engine_(*engine), subject_(std::move(subject)), context_(context) {}

  absl::StatusOr<Pieces> Add(uint64_t min_bytes) override {
    TC_ASSIGN_OR_RETURN(HostAllocation memory, engine_.AllocateScratch(context_, subject_, min_bytes));
    // The records are read where they lie until the difference is stored, so no allocation ends before this
    // object.
    const std::vector<HostSpan> spans = memory.Spans(0, min_bytes);
    absl::MutexLock lock(&mutex_);
    held_.push_back(std::move(memory));
    return ToPieces<HostSpan>(spans);
  }

 private:
  StoreEngine& engine_;
  const std::string subject_;
  const RequestContext context_;
  absl::Mutex mutex_;
  std::vector<HostAllocation> held_ ABSL_GUARDED_BY(mutex_);
};

class EncodingSource final : public ChunkSource {
 public:
  EncodingSource(std::unique_ptr<ChunkSource> inside, std::shared_ptr<DifferenceEncoding> encoding)
      : inside_(std::move(inside)), encoding_(std::move(encoding)) {}

  const SourceInfo& info() const override { return inside_->info(); }
  int max_concurrency() const override { return inside_->max_concurrency(); }
  std::shared_ptr<const Availability> availability() const override { return inside_->availability(); }
  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    // The chunk is encoded on the thread that has just copied it, and before the ingest goes on with it.
    absl::StatusOr<std::optional<ChunkDigests>> digests = inside_->Fetch(context, request);
    if (digests.ok()) encoding_->Encode(context, request.chunk, request.destination, *digests);
    return digests;
  }

 private:
  const std::unique_ptr<ChunkSource> inside_;
  const std::shared_ptr<DifferenceEncoding> encoding_;
};

class EncodingProvider final : public SourceProvider {
 public:
  EncodingProvider(std::shared_ptr<SourceProvider> inside, std::shared_ptr<DifferenceEncoding> encoding)
      : inside_(std::move(inside)), encoding_(std::move(encoding)) {}

  void ObserveWaits(const WaitObserver& observer) override { inside_->ObserveWaits(observer); }
  void NoteReceived(uint64_t bytes) override { inside_->NoteReceived(bytes); }
  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    TC_ASSIGN_OR_RETURN(MoreSources more, inside_->Next(context, ended, needed));
    for (std::unique_ptr<ChunkSource>& source : more.sources) {
      source = std::make_unique<EncodingSource>(std::move(source), encoding_);
    }
    return more;
  }
  bool NoteStall() override { return inside_->NoteStall(); }
  std::vector<SourceFailure> TakeUnopened() override { return inside_->TakeUnopened(); }
  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override {
    inside_->Finished(status, ended);
  }

 private:
  const std::shared_ptr<SourceProvider> inside_;
  const std::shared_ptr<DifferenceEncoding> encoding_;
};

}  // namespace

DifferenceEncoding::DifferenceEncoding(StoreEngine* engine, std::shared_ptr<const Manifest> base,
                                       const RequestContext& context)
    : engine_(*engine),
      base_(std::move(base)),
      encoder_(GeometryOf(base_->layout()),
               std::make_shared<PoolRecordMemory>(
                   engine, absl::StrCat("the records of a difference from ", base_->id()), context)) {}

DifferenceEncoding::~DifferenceEncoding() = default;

std::shared_ptr<SourceProvider> DifferenceEncoding::Wrap(std::shared_ptr<SourceProvider> sources) {
  return std::make_shared<EncodingProvider>(std::move(sources), shared_from_this());
}

std::shared_ptr<const ReplicaLease> DifferenceEncoding::Base() {
  {
    absl::MutexLock lock(&mutex_);
    if (base_lease_ != nullptr || !base_status_.ok()) return base_lease_;
  }
  // Threads that come here together lease it more than once; one of these leases stays.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> lease = engine_.LeaseArtifact(base_->id(), kHostMemory);
  absl::MutexLock lock(&mutex_);
  if (base_lease_ != nullptr) return base_lease_;
  if (!lease.ok()) {
    base_status_ = absl::NotFoundError(lease.status().message());
    return nullptr;
  }
  begun_ = SteadyNow();
  base_made_by_ = (*lease)->made_by();
  base_lease_ = *std::move(lease);
  return base_lease_;
}

std::unique_ptr<ChunkEncoder> DifferenceEncoding::TakeEncoder() {
  absl::MutexLock lock(&mutex_);
  // Encoders are used again, since each has working memory of a few chunks.
  if (idle_.empty()) return std::make_unique<ChunkEncoder>(encoder_);
  std::unique_ptr<ChunkEncoder> encoder = std::move(idle_.back());
  idle_.pop_back();
  return encoder;
}

void DifferenceEncoding::GiveBack(std::unique_ptr<ChunkEncoder> encoder) {
  absl::MutexLock lock(&mutex_);
  idle_.push_back(std::move(encoder));
}

void DifferenceEncoding::Encode(const RequestContext& context, uint32_t chunk,
                                std::span<const HostSpan> target,
                                const std::optional<ChunkDigests>& digests) {
  if (encoder_.GivenUp() || encoder_.IsStored(chunk) || !context.Check("encode").ok()) return;
  const std::shared_ptr<const ReplicaLease> base = Base();
  if (base == nullptr) return;
  // The base was verified: what has its digests need not be read again.
  if (digests.has_value() && *digests == base_->digests()[chunk]) {
    return encoder_.Store(chunk, RecordMode::kSame, {});
  }
  std::unique_ptr<ChunkEncoder> encoder = TakeEncoder();
  encoder->Encode(chunk, PiecesOf(*base, base_->layout().chunk(chunk)), ToPieces(target));
  GiveBack(std::move(encoder));
}

absl::StatusOr<std::optional<EncodedDifference>> DifferenceEncoding::Finish(const RequestContext& context,
                                                                            const ReplicaLease& target) {
  const ImageLayout& layout = target.manifest()->layout();
  std::vector<uint32_t> left;
  for (uint32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    if (!encoder_.IsStored(chunk)) left.push_back(chunk);
  }
  // None is left where the put's own ingest made the replica; another one may have made it.
  ForEachInParallel(left.size(), EncodeThreads(), [&](size_t i) {
    const ByteRange range = layout.chunk(left[i]);
    std::vector<HostSpan> spans = PiecesOf(target, range);
    Encode(context, left[i], spans, target.manifest()->digests()[left[i]]);
  });
  std::shared_ptr<const ReplicaLease> base;
  {
    absl::MutexLock lock(&mutex_);
    idle_.clear();
    base = std::move(base_lease_);
    TC_RETURN_IF_ERROR(base_status_);
  }
  base.reset();  // with no lock held
  // The error tells why there is no difference: no base (above), a call that was given up, or no memory.
  // Without an error a missing difference is one that would be too large.
  TC_RETURN_IF_ERROR(context.Check("encode the difference"));
  TC_RETURN_IF_ERROR(encoder_.memory_status());
  return encoder_.Finish();
}

SteadyTime DifferenceEncoding::begun() const {
  absl::MutexLock lock(&mutex_);
  return begun_;
}

TraceContext DifferenceEncoding::base_made_by() const {
  absl::MutexLock lock(&mutex_);
  return base_made_by_;
}

}  // namespace tensorcast::daemon
