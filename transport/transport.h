// A Transport moves image bytes between hosts. It registers the host pool once and, if it reaches GPUs,
// registers GPU replicas while they move. It serves replicas to pulls that the daemon has authorised, and
// pulls ranges of a peer's replica into registered memory.
//
// The receiver requests ranges, which limits the bytes in flight. Every operation has a deadline and
// completes exactly once; a pull also has a limit of silence. The memory of an operation is not touched after
// its completion.
//
// Transports do not decide which node may pull. A pull id is a secret of 128 random bits: the source daemon
// hands it to one receiver, which it names, after it checked the grant. Thread-safe throughout; callbacks run
// on the transport's progress thread, must not block, and may enqueue further operations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"

namespace tensorcast {
class Availability;
}

namespace tensorcast::transport {

// The memory that a lane reads and writes in place. Bytes in other memory are staged through host memory.
enum class LaneMemory : uint8_t { kHost, kHostAndDevice };

// For people: "host", "host+device".
inline std::string_view LaneMemoryName(LaneMemory memory) {
  return memory == LaneMemory::kHost ? "host" : "host+device";
}

// Image bytes in registered memory, held in place while this lives.
struct ServedPiece {
  ConstHostSpan bytes;
  std::shared_ptr<void> hold;
};

// A replica as a source serves it. Thread-safe.
class ServedImage {
 public:
  virtual ~ServedImage() = default;
  virtual uint64_t image_bytes() const = 0;
  // True: all present chunks lie in registered memory, Read never blocks, and Segments returns the memory.
  virtual bool in_place() const = 0;
  // The memory of image bytes [offset, offset + bytes), in order; it does not move. REQUIRES: in_place(), and
  // these bytes are present.
  virtual std::vector<ConstHostSpan> Segments(uint64_t /*offset*/, uint64_t /*bytes*/) const { return {}; }
  // Registered memory with image bytes from `offset`: at least one, at most `bytes`. May block when not
  // in_place() (a copy from a GPU or a disk read into a staging buffer), and then is called on a serving
  // thread.
  virtual absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) = 0;
  // The image, if it lies in one piece of GPU memory that does not move; else null. A lane that reaches this
  // memory reads it there, and never calls Read.
  virtual DevicePtr device_image() const { return {}; }
  // The present chunks of an image that is served while it fills; null: all are present. Only present chunks
  // are read, and receivers hear of new chunks (Pull::availability). If it ends with an error, the image's
  // servings end, and their pulls break with that error.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// The source's statistics of one pull.
struct ServeStats {
  uint64_t bytes = 0;
  uint64_t requests = 0;
  absl::Duration asked;  // the time with at least one request not yet sent in full
  SteadyTime first_request;
  SteadyTime last_completion;
  TraceContext receiver_trace;  // as the last receiver sent it, for a span link; invalid when none did
};

// A source's side of one pull. The destructor revokes the pull: when it returns, nothing reads the image's
// memory any more, not even the peer (the endpoint is closed by force if necessary).
class Serving {
 public:
  virtual ~Serving() = default;
  // Revokes the pull now, as the destructor does: from here on stats() is final. While the pull goes on,
  // bytes that the receiver has may not be counted yet. Idempotent.
  virtual void End() = 0;
  // Opaque to all but a transport of the same name: addresses, pull id, remote keys. At most 64 KiB.
  virtual const std::string& descriptor() const = 0;
  virtual ServeStats stats() const = 0;
};

// The result of a fetch: the digest of its bytes, if the lane computed it while copying out of a network
// buffer, so that the bytes need not be read again; else nullopt.
using FetchResult = absl::StatusOr<std::optional<Digest>>;
using FetchDone = std::function<void(const FetchResult&)>;
using FetchId = uint64_t;  // of one fetch, within its pull

// A receiver's side of one pull.
class Pull {
 public:
  // Completes pending fetches with CANCELLED, and waits for that, at most for the time that a forced close
  // takes.
  virtual ~Pull() = default;

