#include "core/difference/difference_artifact.h"

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tensorcast {

ImageLayout DifferenceLayout(uint64_t index_bytes, uint64_t records_bytes) {
  const auto bytes = [](std::string name, uint64_t count) {
    return Tensor{.name = std::move(name), .dtype = DType::kU8, .shape = {count}, .nbytes = count};
  };
  ImageLayout layout{.tensors = {bytes("index", index_bytes), bytes("records", records_bytes)}};
  // Two tensors of bytes with different names are always a valid layout, up to the size that the header
  // requires.
  CHECK_OK(AssignOffsets(layout));
  return layout;
}

std::map<std::string, std::string> DifferenceMetadata(const DifferenceEnds& ends) {
  return {{"base", ends.base}, {"target", ends.target}};
}

absl::StatusOr<DifferenceEnds> EndsOf(const Manifest& difference) {
  if (difference.kind() != ArtifactKind::kDifference) {
    return absl::InvalidArgumentError(
        absl::StrCat("read the base and target of artifact ", difference.id(), ": the artifact has kind ",
                     ArtifactKindName(difference.kind()), "; name an artifact of kind difference"));
  }
  // Both are there: a manifest of this kind without them cannot be made or decoded.
  return DifferenceEnds{.base = difference.metadata().at("base"),
                        .target = difference.metadata().at("target")};
}

}  // namespace tensorcast
