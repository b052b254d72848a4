// A client's connection to the handle socket: connected, with an agreed version, every wait bounded.
// Internal to this folder; thread-compatible.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/handles/frame_io.h"

namespace tensorcast {

class ClientChannel {
 public:
  // While it lives, a cancellation shuts the channel down.
  class EndedBy {
   public:
    EndedBy(ClientChannel& channel, const Cancellation& cancellation)
        : registration_(cancellation.OnCancel([&channel] { channel.Shutdown(); })) {}

   private:
    const Cancellation::Registration registration_;
  };

  // UNAVAILABLE when no daemon listens, PERMISSION_DENIED when this user may not, FAILED_PRECONDITION when
  // the daemon speaks no version that this build does. The cancellation ends the wait for its answer.
  // `groups`: where not null, the server must be of this process's user, of root, or in one of these groups;
  // nothing is sent to another server, which is PERMISSION_DENIED.
  static absl::StatusOr<std::unique_ptr<ClientChannel>> Connect(const std::string& path, SteadyTime deadline,
                                                                const Cancellation& cancellation = {},
                                                                const std::vector<gid_t>* groups = nullptr);

  // Sends a frame with its descriptors, which stay the caller's.
  absl::Status Send(const Frame& frame, std::vector<int> fds, SteadyTime deadline);
  // Sends a frame and waits for the answer. An ERROR frame is returned as its status.
  absl::StatusOr<IncomingFrame> Exchange(const Frame& frame, std::vector<int> fds, SteadyTime deadline);
  // The next frame; an ERROR frame is returned as its status.
  absl::StatusOr<IncomingFrame> Receive(SteadyTime deadline);

  // Of an ERROR that came unasked, and of what came after it; OK: there is none. Does not block. Not while
  // another thread is in Exchange or Receive.
  absl::Status TakeError();

  // On any thread: from now on Receive fails, also one that waits, and the server sees the connection end.
  void Shutdown();

  // True once the server closed the connection.
  bool closed() const;

 private:
  ClientChannel(UniqueFd socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}

  absl::Status WaitFor(short events, SteadyTime deadline);

  const UniqueFd socket_;
  const std::string path_;
  FrameReader reader_{kMaxServerFrameBytes, kMaxFrameDescriptors};
  FrameWriter writer_;
};

}  // namespace tensorcast
