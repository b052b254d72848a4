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
  bool blake3 = false;                    // what digests on the way must compute BLAKE3 as well
  DevicePtr device = {};                  // where to, instead, in memory that PrepareDevice was given
};

// Told once how a fetch ended, perhaps on a thread of the source, on which it must not block.
using ChunkDone = std::function<void(absl::StatusOr<std::optional<ChunkDigests>>)>;

// Thread-safe: up to max_concurrency() fetches at a time.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  virtual const SourceInfo& info() const = 0;
  // How many fetches keep it busy; more at once gain nothing.
  virtual int max_concurrency() const = 0;
  // Which chunks it has, while they become more; null: all of them. The same object for as long as the source
  // lives.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }

  // Blocks until the range's bytes are in `destination`, or they never will be: after it returns nothing
  // writes there any more. Returns the chunk's digests when the source computed them on the way (a fused
  // copy), nullopt when not; where BLAKE3 is asked for and not among them, the caller computes it. A
  // transient error is the source's to retry; an error from here means that the source is not usable any
  // more, unless the context itself has ended, or it is FAILED_PRECONDITION and availability() is not
  // null: that one range is not there.
  virtual absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                            const ChunkRequest& request) = 0;

  // Begins the same, and calls `done` with what Fetch would return; perhaps before this returns. What
  // `request` points to is there until then, and so is the source until this has returned as well. A source
  // that needs no thread of the caller's while it fetches begins it and returns; the others do it all here.
  virtual void StartFetch(const RequestContext& context, const ChunkRequest& request, const ChunkDone& done) {
    done(Fetch(context, request));
  }
  // Whether StartFetch returns only when the fetch has ended.
  virtual bool blocks() const { return true; }
  // Where a range's bytes are, if that is page-locked memory of this node and they are there: they stay as
  // long as the source, and a caller that only reads them needs no fetch. Else nothing.
  virtual std::vector<ConstHostSpan> HostSpans(ByteRange /*range*/) const { return {}; }
  // Where its image is, if that is memory of a GPU which this process reaches: chunks that it has stay there
  // as long as the source, and a caller that copies them to a GPU needs no fetch. Else none.
  virtual DevicePtr device_image() const { return {}; }
  // Readies memory of a GPU of this process, where the image is to come, for as long as the source lives: OK,
  // and its fetches may go there, by StartFetch and with no digests. UNIMPLEMENTED: it writes to host memory
  // alone. Any other error: it cannot here and now, and has said so. Not while a fetch is under way.
  virtual absl::Status PrepareDevice(DevicePtr /*image*/, uint64_t /*bytes*/) {
    return absl::UnimplementedError(
        "fetch to a GPU: this source writes to host memory only; stage the bytes");
  }
  // Whether what it has is in the very memory of the replica that is being made: a fetch reads it from there,
  // and when it has been verified it is in its place.
  virtual bool in_place() const { return false; }
};

// What every source says and checks of a request. "fetch chunk 3 from node-b", for messages.
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
  uint32_t chunks = 0;     // that it had begun and did not deliver
  uint32_t delivered = 0;  // chunks of it that are in their place
};

// Told what a provider waits for, for people; an empty text: it goes on.
using WaitObserver = std::function<void(const std::string& what)>;

// What a provider adds to the sources in use.
struct MoreSources {
  std::vector<std::unique_ptr<ChunkSource>> sources;
  absl::Duration look_again = absl::InfiniteDuration();  // from now: when asking for more is worth while
};

// Opens the sources of one ingest, which uses several at once. Used by one thread at a time; its calls may
// block. The caller holds a source until it was given up or the ingest ended, and has destroyed it before
// it tells the provider of either.
class SourceProvider {
 public:
  virtual ~SourceProvider() = default;
  // Before the first call of Next: what to tell when one waits for a source that is not there yet. Until it
  // goes on, others have the ingest's turn.
  virtual void ObserveWaits(const WaitObserver& /*observer*/) {}
  // On the thread of Next: so many bytes of the image came over the network so far.
  virtual void NoteReceived(uint64_t /*bytes*/) {}
  // `ended`: the sources that were given up since the last call. `needed`: none is left in use; then it
  // blocks until there is one, and an error ends the ingest (after corruption: DATA_LOSS). Otherwise it gives
  // what there is (perhaps none) soon, and an error only means that there is no more for now.
  virtual absl::StatusOr<MoreSources> Next(const RequestContext& context,
                                           std::span<const SourceFailure> ended, bool needed) = 0;
  // On the thread of Next: those in use have given nothing for long. They may be alive, so it is not a reason
  // to give any of them up, but another source is worth more than usual. Whether Next is to be called, not
  // needed, to look for one.
  virtual bool NoteStall() { return false; }
  // The sources that could not be opened on the way to those that Next gave, since this was asked last.
  virtual std::vector<SourceFailure> TakeUnopened() { return {}; }
  // The ingest ended with this status. `ended`: the sources that were given up since the last call of Next.
  // Those that nothing was said of were in use to the end.
  virtual void Finished(const absl::Status& /*status*/, std::span<const SourceFailure> /*ended*/) {}
};

}  // namespace tensorcast
