// ChunkSource: the interface through which an ingest gets its bytes. To the engine, disks, peers and clients
// are ChunkSources (core/disk, core/source, daemon/sources). SourceProvider: opens the sources of an ingest.
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
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"
#include "core/replica/availability.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

struct ChunkRequest {
  uint32_t chunk = 0;
  ByteRange range;                        // in the image
  std::span<const HostSpan> destination;  // pool memory of range.bytes bytes
  bool blake3 = false;                    // true: a source that computes digests must also compute BLAKE3
  DevicePtr device = {};                  // if set, the destination, in memory given to PrepareDevice
};

// Called once with the result of a fetch, on the thread that called StartFetch or on a thread of the source.
// Must not block.
using ChunkDone = std::function<void(absl::StatusOr<std::optional<ChunkDigests>>)>;

// Implementations are thread-safe: up to max_concurrency() fetches run at the same time.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  virtual const SourceInfo& info() const = 0;
  // The number of concurrent fetches that keep the source busy; more do not increase its rate.
  virtual int max_concurrency() const = 0;
  // The chunks that the source has; null if it has all chunks. Always returns the same object.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }

  // Blocks until the range's bytes are in `destination`, or the fetch has failed. After it returns, nothing
  // writes to `destination`. Returns the digests of the range if the source computed them while copying, else
  // nullopt. If BLAKE3 was requested and is missing, the caller computes it.
  //
  // The source retries transient errors itself. After an error the source must not be used again. It may be
  // used again only if the context has ended, or after FAILED_PRECONDITION if availability() is not null:
  // then only this range is missing.
  virtual absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                            const ChunkRequest& request) = 0;

  // Begins a fetch, and calls `done` with its result, possibly before it returns. The memory that `request`
  // points to must live until `done` is called. The source must live until `done` is called and this call has
  // returned. A source that needs no thread of the caller returns at once. The default implementation fetches
  // on the caller's thread.
  virtual void StartFetch(const RequestContext& context, const ChunkRequest& request, const ChunkDone& done) {
    done(Fetch(context, request));
  }
  // True if StartFetch blocks until the fetch has ended.
  virtual bool blocks() const { return true; }
  // The range's bytes, if the source has them in page-locked memory of this node; else empty. The memory
  // lives as long as the source; the caller may read the memory without a fetch.
  virtual std::vector<ConstHostSpan> HostSpans(ByteRange /*range*/) const { return {}; }
  // Whether HostSpans returns the memory of every chunk that the source has. If true, a range without spans
  // is missing, and Fetch of this range returns an error at once.
  virtual bool lends_host_memory() const { return false; }
  // The source's image, if it is in GPU memory that this process can access; else null. The memory lives as
  // long as the source; the caller may copy chunks from the memory without a fetch.
  virtual DevicePtr device_image() const { return {}; }
  // Prepares GPU memory of this process as the image's destination for the source's lifetime. After OK,
  // requests may name this memory (ChunkRequest::device); their results have no digests. UNIMPLEMENTED if
  // the source writes only to host memory. Any other error means that the source cannot write to this memory
  // now; the source has logged the error. REQUIRES: no fetch is in flight.
  virtual absl::Status PrepareDevice(DevicePtr /*image*/, uint64_t /*bytes*/) {
    return absl::UnimplementedError(
        "fetch to a GPU: this source writes to host memory only; stage the bytes");
  }
  // Whether the source computes its chunks. The ingest must compare every computed chunk with the manifest,
  // even if DeviceVerification allows unverified chunks on a GPU.
  virtual bool computes_chunks() const { return false; }
  // Called when a chunk of the source does not match the manifest, before the source is given up. Must not
  // block.
  virtual void NoteWrong(uint32_t /*chunk*/) {}
  // Whether the source's chunks are already in the memory of the replica that is being made. A fetch reads
  // such chunks only for verification.
  virtual bool in_place() const { return false; }
};

// For messages: "fetch chunk 3 from node-b".
std::string DescribeFetch(const SourceInfo& info, const ChunkRequest& request);
// INVALID_ARGUMENT unless the destination is exactly as long as the range.
absl::Status CheckDestination(const SourceInfo& info, const ChunkRequest& request);
// OUT_OF_RANGE unless the range lies in the image.
absl::Status CheckRange(const SourceInfo& info, const ChunkRequest& request, uint64_t image_bytes);

// A source that was given up, and why.
struct SourceFailure {
  SourceInfo source;
  absl::Status status;
  bool corrupt = false;    // the source delivered bytes that do not match the manifest
  uint32_t chunks = 0;     // requested from the source and not delivered
  uint32_t delivered = 0;  // delivered and placed
};

// Called with a text that tells people what a provider waits for. An empty text means that the provider no
// longer waits.
using WaitObserver = std::function<void(const std::string& what)>;

// The sources that a provider adds to those in use.
struct MoreSources {
  std::vector<std::unique_ptr<ChunkSource>> sources;
  absl::Duration look_again = absl::InfiniteDuration();  // the time after which Next may find more
};

// Opens the sources of one ingest, which uses several sources at the same time. Thread-compatible; calls may
// block. The caller owns the sources. It destroys a source before it reports the source in `ended`.
class SourceProvider {
 public:
  virtual ~SourceProvider() = default;
  // Called before the first Next. Next calls the observer when it begins to wait for a source, and when the
  // wait has ended. The ingest lets other ingests run during the wait.
  virtual void ObserveWaits(const WaitObserver& /*observer*/) {}
  // Called before the first Next, with the id of the replica, if the ingest makes a whole replica that other
  // nodes can read while it fills.
  virtual void NoteFills(const std::string& /*replica_id*/) {}
  // Called on the thread of Next with the number of bytes that came over the network so far.
  virtual void NoteReceived(uint64_t /*bytes*/) {}
  // Opens more sources. `ended` are the sources that were given up since the last call. If `needed` is true,
  // no source is in use: Next blocks until it has a source, and an error ends the ingest (DATA_LOSS after
  // corruption). If `needed` is false, Next soon returns the sources that it finds, possibly none, and an
  // error only means that Next finds no more sources now.
  virtual absl::StatusOr<MoreSources> Next(const RequestContext& context,
                                           std::span<const SourceFailure> ended, bool needed) = 0;
  // Called on the thread of Next when the sources in use have delivered nothing for a long time. The ingest
  // keeps these sources. Returns whether the caller should call Next with `needed` false to find another
  // source.
  virtual bool NoteStall() { return false; }
  // The sources that Next could not open, since the last call of TakeUnopened.
  virtual std::vector<SourceFailure> TakeUnopened() { return {}; }
  // Called when the ingest has ended with this status. `ended` are the sources that were given up since the
  // last call of Next; all other sources were in use until the end.
  virtual void Finished(const absl::Status& /*status*/, std::span<const SourceFailure> /*ended*/) {}
};

}  // namespace tensorcast
