// A client's connection to the handle socket. Internal to this folder; thread-compatible.
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
  // Shuts `channel` down if `cancellation` is cancelled while this object exists. `channel` must outlive this
  // object.
  class EndedBy {
   public:
    EndedBy(ClientChannel& channel, const Cancellation& cancellation)
        : registration_(cancellation.OnCancel([&channel] { channel.Shutdown(); })) {}

   private:
    const Cancellation::Registration registration_;
  };

  // Connects to the daemon that listens on `path`. If `groups` is not null, the server must run as this
  // process's user, as root, or in one of these groups (CheckPeer). Nothing is sent to any other server.
  // Errors:
  // - UNAVAILABLE: no daemon listens on `path`, or the cancellation ended the wait for the answer;
  // - PERMISSION_DENIED: this user may not connect, or the server's user is not allowed;
  // - FAILED_PRECONDITION: the daemon has another protocol version.
  static absl::StatusOr<std::unique_ptr<ClientChannel>> Connect(const std::string& path, SteadyTime deadline,
                                                                const Cancellation& cancellation = {},
                                                                const std::vector<gid_t>* groups = nullptr);

  // Sends a frame with its descriptors; the caller still owns the descriptors.
  absl::Status Send(const Frame& frame, std::vector<int> fds, SteadyTime deadline);
  // Sends a frame and waits for the answer. An ERROR frame is returned as its status.
  absl::StatusOr<IncomingFrame> Exchange(const Frame& frame, std::vector<int> fds, SteadyTime deadline);
  // The next frame; an ERROR frame is returned as its status.
  absl::StatusOr<IncomingFrame> Receive(SteadyTime deadline);

  // The status of an ERROR frame that the server sent without a request; OK if no ERROR frame has arrived.
  // Drops other frames. Does not block. REQUIRES: no other thread is in Exchange or Receive.
  absl::Status TakeError();

  // Ends the connection. Running and later calls of Receive fail. Thread-safe.
  void Shutdown();

  // Whether the server has closed the connection.
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
