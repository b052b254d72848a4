#include "core/ingest/chunk_path.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/device/direct_copies.h"
#include "core/ingest/advance.h"

namespace tensorcast {
namespace {

using Next = PathStep::Next;

PathStep Verify(ChunkVerifier& verifier, std::string_view subject, ChunkFetch& fetch) {
  SourceInUse& source = *fetch.source;
  const SteadyTime start = SteadyNow();
  const ChunkVerifier::Verdict verdict = verifier.Verify(fetch.request, fetch.bytes, *fetch.digests);
  if (verdict.wrong.empty()) {
    source.clock->Passed(Stage::kVerify, start, verdict.bytes_read);
    return {Next::kPlaced};
  }
  const SourceInfo& info = source.source->info();
  absl::Status wrong = absl::DataLossError(
      absl::StrCat("verify chunk ", fetch.request.chunk, " of ", subject, " from ", info.lane, " ", info.name,
                   ": the chunk ", verdict.wrong, "; check the memory and disks of that source"));
  source.clock->Failed(Stage::kVerify, start, wrong);
  source.source->NoteWrong(fetch.request.chunk);
  return {Next::kWrong, std::move(wrong)};
}

// Through host memory: the replica's own.
// Also the base of StagedPath: there the buffer of Acquire is a staging buffer, and the chunk is placed after
// it was verified.
class InPlacePath : public ChunkPath {
 public:
  InPlacePath(const IngestPlan& plan, ChunkVerifier& verifier) : plan_(plan), verifier_(verifier) {}

  int max_chunks() const override { return plan_.destination->max_chunks(); }

  PathStep Begin(ChunkFetch& fetch) override {
    absl::StatusOr<ChunkBuffer> buffer = plan_.destination->Acquire(fetch.context, fetch.request.range);
    if (!buffer.ok()) return {Next::kNoBuffer, buffer.status()};
    fetch.buffer = *std::move(buffer);
    fetch.bytes.assign(fetch.buffer.spans.begin(), fetch.buffer.spans.end());
    fetch.request.destination = fetch.buffer.spans;
    return {Next::kFetch};
  }

  PathStep Arrived(ChunkFetch& fetch) override {
    // Of a first ingest: any source would give the same bytes there, so the ingest ends.
    absl::Status padding = verifier_.CheckPadding(fetch.request);
    if (!padding.ok()) return {Next::kFailed, std::move(padding)};
    return Verify(verifier_, plan_.subject, fetch);
  }

  PathStep Await(ChunkFetch&) override { return {Next::kPlaced}; }

 protected:
  const IngestPlan& plan_;
  ChunkVerifier& verifier_;
};

// Through host memory, from which the destination takes it.
class StagedPath final : public InPlacePath {
 public:
  using InPlacePath::InPlacePath;

  PathStep Begin(ChunkFetch& fetch) override {
    // A replica of a first ingest is not a replica yet, and in no pool.
    if (plan_.expected != nullptr) fetch.bytes = fetch.source->source->HostSpans(fetch.request.range);
    // No digests come with bytes that are only lent: the verifier computes them from there.
    if (!fetch.bytes.empty()) {
      fetch.digests = std::nullopt;
      return {Next::kFetched};
    }
    PathStep step = InPlacePath::Begin(fetch);
    fetch.context.deadline = plan_.context().deadline;  // the wait may have been long
    return step;
  }

  PathStep Arrived(ChunkFetch& fetch) override {
    PathStep step = InPlacePath::Arrived(fetch);
    // A source that wrote to the place by itself needed the buffer only for verification.
    if (step.next != Next::kPlaced || fetch.source->source->in_place()) return step;
    fetch.placing_since = SteadyNow();
    absl::StatusOr<AwaitPlaced> placing = plan_.destination->Place(fetch.request.range, fetch.bytes);
    if (placing.ok()) fetch.await_placed = *std::move(placing);
    return fetch.await_placed != nullptr ? PathStep{Next::kAwait} : Placed(fetch, placing.status());
  }

  PathStep Await(ChunkFetch& fetch) override { return Placed(fetch, fetch.await_placed()); }

 private:
  static PathStep Placed(ChunkFetch& fetch, absl::Status placed) {
    StageClock& clock = *fetch.source->clock;
    if (placed.ok()) {
      clock.Passed(Stage::kPlace, fetch.placing_since, fetch.request.range.bytes);
      return {Next::kPlaced};
    }
    clock.Failed(Stage::kPlace, fetch.placing_since, placed);
    return {Next::kFailed, std::move(placed)};
  }
};

// What is in its place, by the GPU's copy or by its source, is digested there.
class WrittenPath : public ChunkPath {
 public:
  WrittenPath(const IngestPlan& plan, ChunkVerifier& verifier, ChunkPath* by_host)
      : plan_(plan), verifier_(verifier), by_host_(by_host) {}

  int max_chunks() const override { return std::max(by_host_->max_chunks(), DirectCopies::kAtOnce); }
  ChunkPath* fallback() const override { return by_host_; }

  PathStep Begin(ChunkFetch& fetch) override {
    fetch.request.device = plan_.destination->memory().device->pointer() + fetch.request.range.offset;
    return {Next::kFetch};
  }

  PathStep Arrived(ChunkFetch& fetch) override { return BringFrom(fetch, fetch.request.device); }

