#include "core/ingest/chunk_verifier.h"

#include "absl/strings/str_cat.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {
namespace {

// XXH3 first: bytes that differ by accident are not forgery.
std::string Mismatch(const ChunkDigests& found, const ChunkDigests& expected) {
  if (found.xxh3 != expected.xxh3) {
    return absl::StrCat("has digest ", found.xxh3.ToHex(), ", but the manifest says ", expected.xxh3.ToHex());
  }
  if (found.blake3.has_value() && expected.blake3.has_value() && *found.blake3 != *expected.blake3) {
    return absl::StrCat("is forged: the XXH3 digest is right, but the BLAKE3 digest is ",
                        found.blake3->ToHex(), ", and the manifest says ", expected.blake3->ToHex());
  }
  return "";
}

}  // namespace

// A chunk that a difference rebuilt is distrusted like bytes from another host: the difference may have come
// from there.
bool ChunkVerifier::WantsBlake3(const SourceInfo& source, uint32_t chunk) const {
  if (expected_ == nullptr) return true;
  const bool distrusted =
      source.type == SourceType::kRemote || source.outside || source.lane == kDifferenceLane;
  return distrust_other_hosts_ && distrusted && expected_->digests()[chunk].blake3.has_value();
}

absl::Status ChunkVerifier::CheckPadding(const ChunkRequest& request) const {
  if (expected_ != nullptr) return absl::OkStatus();
  return tensorcast::CheckPadding(*layout_, request.range, request.destination);
}

ChunkVerifier::Verdict ChunkVerifier::Verify(const ChunkRequest& request,
                                             std::span<const ConstHostSpan> bytes,
                                             std::optional<ChunkDigests> delivered) {
  Verdict verdict;
  if (!delivered.has_value()) {
    DigestBuilder builder(request.blake3);
    for (const ConstHostSpan& span : bytes) builder.Update(span);
    delivered = builder.FinishChunk();
    verdict.bytes_read = request.range.bytes;
  } else if (request.blake3 && !delivered->blake3.has_value()) {
    // The source has XXH3 alone; the chunk is still in its buffer.
    delivered->blake3 = Blake3OfPieces(request.destination);
    verdict.bytes_read = request.range.bytes;
  }
  if (expected_ != nullptr) verdict.wrong = Mismatch(*delivered, expected_->digests()[request.chunk]);
  // Each chunk has its own element and one writer at a time, so no lock is needed.
  if (verdict.wrong.empty()) digests_[request.chunk] = *delivered;
  return verdict;
}

}  // namespace tensorcast
