#include "core/artifact/layout.h"

#include <algorithm>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/layout_checker.h"
#include "core/artifact/text.h"

namespace tensorcast {

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

}  // namespace tensorcast