  PathStep Await(ChunkFetch& fetch) override {
    const absl::StatusOr<Digest> digest = fetch.await_digested();
    if (!digest.ok()) {
      fetch.digests = digest.status();
      return {Next::kBlocked, digest.status()};
    }
    fetch.digests = ChunkDigests{.xxh3 = *digest, .blake3 = std::nullopt};
    if (avoids_host()) fetch.source->clock->CameDirectly();  // a damaged chunk did, too
    return fetch.compared ? Verify(verifier_, plan_.subject, fetch) : PathStep{Next::kPlaced};
  }

 protected:
  // Whether the bytes come without passing through host memory.
  virtual bool avoids_host() const { return true; }

  PathStep BringFrom(ChunkFetch& fetch, DevicePtr from) {
    const uint32_t chunk = fetch.request.chunk;
    // The policy is about copies between GPUs. Chunks that stay in an advance are not copied.
    const ChunkSource& source = *fetch.source->source;
    fetch.compared = source.computes_chunks() || source.info().lane == kAdvanceLane ||
                     IsCompared(plan_.device_verification, plan_.seed, chunk, plan_.layout->chunk_count());
    return AwaitIt(fetch, plan_.destination->PlaceFrom(fetch.request.range, from, /*digest=*/fetch.compared));
  }

  // The digest comes with the copy, so this path verifies in Await, when the bytes are in their place
  // already. A wrong chunk is not announced (on_chunk), and the next fetch writes over it.
  static PathStep AwaitIt(ChunkFetch& fetch, absl::StatusOr<AwaitDigested> bringing) {
    if (!bringing.ok()) {
      // Through the host every chunk is compared.
      fetch.compared = true;
      return {Next::kBlocked, bringing.status()};
    }
    fetch.await_digested = *std::move(bringing);
    return {Next::kAwait};
  }

  const IngestPlan& plan_;
  ChunkVerifier& verifier_;
  ChunkPath* const by_host_;
};

// The GPU copies the bytes from where the source has them, so that there is nothing to fetch.
// Such a fetch holds no slot: Begin only enqueues a copy, and one slot awaits the copies in order.
class CopyingPath : public WrittenPath {
 public:
  using WrittenPath::WrittenPath;

  void Prepare(SourceInUse& source) const override {
    source.max_fetches = std::max(source.max_fetches, DirectCopies::kAtOnce);
    source.blocks = false;
  }

 protected:
  // The source itself refuses when it is asked for a chunk that it does not have.
  // Only this chunk goes through the host; the next ones of the source come this way again.
  PathStep BeginByHost(ChunkFetch& fetch) {
    fetch.path = by_host_;
    return by_host_->Begin(fetch);
  }
};

class UploadedPath final : public CopyingPath {
 public:
  using CopyingPath::CopyingPath;

  PathStep Begin(ChunkFetch& fetch) override {
    const std::vector<ConstHostSpan> host = fetch.source->source->HostSpans(fetch.request.range);
    if (host.empty()) return BeginByHost(fetch);
    fetch.compared = true;
    return AwaitIt(fetch, plan_.destination->PlaceFromHost(fetch.request.range, host));
  }

 protected:
  bool avoids_host() const override { return false; }
};

class CopiedPath final : public CopyingPath {
 public:
  using CopyingPath::CopyingPath;

  PathStep Begin(ChunkFetch& fetch) override {
    const ByteRange range = fetch.request.range;
    const Availability* const has = fetch.source->availability.get();
    if (has == nullptr || has->HasRange(range.offset, range.bytes)) {
      return BringFrom(fetch, fetch.source->source->device_image() + range.offset);
    }
    return BeginByHost(fetch);
  }
};

std::unique_ptr<ChunkPath> PathByHost(const IngestPlan& plan, ChunkVerifier& verifier) {
  if (plan.destination->places()) return std::make_unique<StagedPath>(plan, verifier);
  return std::make_unique<InPlacePath>(plan, verifier);
}

}  // namespace

ChunkPaths::ChunkPaths(const IngestPlan& plan, ChunkVerifier* verifier)
    : plan_(plan),
      by_host_(PathByHost(plan, *verifier)),
      copied_(std::make_unique<CopiedPath>(plan, *verifier, by_host_.get())),
      uploaded_(std::make_unique<UploadedPath>(plan, *verifier, by_host_.get())),
      written_(std::make_unique<WrittenPath>(plan, *verifier, by_host_.get())) {}

ChunkPaths::~ChunkPaths() = default;

// What a GPU digests is compared by XXH3 alone.
ChunkPath* ChunkPaths::Choose(ChunkSource& source) const {
  const std::shared_ptr<const DeviceBlock> place = plan_.destination->memory().device;
  // A difference may come from another host, too (ChunkVerifier::WantsBlake3).
  const bool distrusted = plan_.distrust_other_hosts && (source.info().type == SourceType::kRemote ||
                                                         source.info().lane == kDifferenceLane);
  // BLAKE3 is computed on the host, for a first ingest and where other hosts are not trusted.
  if (place == nullptr || plan_.expected == nullptr || distrusted) return by_host_.get();
  const DevicePtr to = place->pointer();
  if (const DevicePtr from = source.device_image()) {
    return plan_.destination->TakesFrom(from.device) ? copied_.get() : by_host_.get();
  }
  if (!plan_.destination->TakesFrom(to.device)) return by_host_.get();  // no digest on that device
  if (source.lends_host_memory()) return uploaded_.get();
  // PrepareDevice is called once for a source, before its first fetch.
  const absl::Status ready = source.PrepareDevice(to, plan_.layout->image_bytes);
  return ready.ok() ? written_.get() : by_host_.get();
}

}  // namespace tensorcast
