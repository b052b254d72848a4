// Where an ingest gets its bytes from. The engine knows nothing else of disks, peers or clients: each of them
// is a ChunkSource (core/disk, core/source, daemon/sources), and a test brings its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/memory/host_pool.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

struct ChunkRequest {
  uint32_t chunk = 0;
  ByteRange range;                        // of the image
  std::span<const HostSpan> destination;  // pool memory, together range.bytes long
  bool blake3 = false;                    // whoever digests on the way is to compute BLAKE3 as well
};

// Thread-safe: up to max_concurrency() calls of Fetch at a time.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  virtual const SourceInfo& info() const = 0;
  // How many fetches keep it busy; more at once gain nothing.
  virtual int max_concurrency() const = 0;

  // Blocks until the range's bytes are in `destination`, or they never will be: after it returns nothing
  // writes there any more. Returns the chunk's digests when the source computed them on the way (a fused
  // copy), nullopt when not; where BLAKE3 is asked for and not among them, it is computed by who asked. A
  // transient error is the source's to retry; an error from here means that the source is no good any more,
  // unless the context's own deadline has passed.
  virtual absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                            const ChunkRequest& request) = 0;
};

// What every source says and checks of a request. "chunk 3 from node-b", for messages.
std::string DescribeFetch(const SourceInfo& info, const ChunkRequest& request);
// INVALID_ARGUMENT unless the destination is exactly as long as the range.
absl::Status CheckDestination(const SourceInfo& info, const ChunkRequest& request);
// OUT_OF_RANGE unless the range lies in the image.
absl::Status CheckRange(const SourceInfo& info, const ChunkRequest& request, uint64_t image_bytes);

// Why the source before was given up.
struct SourceFailure {
  SourceInfo source;
  absl::Status status;
  bool corrupt = false;    // it delivered bytes that do not match the manifest
  uint32_t chunks = 0;     // that it had begun and did not deliver
  uint32_t delivered = 0;  // chunks of it that are in their place
};

// Told what a provider waits for, for people; an empty text: it goes on.
using WaitObserver = std::function<void(const std::string& what)>;

// Opens the sources of one ingest, one after another. Used by one thread at a time; its calls may block.
class SourceProvider {
 public:
  virtual ~SourceProvider() = default;
  // Before the first call of Next: who is told when one waits for a source that is not there yet. Until it
  // goes on, others have the ingest's turn.
  virtual void ObserveWaits(const WaitObserver& /*observer*/) {}
  // The first source, or the next after `failure`. An error ends the ingest (after corruption: DATA_LOSS).
  virtual absl::StatusOr<std::unique_ptr<ChunkSource>> Next(const RequestContext& context,
                                                            const SourceFailure* failure) = 0;
  // The sources that could not be opened on the way to those that Next gave, since this was asked last.
  virtual std::vector<SourceFailure> TakeUnopened() { return {}; }
  // The ingest ended: the source opened last, if any, is already destroyed.
  virtual void Finished(const absl::Status& status) { (void)status; }
};

}  // namespace tensorcast
