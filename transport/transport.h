// A Transport moves image bytes between hosts. It registers the host pool once. If it reaches GPUs, it also
// registers GPU replicas while they are transferred. It serves replicas to pulls that the daemon has
// authorised, and pulls ranges of a peer's replica into registered memory.
//
// The receiver requests ranges and so bounds the bytes in flight. Every operation has a deadline and
// completes exactly once; a pull also has a silence limit. After an operation has completed, its memory is no
// longer accessed.
//
// Transports do not decide which node may pull. A pull id is a secret of 128 random bits. The source daemon
// checks the grant of a receiver and then hands the id to that receiver only.
//
// Thread-safe. Callbacks run on a progress thread of the transport. They must not block, and may start
// further operations.
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

// Image bytes in registered memory. They stay there as long as `hold` or a copy of it exists.
struct ServedPiece {
  ConstHostSpan bytes;
  std::shared_ptr<void> hold;
};

// A replica as a source serves it. Thread-safe.
class ServedImage {
 public:
  virtual ~ServedImage() = default;
  virtual uint64_t image_bytes() const = 0;
  // True if all present chunks lie in registered memory. Read then never blocks, and Segments returns the
  // memory.
  virtual bool in_place() const = 0;
  // The memory of image bytes [offset, offset + bytes), in order. The bytes do not move while this object
  // exists. REQUIRES: in_place(), and these bytes are present.
  virtual std::vector<ConstHostSpan> Segments(uint64_t /*offset*/, uint64_t /*bytes*/) const { return {}; }
  // Returns registered memory with image bytes from `offset` on: at least one byte, at most `bytes`. If not
  // in_place(), it copies from a GPU or a disk to a staging buffer: it may block, so lanes call it on a
  // serving thread.
  virtual absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) = 0;
  // The image's address, if the image lies in one block of GPU memory that does not move; else null. A lane
  // that reaches this memory reads the image there and never calls Read.
  virtual DevicePtr device_image() const { return {}; }
  // The present chunks of an image that is served while it fills; null: all chunks are present. Lanes read
  // only present chunks, and announce new chunks to the receivers (Pull::availability). If the availability
  // ends with an error, the image's servings end, and their pulls break with that error.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// The source's statistics of one pull.
struct ServeStats {
  uint64_t bytes = 0;
  uint64_t requests = 0;
  absl::Duration asked;  // the time in which at least one request was not yet sent in full
  SteadyTime first_request;
  SteadyTime last_completion;
  TraceContext receiver_trace;  // the last one that a receiver sent, for a span link; invalid: none was sent
};

// A source's side of one pull. The destructor revokes the pull: when the destructor returns, neither this
// process nor the peer reads the image's memory. The destructor closes connections by force if necessary.
class Serving {
 public:
  virtual ~Serving() = default;
  // Revokes the pull, as the destructor does. Afterwards stats() is final; before End, stats() may lack bytes
  // that the receiver already has. Idempotent.
  virtual void End() = 0;
  // The addresses, pull id and remote keys, encoded; only a transport of the same name reads it. At most 64
  // KiB.
  virtual const std::string& descriptor() const = 0;
  virtual ServeStats stats() const = 0;
};

// The result of a fetch: the digest of its bytes if the lane computed it while it received them, else
// nullopt. With the digest, the caller need not read the bytes again.
using FetchResult = absl::StatusOr<std::optional<Digest>>;
using FetchDone = std::function<void(const FetchResult&)>;
using FetchId = uint64_t;  // of one fetch, within its pull

// A receiver's side of one pull.
class Pull {
 public:
  // Completes pending fetches with CANCELLED and waits until all have completed. If necessary the destructor
  // closes the connections by force.
  virtual ~Pull() = default;

