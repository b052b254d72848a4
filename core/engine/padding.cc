#include "core/engine/padding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

uint64_t End(const Tensor& tensor) { return tensor.offset + tensor.nbytes; }

// Calls visit(bytes, offset in the image of their first) for the part of each span that lies in `wanted`.
template <typename Visit>
absl::Status VisitBytes(ByteRange range, std::span<const HostSpan> spans, ByteRange wanted,
                        const Visit& visit) {
  uint64_t offset = range.offset;
  for (const HostSpan& span : spans) {
    const uint64_t first = std::max(offset, wanted.offset);
    const uint64_t last = std::min(offset + span.size(), wanted.offset + wanted.bytes);
    if (first < last) {
      if (absl::Status status = visit(span.subspan(first - offset, last - first), first); !status.ok()) {
        return status;
      }
    }
    offset += span.size();
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ByteRange> PaddingIn(const ImageLayout& layout, ByteRange range) {
  std::vector<ByteRange> gaps;
  const uint64_t range_end = range.offset + range.bytes;
  // Tensors lie in order and do not overlap, so the first that ends behind the range's start is where to
  // begin.
  auto tensor = std::partition_point(layout.tensors.begin(), layout.tensors.end(),
                                     [&](const Tensor& candidate) { return End(candidate) <= range.offset; });
  uint64_t covered = range.offset;
  for (; tensor != layout.tensors.end() && tensor->offset < range_end; ++tensor) {
    if (tensor->offset > covered) gaps.push_back({covered, tensor->offset - covered});
    covered = std::max(covered, std::min(End(*tensor), range_end));
  }
  if (covered < range_end) gaps.push_back({covered, range_end - covered});
  return gaps;
}

absl::Status CheckPadding(const ImageLayout& layout, ByteRange range, std::span<const HostSpan> spans) {
  auto check = [](HostSpan bytes, uint64_t offset) {
    const auto wrong =
        std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte != std::byte{0}; });
    if (wrong == bytes.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("byte ", offset + (wrong - bytes.begin()),
                     " of the image belongs to no tensor and is not zero: the source "
                     "must fill the gaps between tensors with zeros"));
  };
  for (const ByteRange& gap : PaddingIn(layout, range)) {
    if (absl::Status status = VisitBytes(range, spans, gap, check); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
