#include "core/artifact/layout.h"

#include <algorithm>
#include <limits>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast {
namespace {

constexpr uint64_t kChunkGrain = 4096;
// Offsets fit in a signed 64-bit file offset, and aligning one can't overflow.
constexpr uint64_t kMaxImageBytes = (uint64_t{1} << 63) - kTensorAlignment;

}  // namespace

uint32_t ImageLayout::chunk_count() const {
  DCHECK_GT(chunk_bytes, 0u);
  return static_cast<uint32_t>(image_bytes / chunk_bytes + (image_bytes % chunk_bytes != 0 ? 1 : 0));
}

ByteRange ImageLayout::chunk(uint32_t chunk) const {
  DCHECK_LT(chunk, chunk_count());
  const uint64_t offset = chunk * chunk_bytes;
  return {offset, std::min(chunk_bytes, image_bytes - offset)};
}

absl::Status AssignOffsets(ImageLayout& layout) {
  std::vector<uint64_t> offsets;
  offsets.reserve(layout.tensors.size());
  LayoutChecker checker(layout.tensors.size());
  for (const Tensor& tensor : layout.tensors) {
    TC_ASSIGN_OR_RETURN(offsets.emplace_back(), checker.Next(tensor));
  }
  TC_RETURN_IF_ERROR(CheckChunkBytes(layout.chunk_bytes, checker.image_bytes()));
  for (size_t i = 0; i < offsets.size(); ++i) layout.tensors[i].offset = offsets[i];
  layout.image_bytes = checker.image_bytes();
  return absl::OkStatus();
}

absl::Status ValidateLayout(const ImageLayout& layout) {
  LayoutChecker checker(layout.tensors.size());
  for (const Tensor& tensor : layout.tensors) {
    TC_ASSIGN_OR_RETURN(const uint64_t offset, checker.Next(tensor));
    if (tensor.offset != offset) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", QuoteName(tensor.name), " is at offset ",
                                                     tensor.offset, " of the image instead of ", offset));
    }
  }
  if (layout.image_bytes != checker.image_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the image has ", layout.image_bytes,
                                                   " bytes, but its tensors end at ", checker.image_bytes()));
  }
  return CheckChunkBytes(layout.chunk_bytes, layout.image_bytes);
}

absl::StatusOr<uint64_t> LayoutChecker::Next(const Tensor& tensor) {
  if (!IsValidUtf8(tensor.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor name ", QuoteName(tensor.name), " is not valid UTF-8"));
  }
  if (!names_.insert(tensor.name).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("two tensors are named ", QuoteName(tensor.name), ": names must differ"));
  }
  const absl::StatusOr<uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("tensor ", QuoteName(tensor.name)));
  if (*bytes != tensor.nbytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", QuoteName(tensor.name), " has ", tensor.nbytes,
                                                   " bytes, but its dtype and shape ask for ", *bytes));
  }
  const uint64_t offset = image_bytes_;
  if (tensor.nbytes > kMaxImageBytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", QuoteName(tensor.name), " of ", tensor.nbytes,
                                                   " bytes at offset ", offset,
                                                   " makes the image larger than 2^63 bytes"));
  }
  image_bytes_ = (offset + tensor.nbytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  return offset;
}

absl::Status CheckChunkBytes(uint64_t chunk_bytes, uint64_t image_bytes) {
  if (chunk_bytes == 0 || chunk_bytes % kChunkGrain != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the chunk size of ", chunk_bytes,
                                                   " bytes is not a positive multiple of ", kChunkGrain));
  }
  const uint64_t chunks = image_bytes / chunk_bytes + (image_bytes % chunk_bytes != 0 ? 1 : 0);
  if (chunks > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("an image of ", image_bytes, " bytes makes ", chunks,
                                                   " chunks of ", chunk_bytes,
                                                   " bytes, more than 2^32-1: choose larger chunks"));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
