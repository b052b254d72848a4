// ChunkSource: the interface by which an ingest gets its bytes. Disks, peers and clients are ChunkSources
// (core/disk, core/source, daemon/sources); the engine knows nothing else of them. Tests have their own.
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
  ByteRange range;                        // of the image
  std::span<const HostSpan> destination;  // pool memory, together range.bytes long
  bool blake3 = false;                    // a source that digests must compute BLAKE3, too
  DevicePtr device = {};                  // instead of `destination`: memory that PrepareDevice was given
};

// Called once with the result of a fetch, possibly on a thread of the source. Must not block.
using ChunkDone = std::function<void(absl::StatusOr<std::optional<ChunkDigests>>)>;

// Thread-safe: up to max_concurrency() fetches run at the same time.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  virtual const SourceInfo& info() const = 0;
  // How many fetches keep it busy; more at once gain nothing.
  virtual int max_concurrency() const = 0;
  // The chunks that the source has, if it does not have all; null: it has all chunks. Always returns the same
  // object.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }

  // Blocks until the range's bytes are in `destination`, or the fetch has failed; after it returns, nothing
  // writes there. Returns the chunk's digests if the source computed them while copying, else nullopt. If
  // BLAKE3 was requested and is missing, the caller computes it. The source retries transient errors itself.
  // An error means that the source is not usable any more, with two exceptions: the context has ended; or
  // availability() is not null and the error is FAILED_PRECONDITION, which means that only this range is
  // missing.
  virtual absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                            const ChunkRequest& request) = 0;

  // Begins a fetch, and calls `done` with the result of Fetch, possibly before it returns. The memory that
  // `request` points to must live until `done` is called, and the source until this call has returned, too. A
  // source that needs no thread of the caller begins the fetch and returns; other sources fetch here.
  virtual void StartFetch(const RequestContext& context, const ChunkRequest& request, const ChunkDone& done) {
    done(Fetch(context, request));
  }
  // Whether StartFetch returns only when the fetch has ended.
  virtual bool blocks() const { return true; }
  // The range's bytes, if the source has them in page-locked memory of this node; else empty. They stay as
  // long as the source lives, so a caller that only reads them needs no fetch.
  virtual std::vector<ConstHostSpan> HostSpans(ByteRange /*range*/) const { return {}; }
  // Whether HostSpans gives the memory of every chunk that the source has. If so, a range for which it gives
  // none is missing, and Fetch refuses it at once.
  virtual bool lends_host_memory() const { return false; }
  // The source's image, if it lies in memory of a GPU that this process reaches; else null. Its chunks stay
  // as long as the source lives, so a caller that copies them to a GPU needs no fetch.
  virtual DevicePtr device_image() const { return {}; }
  // Prepares GPU memory of this process as the image's destination, for as long as the source lives. After
  // OK, StartFetch may fetch to this memory, without digests. UNIMPLEMENTED: the source writes only to host
  // memory. Any other error, which the source has logged: it cannot write there now. REQUIRES: no fetch is in
  // flight.
  virtual absl::Status PrepareDevice(DevicePtr /*image*/, uint64_t /*bytes*/) {
    return absl::UnimplementedError(
        "fetch to a GPU: this source writes to host memory only; stage the bytes");
  }
  // Whether the source's chunks already lie in the memory of the replica that is being made. A fetch then
  // reads them there, and a verified chunk is already in its place.
  virtual bool in_place() const { return false; }
};

// Helpers for all sources. DescribeFetch gives "fetch chunk 3 from node-b", for messages.
std::string DescribeFetch(const SourceInfo& info, const ChunkRequest& request);
// INVALID_ARGUMENT unless the destination is exactly as long as the range.
absl::Status CheckDestination(const SourceInfo& info, const ChunkRequest& request);
// OUT_OF_RANGE unless the range lies in the image.
absl::Status CheckRange(const SourceInfo& info, const ChunkRequest& request, uint64_t image_bytes);

// A source that was given up, and why.
struct SourceFailure {
  SourceInfo source;
  absl::Status status;
  bool corrupt = false;    // it delivered bytes that do not match the manifest
  uint32_t chunks = 0;     // chunks that it had begun and did not deliver
  uint32_t delivered = 0;  // chunks from it that were placed
};

// Called with a text for people that says what a provider waits for; empty: it goes on.
using WaitObserver = std::function<void(const std::string& what)>;

// The sources that a provider adds to those in use.
struct MoreSources {
  std::vector<std::unique_ptr<ChunkSource>> sources;
  absl::Duration look_again = absl::InfiniteDuration();  // time from now until asking for more is worthwhile
};

// Opens the sources of one ingest, which uses several at the same time. Used by one thread at a time; its
// calls may block. The caller keeps a source until it gives the source up or the ingest ends. It destroys the
// source before it tells the provider.
class SourceProvider {
 public:
  virtual ~SourceProvider() = default;
  // Called before the first Next. The observer hears when Next waits for a source; meanwhile the ingest gives
  // its turn to other ingests.
  virtual void ObserveWaits(const WaitObserver& /*observer*/) {}
  // Called before the first Next with the id of the replica that the ingest fills whole. Others read its chunks
  // from now on. Not called where they cannot.
  virtual void NoteFills(const std::string& /*replica_id*/) {}
  // Called on the thread of Next with the bytes of the image that came over the network so far.
  virtual void NoteReceived(uint64_t /*bytes*/) {}
  // `ended`: the sources that were given up since the last call. If `needed`, no source is left in use: Next
  // blocks until there is a source, and an error ends the ingest (after corruption: DATA_LOSS). Otherwise
  // Next soon returns the sources that it finds, possibly none, and an error only means that there are no
  // more now.
  virtual absl::StatusOr<MoreSources> Next(const RequestContext& context,
                                           std::span<const SourceFailure> ended, bool needed) = 0;
  // Called on the thread of Next when the sources in use have given nothing for long. They may be alive, so
  // none is given up, but another source would help. Returns whether the caller should call Next with
  // `needed` false.
  virtual bool NoteStall() { return false; }
  // The sources that Next could not open, since the last call of TakeUnopened.
  virtual std::vector<SourceFailure> TakeUnopened() { return {}; }
  // The ingest ended with this status. `ended`: the sources that were given up since the last call of Next.
  // All other sources were in use until the end.
  virtual void Finished(const absl::Status& /*status*/, std::span<const SourceFailure> /*ended*/) {}
};

}  // namespace tensorcast
