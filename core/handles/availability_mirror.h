// The client's mirror of a claimed replica's availability. Its thread receives the daemon's announcements
// until no more can come. The availability ends with OK when all chunks are present. Otherwise it ends with
// the reason why no more chunks will come: the daemon's status, the end of the connection, or a violation of
// the protocol. Internal to this folder; thread-compatible.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/steady_time.h"
#include "core/handles/client_channel.h"
#include "core/handles/handles.h"
#include "core/replica/availability.h"

namespace tensorcast {

class AvailabilityMirror {
 public:
  // Asks the daemon for announcements, and waits for the first answer. `channel` has claimed `handles`; only
  // the mirror may use the channel from now on. `channel` must outlive the mirror.
  static absl::StatusOr<std::unique_ptr<AvailabilityMirror>> Follow(ClientChannel* channel,
                                                                    const ReplicaHandles& handles,
                                                                    uint64_t chunk_bytes,
                                                                    SteadyTime deadline);
  // Ends the connection, which also ends the lease.
  ~AvailabilityMirror();
  AvailabilityMirror(const AvailabilityMirror&) = delete;
  AvailabilityMirror& operator=(const AvailabilityMirror&) = delete;

  const std::shared_ptr<Availability>& availability() const { return availability_; }

 private:
  AvailabilityMirror(ClientChannel* channel, const ReplicaHandles& handles, uint64_t chunk_bytes);
  absl::Status TakeFirst(const Frame& frame);
  // Applies a frame to the availability. After an error, the caller must pass no further frame.
  absl::Status Take(const Frame& frame);
  absl::Status Take(const HaveFrame& have);
  void Run();

  ClientChannel* const channel_;
  const std::shared_ptr<Availability> availability_;
  const std::vector<uint64_t> readable_;  // ReadableChunks of the handles
  std::thread thread_;
};

}  // namespace tensorcast
