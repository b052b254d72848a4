#include "core/difference/element_runs.h"

#include <algorithm>

#include "absl/log/check.h"

namespace tensorcast {
namespace {

// Keeps offsets in a chunk, counts of elements and sizes of records below 2^32, with room to spare.
constexpr uint64_t kMaxGeometryChunkBytes = uint64_t{1} << 30;

uint64_t End(const ElementRun& run) { return run.offset + run.bytes; }

}  // namespace

uint32_t DifferenceGeometry::chunk_count() const {
  return static_cast<uint32_t>((image_bytes + chunk_bytes - 1) / chunk_bytes);
}

ByteRange DifferenceGeometry::chunk(uint32_t chunk) const {
  DCHECK_LT(chunk, chunk_count());
  const uint64_t offset = chunk * chunk_bytes;
  return {offset, std::min(chunk_bytes, image_bytes - offset)};
}

std::vector<ElementRun> DifferenceGeometry::RunsOf(uint32_t chunk) const {
  const ByteRange range = this->chunk(chunk);
  const uint64_t end = range.offset + range.bytes;
  std::vector<ElementRun> inside;
  auto run = std::ranges::partition_point(
      runs, [&](const ElementRun& candidate) { return End(candidate) <= range.offset; });
  for (; run != runs.end() && run->offset < end; ++run) {
    const uint64_t first = std::max(run->offset, range.offset);
    inside.push_back({first - range.offset, std::min(End(*run), end) - first, run->width});
  }
  return inside;
}

uint32_t ElementWidth(DType dtype) {
  if (dtype == DType::kC64) return 4;
  const DTypeInfo* const info = FindDType(dtype);
  return info == nullptr ? 1 : std::max<uint32_t>(info->bits / 8, 1);
}

DifferenceGeometry GeometryOf(const ImageLayout& layout) {
  CHECK_LE(layout.chunk_bytes, kMaxGeometryChunkBytes);
  DifferenceGeometry geometry{
      .image_bytes = layout.image_bytes, .chunk_bytes = layout.chunk_bytes, .runs = {}};
  for (const Tensor& tensor : layout.tensors) {
    // An empty tensor has no element, and the next tensor may have the same offset.
    if (tensor.nbytes == 0) continue;
    const uint32_t width = ElementWidth(tensor.dtype);
    if (!geometry.runs.empty()) {
      // The run before gets the padding up to this tensor. A tensor of the same width then continues it.
      ElementRun& before = geometry.runs.back();
      before.bytes = tensor.offset - before.offset;
      if (before.width == width) continue;
    }
    geometry.runs.push_back({tensor.offset, 0, width});
  }
  if (!geometry.runs.empty()) geometry.runs.back().bytes = layout.image_bytes - geometry.runs.back().offset;
  return geometry;
}

}  // namespace tensorcast
