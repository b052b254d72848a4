// The state of Changes. Private to this folder. Immutable after Find, except for `idle`, which `mutex`
// guards.
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
#include "core/difference/chunk_rebuilder.h"
#include "tensorcast/changes.h"

namespace tensorcast::client {

// A part of the target's image in which elements may have changed.
struct ChangedPart {
  ByteRange range;     // in the image
  bool whole = false;  // the changed elements are unknown, so all count as changed
  uint32_t chunk = 0;  // the chunk that `range` covers; used if `base` is null and `whole` is false
  const std::byte* base = nullptr;  // range.bytes bytes of the base's image to compare with, or null
  uint32_t width = 1;               // bytes of an element; used with `base`
};

// Reused memory of one thread.
struct ChangesReader {
  ChunkRebuilder rebuilder;
  std::vector<uint64_t> marks;
  std::vector<uint32_t> offsets;
};

// The changed elements of the part that was read last. Many small tensors may lie in one part.
struct ReadPart {
  ChangesReader reader;
  const ChangedPart* part = nullptr;
  std::vector<uint32_t> elements;  // byte offsets in the part, ascending
  bool known = false;              // false: the whole part counts as changed
};

// The attached image of the replica that the changes lead to.
struct Changes::Target {
  // Calls visit(tensor, overlap) for each tensor that shares bytes with `range` of the image. `tensor` is an
  // index into `places`.
  void ForOverlaps(ByteRange range, absl::FunctionRef<void(size_t, ByteRange)> visit) const;
  // INVALID_ARGUMENT unless `memory` has one entry per tensor, and each non-empty entry has its tensor's
  // size.
  absl::Status Check(std::span<const std::span<std::byte>> memory) const;

  std::string artifact_id;
  std::shared_ptr<const Manifest> manifest;
  std::span<const std::byte> image;
  std::vector<uint32_t> chunks;   // the chunks that the replica has, ascending
  std::vector<uint32_t> tensors;  // the requested tensors, as indices into the layout, ascending
  std::vector<ByteRange> places;  // the bytes of those tensors in the image
};

struct Changes::State {
  // Calls `visit` with the changed elements of `part`, as byte offsets in the part, some thousands per call.
  // Returns false if the changed elements are unknown: the whole part then counts as changed. Calls of
  // `visit` may precede a false result.
  bool Visit(const ChangedPart& part, ChangesReader& reader,
             absl::FunctionRef<void(const ChangedElements&)> visit) const;
  // Reads the changed elements of `part` into `read`, unless `read` already has them.
  void Read(const ChangedPart& part, ReadPart& read) const;
  // Returns an unused ReadPart, if possible the ReadPart that read `part` last.
  std::unique_ptr<ReadPart> Take(const ChangedPart* part);
  void GiveBack(std::unique_ptr<ReadPart> read);

  Target target;
  ChangesSource source = ChangesSource::kWhole;
  std::string base_id;
  std::unique_ptr<Replica> base;                      // compared with the target (kComparison), else null
  std::vector<std::unique_ptr<Replica>> differences;  // own the memory that `decoders` read
  std::vector<DifferenceDecoder> decoders;
  std::vector<const DifferenceDecoder*> path;
  std::vector<ChangedPart> parts;  // ascending, without overlaps

  absl::Mutex mutex;
  std::vector<std::unique_ptr<ReadPart>> idle ABSL_GUARDED_BY(mutex);
};

}  // namespace tensorcast::client
