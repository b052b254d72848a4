// The client's mirror of a claimed replica's availability. A thread of the mirror receives the daemon's
// announcements. The availability ends with OK when all chunks are present. If no more chunks will come, it
// ends with the daemon's status, or with an error of the connection or the protocol. Internal to this folder;
// thread-compatible.
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
  // Asks the daemon for announcements, and blocks until the first announcement. REQUIRES: `channel` has
  // claimed `handles`, outlives the mirror, and is used only by the mirror from now on.
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
  // Applies a frame to the availability. An error is final.
  absl::Status Take(const Frame& frame);
  absl::Status Take(const HaveFrame& have);
  void Run();

  ClientChannel* const channel_;
  const std::shared_ptr<Availability> availability_;
  const std::vector<uint64_t> readable_;  // ReadableChunks of the handles
  std::thread thread_;
};

}  // namespace tensorcast