  // Fetches image bytes from `offset` on into `destination`, which must be registered memory. Calls `done`
  // exactly once. Four errors concern only this fetch: INVALID_ARGUMENT; FAILED_PRECONDITION when the source
  // does not have the whole range (yet); DEADLINE_EXCEEDED when the fetch's deadline has passed; CANCELLED by
  // CancelFetch. Any other error means that the pull is broken, and all later fetches fail at once.
  virtual FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                        FetchDone done) = 0;

  // As Fetch, into GPU memory that RegisterDevice of the transport has registered (else INVALID_ARGUMENT).
  // Such bytes come without a digest.
  virtual FetchId FetchToDevice(uint64_t /*offset*/, DevicePtr /*destination*/, uint64_t /*bytes*/,
                                SteadyTime /*deadline*/, FetchDone done) {
    const FetchDone told = std::move(done);
    told(absl::InvalidArgumentError("fetch to a GPU: this lane writes to host memory only; stage the bytes"));
    return 0;
  }

  // Cancels one fetch: it soon completes with CANCELLED. Has no effect on a completed fetch.
  virtual void CancelFetch(FetchId fetch) = 0;

  // From the next fetch on: when fetches are pending and no byte of any of them has arrived for `limit`, the
  // pull breaks with DEADLINE_EXCEEDED. A fetch may wait for earlier fetches as long as bytes of the pull
  // arrive. Bytes count when they complete a step of the lane: a piece of a message (at most 256 KiB over
  // TCP), or a remote read of a few MiB. Without this call the limit is infinite.
  virtual void SetSilenceLimit(absl::Duration limit) = 0;

  // Gives up: pending fetches complete soon with CANCELLED. Idempotent.
  virtual void Cancel() = 0;

  // The chunks that the source has announced; it may lag behind the source, but never has too many. Null: the
  // source has all chunks. Always returns the same object, which does not change after the pull is destroyed.
  // It ends OK when the source has all chunks, and with the reason when the pull breaks or is given up before
  // that.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// For lanes: the status with which a pull breaks because of `status`. A code that Fetch reserves for errors
// of only one fetch is replaced by another code, also if the source got the status from its own ingest.
inline absl::Status AsPullEnd(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return absl::InternalError(status.message());
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kCancelled:
      return absl::UnavailableError(status.message());
    default:
      return status;
  }
}

class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;  // the lane: "ucx", "ucx-rma", "loopback"

  // Registers memory that pulls write to and servings read from. To be called once for a pool, before any
  // other call.
  virtual absl::Status RegisterMemory(std::byte* base, uint64_t bytes) = 0;

  virtual LaneMemory memory() const { return LaneMemory::kHost; }
  // Whether ServeStats count the receivers' bytes; false if receivers read the source's memory by themselves.
  virtual bool counts_served() const { return true; }
  // Registers a replica's GPU memory for fetches into it; a serving registers its own. The memory must stay
  // until the returned object is destroyed, and no fetch into it may run then. The same memory may be
  // registered several times. UNIMPLEMENTED if the lane does not reach GPUs.
  virtual absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr /*base*/, uint64_t /*bytes*/) {
    return absl::UnimplementedError("register GPU memory: this lane reaches host memory only");
  }

  // Offers an image to every node with the descriptor, until the Serving is destroyed. `receiver` names the
  // node that the descriptor is meant for: a lane that demands certificates of receivers refuses all others,
  // whatever they know; one that cannot tell which node connects ignores it. Empty: every node may come.
  // FAILED_PRECONDITION when the lane needs the image in place, or whole, and it is not.
  virtual absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                         std::string_view receiver) = 0;

  // Connects to a serving. UNAVAILABLE when the peer cannot be reached, DEADLINE_EXCEEDED when it does not
  // answer, FAILED_PRECONDITION for another protocol version, NOT_FOUND when it no longer serves this pull.
  // The context's trace travels along.
  virtual absl::StatusOr<std::unique_ptr<Pull>> Connect(const RequestContext& context,
                                                        std::string_view descriptor) = 0;
};

// The transport of this lane; null when there is none.
inline Transport* FindTransport(const std::vector<Transport*>& transports, std::string_view lane) {
  for (Transport* transport : transports) {
    if (transport->name() == lane) return transport;
  }
  return nullptr;
}

}  // namespace tensorcast::transport
