#include "core/artifact/layout_checker.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/text.h"

namespace tensorcast {
namespace {

constexpr uint64_t kChunkGrain = 4096;
// Offsets fit in a signed 64-bit file offset, and aligning one can't overflow.
constexpr uint64_t kMaxImageBytes = (uint64_t{1} << 63) - kTensorAlignment;

}  // namespace

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
