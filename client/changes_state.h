// What Changes has: the parts of the target's image in which elements may have changed, and what tells which
// they are. Private to this folder. Immutable once made, but for the elements that Of read last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/byte_range.h"
#include "core/artifact/manifest.h"
#include "core/difference/difference_decoder.h"
#include "tensorcast/changes.h"

namespace tensorcast::client {

// A part of the target's image.
struct ChangedPart {
  ByteRange range;     // in the image
  bool whole = false;  // nothing tells which of its elements changed
  // What tells it: a chunk of the differences, or where `base` is not null as many bytes to compare with.
  uint32_t chunk = 0;
  const std::byte* base = nullptr;
  uint32_t width = 1;  // bytes of an element, beside `base`
};

// Memory of one thread.
struct ChangesReader {
  ChunkRebuilder rebuilder;
  std::vector<uint64_t> marks;
  std::vector<uint32_t> offsets;
};

// The attached image of a replica.
struct Changes::Target {
  // Calls visit(tensor, range) for the bytes of the image in `range` that belong to the tensors.
  void ForOverlaps(ByteRange range, absl::FunctionRef<void(size_t, ByteRange)> visit) const;
  // INVALID_ARGUMENT unless there is memory of the right size for each tensor, or none.
  absl::Status Check(std::span<const std::span<std::byte>> memory) const;

  std::string artifact_id;
  std::shared_ptr<const Manifest> manifest;
  std::span<const std::byte> image;
  std::vector<uint32_t> chunks;   // that it has, ascending
  std::vector<uint32_t> tensors;  // that it shows, by their places in the layout, ascending
  std::vector<ByteRange> places;  // of those tensors in the image
};

struct Changes::State {
  // Calls `visit` with the elements of `part` that changed, in bytes from its beginning, some thousands at a
  // time. False: they are not known, and the part counts as whole; some may have been visited.
  bool Visit(const ChangedPart& part, ChangesReader& reader,
             absl::FunctionRef<void(const ChangedElements&)> visit) const;
  // Reads the elements of `part` into `elements`, unless they are there.
  void Read(const ChangedPart& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Target target;
  ChangesSource source = ChangesSource::kWhole;
  std::string base_id;
  std::unique_ptr<Replica> base;                      // to compare with
  std::vector<std::unique_ptr<Replica>> differences;  // that the decoders read
  std::vector<DifferenceDecoder> decoders;
  std::vector<const DifferenceDecoder*> path;
  std::vector<ChangedPart> parts;  // ascending, without overlaps

  absl::Mutex mutex;
  ChangesReader reader ABSL_GUARDED_BY(mutex);
  const ChangedPart* read ABSL_GUARDED_BY(mutex) = nullptr;  // these are its elements:
  std::vector<uint32_t> elements ABSL_GUARDED_BY(mutex);     // offsets from its beginning, ascending
  bool known ABSL_GUARDED_BY(mutex) = false;                 // false: it counts as whole
};

}  // namespace tensorcast::client
