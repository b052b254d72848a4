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

// Returns the text "host" or "host+device", for people.
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
  // True if all present chunks lie in registered memory. If true, Read never blocks, and Segments returns
  // the memory.
  virtual bool in_place() const = 0;
  // The memory of image bytes [offset, offset + bytes), in order. The bytes do not move while this object
  // exists. REQUIRES: in_place(), and these bytes are present.
  virtual std::vector<ConstHostSpan> Segments(uint64_t /*offset*/, uint64_t /*bytes*/) const { return {}; }
  // Returns image bytes from `offset` on, at least one and at most `bytes`, in registered memory. If
  // in_place() is false, Read copies the bytes from a GPU or a disk and may block; lanes then call Read on
  // a serving thread.
  virtual absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) = 0;
  // The address of the image if the image is one block of GPU memory, else null. The address does not change
  // while this object exists. A lane that reaches this memory reads it directly and never calls Read.
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
  TraceContext receiver_trace;  // the receiver's last trace, for a span link; invalid if none was sent
};

// A source's side of one pull. The destructor revokes the pull, and closes connections by force if necessary.
// After the destructor neither this process nor the receiver reads the image's memory.
class Serving {
 public:
  virtual ~Serving() = default;
  // Revokes the pull, as the destructor does. Idempotent. After End, the result of stats() is final. Before
  // End, the result may lack bytes that the receiver already has.
  virtual void End() = 0;
  // The encoded addresses, pull id and remote keys. A receiver passes the descriptor to Transport::Connect of
  // the same lane. At most 64 KiB.
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
  // Any other error means a broken pull: all fetches complete with that error, and later ones fail at once.
  // Silence breaks a pull with DEADLINE_EXCEEDED (SetSilenceLimit); Cancel breaks a pull with CANCELLED.
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
  // `limit`. Applies from the next fetch on. Without this call the limit is infinite. A lane notices arriving
  // bytes in steps of up to 256 KiB (TCP) or a few MiB (UCX).
  virtual void SetSilenceLimit(absl::Duration limit) = 0;

  // Breaks the pull: pending fetches soon complete with CANCELLED, and later fetches fail. Idempotent.
  virtual void Cancel() = 0;

  // The chunks that the source has announced. Null: the source has all chunks. Always returns the same
  // object, which does not change after the pull is destroyed. The availability ends OK when the source has
  // all chunks. If the pull breaks earlier, the availability ends with the pull's error.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// Returns the status with which a lane breaks a pull after the source or connection failed with `status`.
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
  // Registers GPU memory for FetchToDevice. The memory must outlive the returned object. All fetches into the
  // memory must complete before that object is destroyed. The same memory may be registered several times.
  // UNIMPLEMENTED if the lane does not reach GPUs.
  virtual absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr /*base*/, uint64_t /*bytes*/) {
    return absl::UnimplementedError("register GPU memory: this lane reaches host memory only");
  }

  // Serves an image to nodes that have the descriptor, until the Serving is destroyed. `receiver`: the only
  // node that may pull; empty: any node. Lanes without certificates ignore `receiver`. FAILED_PRECONDITION:
  // this transport only receives, or requires a complete image in place. INVALID_ARGUMENT: a wrong size.
  virtual absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                         std::string_view receiver) = 0;

  // Connects to a serving, and sends the context's trace. Blocks until the source has answered. UNAVAILABLE:
  // the source cannot be reached. DEADLINE_EXCEEDED: the source does not answer in time. FAILED_PRECONDITION:
  // the versions differ, or only one node has a certificate. NOT_FOUND: the source has ended this pull.
  // INVALID_ARGUMENT: the descriptor is malformed. UNAUTHENTICATED or PERMISSION_DENIED: the source or the
  // receiver refuses the other node's certificate or name.
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
