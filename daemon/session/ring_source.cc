#include "daemon/session/ring_source.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/artifact/digest.h"

namespace tensorcast::daemon {
namespace {

// Of one fetch: while one slot is copied out of the client fills the others.
constexpr size_t kSlotsPerFetch = 4;
// What is copied is digested while it is in the cache.
constexpr size_t kStepBytes = size_t{128} << 10;

// A part of a chunk, in its order: what a slot brings, or what is held.
struct Piece {
  uint64_t image_offset = 0;
  uint64_t bytes = 0;
  const std::byte* held = nullptr;
};

// Writes a chunk from its beginning to its end, and digests what it wrote.
class ChunkCopy {
 public:
  ChunkCopy(std::span<const HostSpan> destination, bool blake3)
      : destination_(destination), digest_(blake3) {}

  void Add(ConstHostSpan source) {
    while (!source.empty()) {
      if (written_ == destination_.front().size()) {
        destination_ = destination_.subspan(1);
        written_ = 0;
        continue;
      }
      const HostSpan to = destination_.front().subspan(written_);
      const ConstHostSpan step = source.first(std::min({source.size(), to.size(), kStepBytes}));
      // The copy, and by ordinary stores: the client may write to `step` at any time.
      std::memcpy(to.data(), step.data(), step.size());
      digest_.Update(to.first(step.size()));
      source = source.subspan(step.size());
      written_ += step.size();
    }
  }
  ChunkDigests Finish() const { return digest_.FinishChunk(); }

 private:
  std::span<const HostSpan> destination_;
  uint64_t written_ = 0;  // of the first of them
  DigestBuilder digest_;
};

// A fetch borrows some slots of the ring, asks the client for the chunk's pieces in them, and copies each
// piece out as it is filled. The copy is digested and never the ring, so what the client writes afterwards
// changes nothing. A client that stops is noticed in PutRing::Await; the error ends the ingest, since this is
// its only source.
class RingSource final : public ChunkSource {
 public:
  RingSource(std::shared_ptr<PutRing> ring, uint64_t image_bytes, HeldBytes held)
      : ring_(std::move(ring)),
        image_bytes_(image_bytes),
        held_(std::move(held)),
        free_(ring_->shape().slots) {
    for (uint32_t slot = 0; slot < free_.size(); ++slot) free_[slot] = slot;
  }

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override {
    return static_cast<int>(std::max<size_t>(1, ring_->shape().slots / kSlotsPerFetch));
  }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    TC_RETURN_IF_ERROR(CheckRange(info_, request, image_bytes_));
    const std::string what = DescribeFetch(info_, request);
    std::deque<uint32_t> slots = TakeSlots();
    if (slots.empty()) {
      return absl::InternalError(absl::StrCat(
          what,
          ": no part of the put's shared memory is free for this fetch; report this defect of the "
          "daemon"));
    }
    ChunkCopy copy(request.destination, request.blake3);
    const absl::Status copied = FetchThrough(slots, context, PiecesOf(request.range), what, copy);
    {
      absl::MutexLock lock(&mutex_);
      // Also after an error: a slot that is still asked for is awaited by the next fetch that takes it.
      free_.insert(free_.end(), slots.begin(), slots.end());
    }
    TC_RETURN_IF_ERROR(copied);
    return copy.Finish();
  }

 private:
  // A fetch has slots of its own until its end, so two fetches never wait for the same slot.
  std::deque<uint32_t> TakeSlots() {
    absl::MutexLock lock(&mutex_);
    const size_t count = std::min(free_.size(), kSlotsPerFetch);
    std::deque<uint32_t> slots(free_.end() - static_cast<ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
    return slots;
  }

  std::vector<Piece> PiecesOf(ByteRange range) const {
    std::vector<Piece> pieces;
    const uint64_t end = range.offset + range.bytes;
    auto held = std::ranges::partition_point(held_.pieces, [&](const MappedPiece& piece) {
      return piece.image_offset + piece.bytes.size() <= range.offset;
    });
    // Held parts and gaps between them take turns; a gap is cut into pieces of one slot.
    for (uint64_t at = range.offset; at < end; at += pieces.back().bytes) {
      const uint64_t next_held = held != held_.pieces.end() ? std::min(held->image_offset, end) : end;
      if (at < next_held) {
        pieces.push_back({at, std::min<uint64_t>(next_held - at, ring_->shape().slot_bytes)});
        continue;
      }
      const uint64_t within = at - held->image_offset;
      pieces.push_back({at, std::min(held->bytes.size() - within, end - at), held->bytes.data() + within});
      ++held;
    }
    return pieces;
  }

  // `slots`: the next to be filled first.
  absl::Status FetchThrough(std::deque<uint32_t>& slots, const RequestContext& context,
                            const std::vector<Piece>& pieces, const std::string& what, ChunkCopy& copy) {
    // A fetch that was cancelled leaves slots that the client may still write to.
    for (const uint32_t slot : slots) {
      if (ring_->asked(slot)) TC_RETURN_IF_ERROR(ring_->Await(context, slot, what).status());
    }
    auto to_ask = pieces.begin();
    const auto ask = [&](uint32_t slot) {
      to_ask = std::find_if(to_ask, pieces.end(), [](const Piece& piece) { return piece.held == nullptr; });
      if (to_ask == pieces.end()) return;
      ring_->Ask(slot, to_ask->image_offset, static_cast<uint32_t>(to_ask->bytes));
      ++to_ask;
    };
    // All slots are asked for at once. Each is asked for again as soon as it was copied out, so the client
    // always has slots to fill.
    for (const uint32_t slot : slots) ask(slot);
    for (const Piece& piece : pieces) {
      if (piece.held != nullptr) {
        TC_RETURN_IF_ERROR(context.Check(what));
        copy.Add({piece.held, piece.bytes});
        continue;
      }
      TC_ASSIGN_OR_RETURN(const ConstHostSpan filled, ring_->Await(context, slots.front(), what));
      copy.Add(filled);
      ask(slots.front());
      slots.push_back(slots.front());
      slots.pop_front();
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<PutRing> ring_;
  const SourceInfo info_{
      .type = SourceType::kLocal, .lane = std::string(kMemoryLane), .name = "a client's tensors"};
  const uint64_t image_bytes_;
  const HeldBytes held_;
  absl::Mutex mutex_;
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<ChunkSource> MakeRingSource(std::shared_ptr<PutRing> ring, uint64_t image_bytes,
                                            HeldBytes held) {
  return std::make_unique<RingSource>(std::move(ring), image_bytes, std::move(held));
}

}  // namespace tensorcast::daemon
