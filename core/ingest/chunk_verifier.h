// What the chunks of one ingest have to be: what their manifest says, or, for a new artifact,
// what its manifest is going to say.
//
// Thread-safe: each chunk by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/replica/transfer_report.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class ChunkVerifier {
 public:
  // `expected` null: a first ingest, with chunks that are right as they come, and both digests computed.
  // Pointers must outlive it.
  ChunkVerifier(const ImageLayout* layout, const Manifest* expected, bool distrust_other_hosts)
      : layout_(layout),
        expected_(expected),
        distrust_other_hosts_(distrust_other_hosts),
        digests_(layout->chunk_count()) {}

  // Whether a chunk of such a source is digested by BLAKE3, too.
  bool WantsBlake3(const SourceInfo& source, uint32_t chunk) const;

  // INVALID_ARGUMENT where a first ingest has something between its tensors; later ones' digests cover that.
  absl::Status CheckPadding(const ChunkRequest& request) const;

  struct Verdict {
    uint64_t bytes_read = 0;  // 0: the source had digested the chunk on the way
    std::string wrong;        // what its digest is, and should be, for people; empty: it is right
  };
  // `bytes`: the chunk's. `delivered`: what its source has digested; what is missing of that is computed
  // here.
  Verdict Verify(const ChunkRequest& request, std::span<const ConstHostSpan> bytes,
                 std::optional<ChunkDigests> delivered);

  // Of each chunk that was right. No thread may verify any more.
  std::vector<ChunkDigests> TakeDigests() { return std::move(digests_); }

 private:
  const ImageLayout* const layout_;
  const Manifest* const expected_;
  const bool distrust_other_hosts_;
  std::vector<ChunkDigests> digests_;
};

}  // namespace tensorcast
