// Verifies the chunks of one ingest. For a known artifact, compares each chunk with its digests in the
// manifest. For a new artifact, computes the digests for the future manifest.
//
// Thread-safe; only one thread at a time may verify the same chunk.
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
  // `expected` is null for a first ingest. Then every chunk counts as right, and both digests are computed.
  // The pointers must outlive the verifier.
  ChunkVerifier(const ImageLayout* layout, const Manifest* expected, bool distrust_other_hosts)
      : layout_(layout),
        expected_(expected),
        distrust_other_hosts_(distrust_other_hosts),
        digests_(layout->chunk_count()) {}

  // Whether this chunk of this source needs a BLAKE3 digest, too.
  bool WantsBlake3(const SourceInfo& source, uint32_t chunk) const;

  // INVALID_ARGUMENT if a first ingest has a nonzero byte of padding in the chunk. Always OK for a
  // known artifact.
  absl::Status CheckPadding(const ChunkRequest& request) const;

  struct Verdict {
    uint64_t bytes_read = 0;  // bytes that the verifier digested; 0: the source had digested the chunk
    std::string wrong;        // for people: the two digests that differ; empty: the chunk is right
  };
  // `bytes` are the chunk's bytes. `delivered` has the digests that the source computed. Verify computes the
  // missing digests from `bytes`.
  Verdict Verify(const ChunkRequest& request, std::span<const ConstHostSpan> bytes,
                 std::optional<ChunkDigests> delivered);

  // The digests of all chunks that were right. REQUIRES: no call of Verify is running.
  std::vector<ChunkDigests> TakeDigests() { return std::move(digests_); }

 private:
  const ImageLayout* const layout_;
  const Manifest* const expected_;
  const bool distrust_other_hosts_;
  std::vector<ChunkDigests> digests_;
};

}  // namespace tensorcast
