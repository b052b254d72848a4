#include "core/broadcast/unsent_chunks.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// Enough that the way to the broadcaster and back does not count, and little enough that receivers verify
// while the next comes.
constexpr uint64_t kBytesAtOnce = uint64_t{64} << 20;

}  // namespace

UnsentChunks::UnsentChunks(const ReplicaLease* root)
    : root_(root),
      sent_(root->manifest()->layout().chunk_count(), false),
      count_(root->manifest()->layout().chunk_count()) {
  // A ready replica has no availability: all its chunks are there, and none is to come.
  if (root_->availability() == nullptr) return;
  watch_ = root_->availability()->OnChange([this] {
    absl::MutexLock lock(&mutex_);
    news_ = true;
  });
}

// `news_` says that the root may have chunks that were not looked at. It is cleared before the look, so a
// chunk that comes during the look sets it again. A ready root begins with `news_` set and keeps it, since
// each Take that finds chunks sets it.
absl::StatusOr<std::vector<uint32_t>> UnsentChunks::Take(SteadyTime deadline) {
  const Availability* const has = root_->availability().get();
  const ImageLayout& layout = root_->manifest()->layout();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto moved = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return news_ || stopped_; };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&moved), TimeLeft(deadline))) {
        return absl::DeadlineExceededError(
            "the replica to send received no further chunk in time; check the transfer into this replica");
      }
      if (stopped_) {
        return absl::UnavailableError(
            "a receiving GPU left the group; no action is needed, the other GPUs pull the missing chunks");
      }
      news_ = false;
    }
    // Before the chunks are looked at: what came before the end is seen.
    const bool ended = has != nullptr && has->ended();
    std::vector<uint32_t> chunks;
    uint64_t bytes = 0;
    for (uint32_t chunk = 0; chunk < sent_.size() && bytes < kBytesAtOnce; ++chunk) {
      if (sent_[chunk] || (has != nullptr && !has->Has(chunk))) continue;
      chunks.push_back(chunk);
      bytes += layout.chunk(chunk).bytes;
      sent_[chunk] = true;
    }
    if (!chunks.empty()) {
      count_ -= static_cast<uint32_t>(chunks.size());
      absl::MutexLock lock(&mutex_);
      news_ = true;  // there may be more than were taken
      return chunks;
    }
    if (ended) return Annotate(has->end(), "read the replica to send");
  }
}

// The sender may be in the broadcaster now: it stops with its next Take.
void UnsentChunks::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

std::vector<ByteRange> RangesOf(const ImageLayout& layout, const std::vector<uint32_t>& chunks) {
  std::vector<ByteRange> ranges;
  for (const uint32_t chunk : chunks) {
    const ByteRange range = layout.chunk(chunk);
    if (!ranges.empty() && ranges.back().offset + ranges.back().bytes == range.offset) {
      ranges.back().bytes += range.bytes;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

absl::StatusOr<std::vector<uint32_t>> ChunksOf(const ImageLayout& layout,
                                               const std::vector<ByteRange>& ranges) {
  std::vector<uint32_t> chunks;
  for (const ByteRange& range : ranges) {
    // The ranges come from another process: each bound is checked before it is used in a sum.
    const bool whole =
        range.offset % layout.chunk_bytes == 0 && range.offset < layout.image_bytes &&
        range.bytes <= layout.image_bytes - range.offset &&
        (range.bytes % layout.chunk_bytes == 0 || range.offset + range.bytes == layout.image_bytes);
    if (!whole || range.bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the sender named bytes ", range.offset, " to ", range.offset + range.bytes,
                       " of the image, but this range is not whole chunks; run one release on all nodes"));
    }
    for (uint64_t at = range.offset; at < range.offset + range.bytes; at += layout.chunk_bytes) {
      chunks.push_back(static_cast<uint32_t>(at / layout.chunk_bytes));
    }
  }
  return chunks;
}

}  // namespace tensorcast
