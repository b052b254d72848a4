// A Transport moves image bytes between hosts. It serves replicas to other nodes, and pulls byte ranges of
// other nodes' replicas into registered memory.
//
// Every operation completes exactly once. After an operation has completed, its memory is no longer accessed.
//
// A source's descriptor contains a pull id, a secret of 128 random bits. The source's daemon gives the
// descriptor only to a receiver with a grant. Transports do not check grants.
//
// Thread-safe. Callbacks run on the transport's threads. A callback must not block, and may start operations.
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

// Image bytes in registered memory. The memory stays valid while `hold` or a copy of `hold` exists.
struct ServedPiece {
  ConstHostSpan bytes;
  std::shared_ptr<void> hold;
};

// A replica that a source serves. Thread-safe.
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
  // Returns image bytes from `offset` on, in registered memory: at least one byte, at most `bytes`. If not
  // in_place(), copies the bytes from a GPU or a disk and may block; lanes then call Read on a serving
  // thread.
  virtual absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) = 0;
  // The address of an image in one block of GPU memory, fixed while this object exists; null for any other
  // image. A lane that reaches this memory reads it directly and never calls Read.
  virtual DevicePtr device_image() const { return {}; }
  // The present chunks of an image that is still filling. Null: all chunks are present. Lanes read only
  // present chunks. If the availability ends with an error, the image's servings end, and their pulls break
  // with that error.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// The source's statistics of one pull.
struct ServeStats {
  uint64_t bytes = 0;
  uint64_t requests = 0;
  absl::Duration asked;  // the time in which at least one request was not completely sent
  SteadyTime first_request;
  SteadyTime last_completion;
  TraceContext receiver_trace;  // the receiver's last trace, for a span link; invalid: the receiver sent none
};

// A source's side of one pull. The destructor revokes the pull, and closes connections by force if necessary.
// After the destructor neither this process nor the receiver reads the image's memory.
class Serving {
 public:
  virtual ~Serving() = default;
  // Revokes the pull, as the destructor does. Idempotent. After End stats() is final. Before End stats() may
  // lack bytes that the receiver already has.
  virtual void End() = 0;
  // The encoded addresses, pull id and remote keys, for Connect of a transport of the same lane. At most 64
  // KiB.
  virtual const std::string& descriptor() const = 0;
  virtual ServeStats stats() const = 0;
};

// The digest of the fetched bytes. nullopt: the lane did not compute the digest on arrival.
using FetchResult = absl::StatusOr<std::optional<Digest>>;
using FetchDone = std::function<void(const FetchResult&)>;
using FetchId = uint64_t;  // unique in its pull

// A receiver's side of one pull.
class Pull {
 public:
  // Completes pending fetches with CANCELLED, and waits for their completion. Closes connections by force if
  // necessary.
  virtual ~Pull() = default;

  // Fetches image bytes from `offset` on into `destination`. Calls `done` exactly once. These errors concern
  // only this fetch:
  //   INVALID_ARGUMENT     the range exceeds the image, or `destination` is not registered memory
  //   FAILED_PRECONDITION  the source does not have the whole range yet
  //   DEADLINE_EXCEEDED    `deadline` has passed
  //   CANCELLED            CancelFetch was called
  // Any other error means that the pull is broken: all fetches complete with it, and later fetches fail at
  // once. Silence breaks a pull with DEADLINE_EXCEEDED (SetSilenceLimit), and Cancel with CANCELLED.
  virtual FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                        FetchDone done) = 0;

  // Like Fetch, into GPU memory. INVALID_ARGUMENT if RegisterDevice has not registered the memory. The result
  // has no digest.
  virtual FetchId FetchToDevice(uint64_t /*offset*/, DevicePtr /*destination*/, uint64_t /*bytes*/,
                                SteadyTime /*deadline*/, FetchDone done) {
    const FetchDone told = std::move(done);
    told(absl::InvalidArgumentError("fetch to a GPU: this lane writes to host memory only; stage the bytes"));
    return 0;
  }

  // Cancels a fetch, which soon completes with CANCELLED. Has no effect on a completed fetch.
  virtual void CancelFetch(FetchId fetch) = 0;

  // Breaks the pull with DEADLINE_EXCEEDED if fetches are pending and no byte of any fetch arrives for
  // `limit`. Applies from the next fetch on. Without this call the limit is infinite. A lane counts bytes in
  // steps: up to 256 KiB over TCP, up to a few MiB over UCX.
  virtual void SetSilenceLimit(absl::Duration limit) = 0;

  // Breaks the pull: pending fetches soon complete with CANCELLED, and later fetches fail. Idempotent.
  virtual void Cancel() = 0;

  // The chunks that the source has announced. Null: the source has all chunks. Always returns the same
  // object, which does not change after the pull is destroyed. The availability ends OK when the source has
  // all chunks. If the pull breaks earlier, the availability ends with the pull's error.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// For lanes: the status with which a pull breaks after its source or connection failed with `status`.
// Replaces INVALID_ARGUMENT, FAILED_PRECONDITION and CANCELLED, which are errors of one fetch (Pull::Fetch).
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

  // Registers the host memory that pulls write and servings read. The memory must outlive the transport. Call
  // once for a pool, before any other function.
  virtual absl::Status RegisterMemory(std::byte* base, uint64_t bytes) = 0;

  virtual LaneMemory memory() const { return LaneMemory::kHost; }
  // False: ServeStats do not count the fetched bytes, because receivers read the source's memory directly.
  virtual bool counts_served() const { return true; }
  // Registers GPU memory for FetchToDevice. The memory must exist until the returned object is destroyed; all
  // fetches into the memory must have completed before. The same memory may be registered several times.
  // UNIMPLEMENTED if the lane does not reach GPUs.
  virtual absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr /*base*/, uint64_t /*bytes*/) {
    return absl::UnimplementedError("register GPU memory: this lane reaches host memory only");
  }

  // Serves an image to nodes that have the descriptor, until the Serving is destroyed. `receiver`: the only
  // node that may pull; empty: any node. Lanes without certificates ignore `receiver`. FAILED_PRECONDITION if
  // the lane cannot serve the image: the lane needs a complete image, or an image in place.
  virtual absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                         std::string_view receiver) = 0;

  // Connects to a serving, and blocks until the source has answered. UNAVAILABLE: the source cannot be
  // reached. DEADLINE_EXCEEDED: the source does not answer in time. FAILED_PRECONDITION: the source speaks
  // another protocol version. NOT_FOUND: the source no longer serves this pull. UNAUTHENTICATED or
  // PERMISSION_DENIED: the source or the receiver refuses the other's certificate or name. Sends the
  // context's trace to the source.
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
