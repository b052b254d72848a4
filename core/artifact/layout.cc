#include "core/artifact/layout.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast {
namespace {

// The page size, so that chunks of a file can be read with direct I/O.
constexpr uint64_t kChunkGrain = 4096;
// Offsets fit in a signed 64-bit file offset, and aligning one can't overflow.
constexpr uint64_t kMaxImageBytes = (uint64_t{1} << 63) - kTensorAlignment;

uint64_t End(const Tensor& tensor) { return tensor.offset + tensor.nbytes; }

// Calls visit(bytes, offset in the image of their first) for the part of each span that lies in `wanted`.
template <typename Visit>
absl::Status VisitBytes(ByteRange range, std::span<const std::span<std::byte>> spans, ByteRange wanted,
                        const Visit& visit) {
  uint64_t offset = range.offset;
  for (const std::span<std::byte>& span : spans) {
    // The part of this span that is wanted, in offsets of the image.
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

template <typename... Why>
absl::Status Refuse(const Tensor& tensor, const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("lay out tensor ", QuoteName(tensor.name), ": ", why...));
}

// The rules of a layout, one tensor at a time.
class LayoutChecker {
 public:
  explicit LayoutChecker(size_t expected_tensors) { names_.reserve(expected_tensors); }

  // Checks the next tensor and returns the offset that it must have; its own offset is not looked at. The
  // tensor must stay where it is as long as this object lives, since names_ refers to its name.
  // INVALID_ARGUMENT as for AssignOffsets.
  absl::StatusOr<uint64_t> Next(const Tensor& tensor);

  // The image size of the tensors so far.
  uint64_t image_bytes() const { return image_bytes_; }

 private:
  uint64_t image_bytes_ = 0;
  absl::flat_hash_set<std::string_view> names_;
};

absl::StatusOr<uint64_t> LayoutChecker::Next(const Tensor& tensor) {
  if (!IsValidUtf8(tensor.name)) return Refuse(tensor, "the name is not valid UTF-8; rename the tensor");
  if (!names_.insert(tensor.name).second) {
    return Refuse(tensor, "two tensors have this name; rename one tensor");
  }
  const absl::StatusOr<uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("lay out tensor ", QuoteName(tensor.name)));
  if (*bytes != tensor.nbytes) {
    return Refuse(tensor, "the tensor has ", tensor.nbytes, " bytes, but its dtype and shape need ", *bytes,
                  " bytes; correct the shape");
  }
  const uint64_t offset = image_bytes_;
  // By subtraction: the sum could overflow.
  if (tensor.nbytes > kMaxImageBytes - offset) {
    return Refuse(tensor, "the tensor's ", tensor.nbytes, " bytes at offset ", offset,
                  " make the image larger than 2^63 - 256 bytes; put fewer tensors");
  }
  image_bytes_ = (offset + tensor.nbytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  return offset;
}

}  // namespace

uint64_t ChunkBytesOf(uint64_t image_bytes) {
  return std::clamp(std::bit_floor(image_bytes / 256), kMinChunkBytes, kMaxChunkBytes);
}

uint32_t ChunkCountOf(uint64_t image_bytes, uint64_t chunk_bytes) {
  DCHECK_GT(chunk_bytes, 0u);
  return static_cast<uint32_t>(image_bytes / chunk_bytes + (image_bytes % chunk_bytes != 0 ? 1 : 0));
}

ByteRange ImageLayout::chunk(uint32_t chunk) const {
  DCHECK_LT(chunk, chunk_count());
  const uint64_t offset = chunk * chunk_bytes;
  return {offset, std::min(chunk_bytes, image_bytes - offset)};
}

absl::Status AssignOffsets(ImageLayout& layout) {
  // Collected first, so that an error leaves the layout as it was.
  std::vector<uint64_t> offsets;
  offsets.reserve(layout.tensors.size());
  LayoutChecker checker(layout.tensors.size());
  for (const Tensor& tensor : layout.tensors) {
    TC_ASSIGN_OR_RETURN(offsets.emplace_back(), checker.Next(tensor));
  }
  const uint64_t chunk_bytes = ChunkBytesOf(checker.image_bytes());
  TC_RETURN_IF_ERROR(CheckChunkBytes(chunk_bytes, checker.image_bytes()));
  for (size_t i = 0; i < offsets.size(); ++i) layout.tensors[i].offset = offsets[i];
  layout.image_bytes = checker.image_bytes();
  layout.chunk_bytes = chunk_bytes;
  return absl::OkStatus();
}

absl::Status ValidateLayout(const ImageLayout& layout) {
  LayoutChecker checker(layout.tensors.size());
  for (const Tensor& tensor : layout.tensors) {
    TC_ASSIGN_OR_RETURN(const uint64_t offset, checker.Next(tensor));
    if (tensor.offset != offset) {
      return Refuse(tensor, "the tensor is at offset ", tensor.offset, " of the image instead of ", offset,
                    "; put the artifact with a client of this release");
    }
  }
  if (layout.image_bytes != checker.image_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lay out an image of ", layout.image_bytes, " bytes: the tensors and their padding end at byte ",
        checker.image_bytes(), "; put the artifact with a client of this release"));
  }
  return CheckChunkBytes(layout.chunk_bytes, layout.image_bytes);
}

bool SameImage(const ImageLayout& a, const ImageLayout& b) {
  return a.image_bytes == b.image_bytes && a.tensors == b.tensors;
}

std::vector<ByteRange> PaddingIn(const ImageLayout& layout, ByteRange range) {
  std::vector<ByteRange> gaps;
  const uint64_t range_end = range.offset + range.bytes;
  // Tensors lie in order and do not overlap, so the first that ends behind the range's start is where to
  // begin.
  auto tensor = std::partition_point(layout.tensors.begin(), layout.tensors.end(),
                                     [&](const Tensor& candidate) { return End(candidate) <= range.offset; });
  // Walks from tensor to tensor: what lies between `covered` and the next one belongs to none.
  uint64_t covered = range.offset;
  for (; tensor != layout.tensors.end() && tensor->offset < range_end; ++tensor) {
    if (tensor->offset > covered) gaps.push_back({covered, tensor->offset - covered});
    covered = std::max(covered, std::min(End(*tensor), range_end));
  }
  if (covered < range_end) gaps.push_back({covered, range_end - covered});
  return gaps;
}

absl::Status CheckPadding(const ImageLayout& layout, ByteRange range,
                          std::span<const std::span<std::byte>> spans) {
  auto check = [](std::span<std::byte> bytes, uint64_t offset) {
    const auto wrong =
        std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte != std::byte{0}; });
    if (wrong == bytes.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("check the image's padding: byte ", offset + (wrong - bytes.begin()),
                     " belongs to no tensor and is not zero; fill the gaps between tensors with zeros"));
  };
  for (const ByteRange& gap : PaddingIn(layout, range)) {
    if (absl::Status status = VisitBytes(range, spans, gap, check); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckChunkBytes(uint64_t chunk_bytes, uint64_t image_bytes) {
  if (chunk_bytes == 0 || chunk_bytes % kChunkGrain != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cut an image of ", image_bytes, " bytes into chunks: the chunk size of ", chunk_bytes,
        " bytes is not a positive multiple of ", kChunkGrain, " bytes; run one release on all nodes"));
  }
  const uint64_t chunks = image_bytes / chunk_bytes + (image_bytes % chunk_bytes != 0 ? 1 : 0);
  if (chunks > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cut an image of ", image_bytes, " bytes into chunks: the image would have ", chunks, " chunks of ",
        chunk_bytes, " bytes, and at most 2^32-1 chunks are allowed; use larger chunks"));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
