// Moving image bytes between hosts. A transport registers the host pool once (and replicas on GPUs while they
// move, where it reaches those), serves replicas to pulls that
// the daemon has authorised, and pulls ranges of a peer's replica into registered memory.
//
// The receiver drives: it asks for ranges, and that bounds what is in flight. Every operation has a deadline,
// a pull a limit of silence, and each completes exactly once; memory that was given to an operation is
// touched no more after its completion.
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

// Which memory a lane reads and writes where it is. What a lane does not reach is staged: it goes through
// host memory on its way.
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
  // True: what there is of the image lies in registered memory, Read never blocks, and Segments tells where.
  virtual bool in_place() const = 0;
  // The memory behind image bytes [offset, offset + bytes), in order. It stays where it is; that of chunks
  // which come later is told when they are there. REQUIRES: in_place(), and those bytes are there.
  virtual std::vector<ConstHostSpan> Segments(uint64_t /*offset*/, uint64_t /*bytes*/) const { return {}; }
  // Registered memory with image bytes from `offset`: at least one, at most `bytes`. May block when not
  // in_place() (a copy from a GPU or a disk read into a staging buffer), and then is called on a serving
  // thread.
  virtual absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) = 0;
  // Where the image is, if that is memory of a GPU, all in one piece, which stays: a lane that reaches it
  // reads it there, and never calls Read. Else none.
  virtual DevicePtr device_image() const { return {}; }
  // Which chunks there are, of an image that is served while it fills; null: everything is there. Only what
  // it has is read, in place or by Read, and receivers are told as it grows (Pull::availability). When it
  // ends with an error the servings of the image end, and their pulls break with that error.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// What a source did for one pull.
struct ServeStats {
  uint64_t bytes = 0;
  uint64_t requests = 0;
  absl::Duration asked;  // the time with at least one request not yet sent in full
  SteadyTime first_request;
  SteadyTime last_completion;
  TraceContext receiver_trace;  // as the last receiver sent it, for a span link; invalid when none did
};

// A source's side of one pull. Destroying it revokes the pull: when the destructor returns, the image's
// memory is read no more, not even by the peer (the endpoint is closed by force if need be).
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

// What a fetch came to: the digest of its bytes when the lane had them in its hands anyway (a copy out of a
// network buffer), in which case they need not be read again; nullopt when not.
using FetchResult = absl::StatusOr<std::optional<Digest>>;
using FetchDone = std::function<void(const FetchResult&)>;
using FetchId = uint64_t;  // of one fetch, within its pull

// A receiver's side of one pull.
class Pull {
 public:
  // Pending fetches complete first (with CANCELLED where they have not); the destructor waits for that, at
  // most for the time a forced close takes.
  virtual ~Pull() = default;

  // Asks for image bytes [offset, offset + bytes) into `destination`, which must be registered memory of
  // `bytes` in all. `done` is called exactly once. Four ends concern the fetch alone: INVALID_ARGUMENT,
  // FAILED_PRECONDITION when the source does not have all of that range (yet), DEADLINE_EXCEEDED when its own
  // deadline has passed, and CANCELLED by CancelFetch. Any other error means that the pull is broken and all
  // later fetches fail at once.
  virtual FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                        FetchDone done) = 0;

  // The same into memory of a GPU, which lies in what the transport's RegisterDevice was given; such bytes
  // come without a digest. INVALID_ARGUMENT where they do not lie there.
  virtual FetchId FetchToDevice(uint64_t /*offset*/, DevicePtr /*destination*/, uint64_t /*bytes*/,
                                SteadyTime /*deadline*/, FetchDone done) {
    const FetchDone told = std::move(done);
    told(absl::InvalidArgumentError("fetch to a GPU: this lane writes to host memory only; stage the bytes"));
    return 0;
  }

  // Takes one fetch back: it completes soon, with CANCELLED unless it did already. One that is over is left
  // alone.
  virtual void CancelFetch(FetchId fetch) = 0;

  // From the next fetch on: when fetches are pending and no byte of any of them has arrived for so long, the
  // pull breaks with DEADLINE_EXCEEDED. A fetch may take any time as long as the pull moves, since those
  // before it go first. Bytes are seen as they complete a step of the lane: a message's piece (at most 256
  // KiB over TCP), a remote read of a few MiB. Infinite until it is called.
  virtual void SetSilenceLimit(absl::Duration limit) = 0;

  // Gives up: pending fetches complete soon with CANCELLED. Idempotent.
  virtual void Cancel() = 0;

  // What the source has said that it has: it lags behind, and never says too much. Null: everything is there.
  // The same object for as long as the pull lives, and a caller that keeps it longer sees no more changes. It
  // ends OK once everything is there, and with the reason when the pull is broken or given up before.
  virtual std::shared_ptr<const Availability> availability() const { return nullptr; }
};

// For lanes: what a pull breaks with because of `status`. An end that Fetch keeps for one fetch alone is told
// as another, also where the source had it from its own ingest.
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

  // Registers memory that pulls write to and servings read from. Once a pool, before anything else.
  virtual absl::Status RegisterMemory(std::byte* base, uint64_t bytes) = 0;

  virtual LaneMemory memory() const { return LaneMemory::kHost; }
  // Whether a source's ServeStats count what its receivers have; false where they read its memory themselves.
  virtual bool counts_served() const { return true; }
  // Registers memory of a GPU, a replica's, for fetches into it; a serving registers its own. It stays so,
  // and stays there, until what is given is gone, at which no fetch into it is under way. The same memory may
  // be registered several times. UNIMPLEMENTED where the lane does not reach GPUs.
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