  // Fetches image bytes from `offset` on into `destination`, which must be registered memory. Calls `done`
  // exactly once. Four errors concern only this fetch: INVALID_ARGUMENT; FAILED_PRECONDITION, if the source
  // does not have the whole range yet; DEADLINE_EXCEEDED, if the fetch's deadline has passed; CANCELLED,
  // after CancelFetch. Any other error means that the pull is broken: later fetches fail at once. The silence
  // limit breaks the pull with DEADLINE_EXCEEDED. Cancel breaks the pull with CANCELLED.
  virtual FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                        FetchDone done) = 0;

  // As Fetch, into GPU memory that the transport's RegisterDevice has registered (else INVALID_ARGUMENT). The
  // result has no digest.
  virtual FetchId FetchToDevice(uint64_t /*offset*/, DevicePtr /*destination*/, uint64_t /*bytes*/,
                                SteadyTime /*deadline*/, FetchDone done) {
    const FetchDone told = std::move(done);
    told(absl::InvalidArgumentError("fetch to a GPU: this lane writes to host memory only; stage the bytes"));
    return 0;
  }

  // Cancels one fetch: it soon completes with CANCELLED. Has no effect on a completed fetch.
  virtual void CancelFetch(FetchId fetch) = 0;

  // From the next fetch on: if fetches are pending and no byte of any of them arrives for `limit`, the pull
  // breaks with DEADLINE_EXCEEDED. One fetch may wait longer, as long as bytes of other fetches arrive. Bytes
  // count as arrived when a step of the lane is complete: a step is at most 256 KiB over TCP, a message's
  // piece or a remote read of a few MiB over UCX. Without this call the limit is infinite.
  virtual void SetSilenceLimit(absl::Duration limit) = 0;

  // Gives the pull up: pending fetches soon complete with CANCELLED, and later ones fail. Idempotent.
  virtual void Cancel() = 0;

  // The chunks that the source has announced. It may lack chunks that the source has, but never has a chunk
  // that the source lacks. Null: the source has all chunks. Always returns the same object, which does not
  // change after the pull is destroyed. It ends OK when the source has all chunks. If the pull breaks or is
  // given up before that, the availability ends with the reason.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// For lanes: the status with which a pull breaks after the source or the connection failed with `status`. The
// codes INVALID_ARGUMENT, FAILED_PRECONDITION and CANCELLED are replaced, because in Fetch they mean an error
// of only one fetch.
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

  virtual std::string_view name() const = 0;  // the lane: "tcp", "ucx", "ucx-rma", "loopback"

  // Registers host memory that pulls write to and servings read from. It must outlive the transport. To be
  // called once for a pool, before any other call.
  virtual absl::Status RegisterMemory(std::byte* base, uint64_t bytes) = 0;

  virtual LaneMemory memory() const { return LaneMemory::kHost; }
  // Whether ServeStats count the bytes that receivers fetch. False if receivers read the source's memory
  // without the source.
  virtual bool counts_served() const { return true; }
  // Registers a replica's GPU memory for fetches into it. (Serve itself registers the memory of its image.)
  // The memory must exist until the returned object is destroyed, and no fetch into it may be pending then.
  // The same memory may be registered several times. UNIMPLEMENTED if the lane does not reach GPUs.
  virtual absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr /*base*/, uint64_t /*bytes*/) {
    return absl::UnimplementedError("register GPU memory: this lane reaches host memory only");
  }

  // Offers an image to every node that has the descriptor, until the Serving is destroyed. `receiver`: the
  // node that the descriptor is meant for; empty: any node. A lane with certificates refuses all other nodes;
  // a lane without certificates ignores `receiver`. FAILED_PRECONDITION if the lane needs an image in place
  // or a complete image, and `image` is not.
  virtual absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                         std::string_view receiver) = 0;

  // Connects to a serving, and blocks until the source has answered. UNAVAILABLE: the source cannot be
  // reached. DEADLINE_EXCEEDED: the source does not answer in time. FAILED_PRECONDITION: the source's
  // protocol has another version. NOT_FOUND: the source no longer serves this pull. UNAUTHENTICATED or
  // PERMISSION_DENIED: one end refuses the other's certificate or name. Sends the context's trace to the
  // source.
  virtual absl::StatusOr<std::unique_ptr<Pull>> Connect(const RequestContext& context,
                                                        std::string_view descriptor) = 0;
};

// The transport of this lane; null if there is none.
inline Transport* FindTransport(const std::vector<Transport*>& transports, std::string_view lane) {
  for (Transport* transport : transports) {
    if (transport->name() == lane) return transport;
  }
  return nullptr;
}

}  // namespace tensorcast::transport
