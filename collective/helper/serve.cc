#include "collective/helper/serve.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "collective/helper/messages.h"

namespace tensorcast::helper {
namespace {

// For the thread of requests to end by itself, which it does unless the library hangs.
constexpr absl::Duration kFarewell = absl::Seconds(2);

void EndWithTheDaemon(int socket) {
  pollfd daemon{socket, 0, 0};  // a hang-up is told unasked
  while (poll(&daemon, 1, -1) < 0 && errno == EINTR) {
  }
  absl::SleepFor(kFarewell);
  _exit(1);
}

class Server {
 public:
  explicit Server(HelperTools tools) : tools_(std::move(tools)) {}
  ~Server() {
    communicators_.clear();
    for (const auto& [number, memory] : memories_) tools_.devices->CloseIpc(memory.base).IgnoreError();
  }

  absl::StatusOr<uint32_t> Do(const OpenRequest& request) {
    TC_ASSIGN_OR_RETURN(const DevicePtr base, tools_.devices->OpenIpc(request.memory));
    memories_[++last_] = {.base = base, .bytes = request.memory.bytes};
    return last_;
  }

  absl::StatusOr<uint32_t> Do(const JoinRequest& request) {
    std::vector<RankDevice> ranks;
    for (const JoinRequest::Rank& rank : request.ranks) {
      TC_ASSIGN_OR_RETURN(const int device, tools_.devices->FindDevice(rank.device_uuid));
      ranks.push_back({.rank = static_cast<int>(rank.rank), .device = device});
    }
    CommunicatorId id{.bytes = request.id};
    if (id.bytes.empty()) {
      TC_ASSIGN_OR_RETURN(id, tools_.library->MakeId());
    }
    TC_ASSIGN_OR_RETURN(
        communicators_[last_ + 1],
        tools_.library->Join(RequestContext(), id, static_cast<int>(request.world_size), ranks));
    return ++last_;
  }

  absl::StatusOr<uint32_t> Do(const BroadcastRequest& request) {
    const auto communicator = communicators_.find(request.communicator);
    if (communicator == communicators_.end()) return absl::InvalidArgumentError("no such communicator");
    std::vector<DevicePtr> buffers(request.memories.size());
    for (const ByteRange& range : request.ranges) {
      for (size_t i = 0; i < buffers.size(); ++i) {
        TC_ASSIGN_OR_RETURN(buffers[i], Find(request.memories[i], range));
      }
      TC_RETURN_IF_ERROR(communicator->second->Broadcast(RequestContext(), static_cast<int>(request.root),
                                                         buffers, range.bytes));
    }
    TC_RETURN_IF_ERROR(communicator->second->Await(RequestContext()));
    return 0;
  }

  absl::StatusOr<uint32_t> Do(const CloseRequest& request) {
    const auto memory = memories_.find(request.memory);
    if (memory == memories_.end()) return absl::InvalidArgumentError("no such memory");
    TC_RETURN_IF_ERROR(tools_.devices->CloseIpc(memory->second.base));
    memories_.erase(memory);
    return 0;
  }

 private:
  struct Memory {
    DevicePtr base;
    uint64_t bytes = 0;
  };

  absl::StatusOr<DevicePtr> Find(uint32_t number, ByteRange range) const {
    const auto memory = memories_.find(number);
    if (memory == memories_.end()) return absl::InvalidArgumentError("no such memory");
    if (range.bytes > memory->second.bytes || range.offset > memory->second.bytes - range.bytes) {
      return absl::InvalidArgumentError("a range past the end of its memory");
    }
    return memory->second.base + range.offset;
  }

  HelperTools tools_;
  std::map<uint32_t, Memory> memories_;
  std::map<uint32_t, std::unique_ptr<Communicator>> communicators_;
  uint32_t last_ = 0;  // number that was given
};

absl::Status Send(int socket, const std::string& bytes) {
  if (send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  return ErrnoStatus(errno, "answer", "the daemon");
}

absl::Status ServeRequests(int socket, Server& server) {
  std::string buffer(kMostMessageBytes, '\0');
  while (true) {
    const ssize_t size = recv(socket, buffer.data(), buffer.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return ErrnoStatus(errno, "hear", "the daemon");
    if (size == 0) return absl::OkStatus();
    TC_ASSIGN_OR_RETURN(const Request request, DecodeRequest(std::string_view(buffer).substr(0, size)));
    const absl::StatusOr<uint32_t> done =
        std::visit([&server](const auto& each) { return server.Do(each); }, request);
    LOG_IF(WARNING, !done.ok()) << done.status();
    TC_RETURN_IF_ERROR(Send(socket, EncodeReply(done)));
  }
}

}  // namespace

absl::Status Serve(int socket, absl::AnyInvocable<absl::StatusOr<HelperTools>() &&> make_tools) {
  const UniqueFd owned(socket);
  std::thread(EndWithTheDaemon, socket).detach();
  absl::StatusOr<HelperTools> tools = std::move(make_tools)();
  TC_RETURN_IF_ERROR(
      Send(socket, EncodeReply(tools.ok() ? absl::StatusOr<uint32_t>(kVersion) : tools.status())));
  TC_RETURN_IF_ERROR(tools.status());
  Server server(*std::move(tools));
  return ServeRequests(socket, server);
}

}  // namespace tensorcast::helper
