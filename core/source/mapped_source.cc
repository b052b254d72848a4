#include "core/source/mapped_source.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// Between two looks at the context: some 100 us of copying.
constexpr uint64_t kStepBytes = uint64_t{1} << 20;

// Immutable once made, hence any number of fetches at a time.
class MappedSource final : public ChunkSource {
 public:
  MappedSource(SourceInfo info, uint64_t image_bytes, ImageSpans image, int max_concurrency,
               std::shared_ptr<const Availability> availability, bool page_locked)
      : image_(std::move(image)),
        availability_(std::move(availability)),
        info_(std::move(info)),
        max_concurrency_(std::max(1, max_concurrency)),
        image_bytes_(image_bytes),
        page_locked_(page_locked) {}

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return max_concurrency_; }
  std::shared_ptr<const Availability> availability() const override { return availability_; }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    TC_RETURN_IF_ERROR(CheckRange(info_, request, image_bytes_));
    const std::string what = DescribeFetch(info_, request);
    if (!Has(request.range)) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, ": the source does not have the chunk yet; fetch the chunk when the source has it"));
    }
    DigestBuilder digest(request.blake3);
    std::span<const HostSpan> destination = request.destination;
    uint64_t written = 0;  // of the first of them
    for (ConstHostSpan source : image_(request.range.offset, request.range.bytes)) {
      // Source and destination are cut at different places: a step lies within one span of each.
      while (!source.empty()) {
        if (written == destination.front().size()) {
          destination = destination.subspan(1);
          written = 0;
          continue;
        }
        TC_RETURN_IF_ERROR(context.Check(what));
        const HostSpan to = destination.front().subspan(written);
        const ConstHostSpan step = source.first(std::min({source.size(), to.size(), kStepBytes}));
        digest.UpdateAndCopy(to.data(), step);
        source = source.subspan(step.size());
        written += step.size();
      }
    }
    return digest.FinishChunk();
  }

  bool lends_host_memory() const override { return page_locked_; }
  std::vector<ConstHostSpan> HostSpans(ByteRange range) const override {
    if (!page_locked_ || !Has(range)) return {};
    return image_(range.offset, range.bytes);
  }

 private:
  bool Has(ByteRange range) const {
    return availability_ == nullptr || availability_->HasRange(range.offset, range.bytes);
  }

  const ImageSpans image_;  // first: what it keeps goes last
  const std::shared_ptr<const Availability> availability_;
  const SourceInfo info_;
  const int max_concurrency_;
  const uint64_t image_bytes_;
  const bool page_locked_;
};

}  // namespace

ImageSpans SpansOf(std::vector<MappedPiece> pieces, std::shared_ptr<void> keep_alive) {
  struct Image {
    std::shared_ptr<void> keep_alive;
    std::vector<MappedPiece> pieces;
  };
  auto image = std::make_shared<const Image>(Image{std::move(keep_alive), std::move(pieces)});
  return [image](uint64_t offset, uint64_t bytes) {
    std::vector<ConstHostSpan> spans;
    // The piece behind the one that holds the offset.
    auto piece = std::ranges::upper_bound(image->pieces, offset, {}, &MappedPiece::image_offset);
    for (; bytes > 0; ++piece) {
      // The caller has checked the range, so there is a piece for each byte of it.
      const MappedPiece& at = *std::prev(piece);
      const uint64_t skip = offset - at.image_offset;
      spans.push_back(at.bytes.subspan(skip, std::min<uint64_t>(bytes, at.bytes.size() - skip)));
      offset += spans.back().size();
      bytes -= spans.back().size();
    }
    return spans;
  };
}

std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, uint64_t image_bytes, ImageSpans image,
                                              int max_concurrency,
                                              std::shared_ptr<const Availability> availability,
                                              bool page_locked) {
  return std::make_unique<MappedSource>(std::move(info), image_bytes, std::move(image), max_concurrency,
                                        std::move(availability), page_locked);
}

std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, const std::vector<ConstHostSpan>& image,
                                              std::shared_ptr<void> keep_alive, int max_concurrency,
                                              std::shared_ptr<const Availability> availability) {
  std::vector<MappedPiece> pieces;
  uint64_t image_bytes = 0;
  for (const ConstHostSpan span : image) {
    if (span.empty()) continue;
    pieces.push_back({.image_offset = image_bytes, .bytes = span});
    image_bytes += span.size();
  }
  return MakeMappedSource(std::move(info), image_bytes, SpansOf(std::move(pieces), std::move(keep_alive)),
                          max_concurrency, std::move(availability));
}

}  // namespace tensorcast
