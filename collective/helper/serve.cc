#include "collective/helper/serve.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "collective/helper/messages.h"

namespace tensorcast::helper {
namespace {

// From here on this process is killed with its daemon, whatever the library is doing then, and even where it
// was stopped.
absl::Status EndWithTheDaemon(int socket) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    return ErrnoStatus(errno, "set the death signal of", "the helper process");
  }
  ucred daemon{};  // the process that made the pair of sockets
  socklen_t size = sizeof(daemon);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &daemon, &size) != 0) {
    return ErrnoStatus(errno, "get the credentials of", "the daemon");
  }
  // The daemon may have ended before prctl, which then sends nothing. Another parent shows that.
  if (getppid() == daemon.pid) return absl::OkStatus();
  return absl::UnavailableError(
      "start the helper process: the daemon that started this process has ended; start the daemon again");
}

// The requests as functions. Any error ends this process, since the daemon kills a helper that answers with
// one. So no function undoes a part of its work after an error.
class Server {
 public:
  explicit Server(HelperTools tools) : tools_(std::move(tools)) {}
  ~Server() {
    // Communicators first: they may still use the memories.
    while (!groups_.empty()) Do(LeaveRequest{.communicator = groups_.begin()->first}).IgnoreError();
    for (const auto& [number, memory] : memories_) tools_.devices->CloseIpc(memory.base).IgnoreError();
  }

  absl::StatusOr<Reply> Do(const OpenRequest& request) {
    TC_ASSIGN_OR_RETURN(const DevicePtr base, tools_.devices->OpenIpc(request.memory));
    // The whole allocation is opened; ranges are checked against the size that the daemon exported.
    memories_[++last_] = {.base = base, .bytes = request.memory.bytes};
    return last_;
  }

  absl::StatusOr<Reply> Do(const JoinRequest& request) {
    std::vector<RankDevice> ranks;
    for (const JoinRequest::Rank& rank : request.ranks) {
      TC_ASSIGN_OR_RETURN(const int device, tools_.devices->FindDevice(rank.device_uuid));
      ranks.push_back({.rank = static_cast<int>(rank.rank), .device = device});
    }
    CommunicatorId id{.bytes = request.id};
    // All ranks are here, so the id need not leave this process.
    if (id.bytes.empty()) {
      TC_ASSIGN_OR_RETURN(id, tools_.library->MakeId());
    }
    // An entry stays also where the library fails: the daemon ends this process after each error.
    Group& group = groups_[++last_];
    TC_ASSIGN_OR_RETURN(
        group.communicator,
        tools_.library->Join(RequestContext(), id, static_cast<int>(request.world_size), ranks));
    if (request.world_size > ranks.size()) TC_RETURN_IF_ERROR(MakeHeaders(ranks, group));
    return last_;
  }

  absl::StatusOr<Reply> Do(const BroadcastRequest& request) {
    TC_ASSIGN_OR_RETURN(Group * group, Find(request.communicator));
    TC_RETURN_IF_ERROR(Check(request.memories, request.ranges));
    if (!group->headers.empty()) TC_RETURN_IF_ERROR(SendHeader(*group, request));
    TC_RETURN_IF_ERROR(Broadcast(*group, request.root, request.memories, request.ranges));
    return uint32_t{0};
  }

  // The ranges come from another node. Check compares them with the memories that are open here before any of
  // them is used.
  absl::StatusOr<Reply> Do(const ReceiveRequest& request) {
    TC_ASSIGN_OR_RETURN(Group * group, Find(request.communicator));
    if (group->headers.empty()) {
      return absl::InvalidArgumentError(
          "receive a broadcast: all ranks are in this process; broadcast from the root");
    }
    // The header goes first, into device memory of each rank here. One copy of it comes to the host.
    TC_RETURN_IF_ERROR(BroadcastHeader(*group, request.root));
    std::string bytes(kHeaderBytes, '\0');
    TC_RETURN_IF_ERROR(group->stream->CopyToHost(reinterpret_cast<std::byte*>(bytes.data()),
                                                 group->headers.front(), kHeaderBytes));
    TC_RETURN_IF_ERROR(group->stream->Synchronize());
    TC_ASSIGN_OR_RETURN(std::vector<ByteRange> ranges, DecodeHeader(bytes));
    TC_RETURN_IF_ERROR(Check(request.memories, ranges));
    TC_RETURN_IF_ERROR(Broadcast(*group, request.root, request.memories, ranges));
    return ranges;
  }

  absl::StatusOr<Reply> Do(const CloseRequest& request) {
    const auto memory = memories_.find(request.memory);
    if (memory == memories_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "close memory ", request.memory, ": no open memory has this number; open the memory first"));
    }
    TC_RETURN_IF_ERROR(tools_.devices->CloseIpc(memory->second.base));
    memories_.erase(memory);
    return uint32_t{0};
  }

  absl::StatusOr<Reply> Do(const MakeIdRequest&) {
    TC_ASSIGN_OR_RETURN(CommunicatorId id, tools_.library->MakeId());
    return std::move(id.bytes);
  }

  absl::StatusOr<Reply> Do(const LeaveRequest& request) {
    TC_ASSIGN_OR_RETURN(Group * group, Find(request.communicator));
    // In this order: the communicator may use the headers until it has left.
    group->communicator.reset();
    group->stream.reset();
    const std::vector<DevicePtr> headers = group->headers;
    groups_.erase(request.communicator);
    for (const DevicePtr& header : headers) TC_RETURN_IF_ERROR(tools_.devices->Free(header));
    return uint32_t{0};
  }

 private:
  struct Memory {
    DevicePtr base;
    uint64_t bytes = 0;
  };
  // A communicator. With ranks in other processes also: of each rank here what headers are broadcast in, and
  // a stream of the first one's device.
  struct Group {
    std::unique_ptr<Communicator> communicator;
    std::vector<RankDevice> ranks;
    std::vector<DevicePtr> headers;
    std::unique_ptr<Stream> stream;
  };

  // Where other processes have ranks too, each broadcast is preceded by one of a header with its ranges:
  // the other processes do not know them.
  absl::Status MakeHeaders(const std::vector<RankDevice>& ranks, Group& group) {
    group.ranks = ranks;
    for (const RankDevice& rank : ranks) {
      TC_ASSIGN_OR_RETURN(group.headers.emplace_back(), tools_.devices->Allocate(rank.device, kHeaderBytes));
    }
    TC_ASSIGN_OR_RETURN(group.stream, tools_.devices->CreateStream(ranks.front().device));
    return absl::OkStatus();
  }

  absl::StatusOr<Group*> Find(uint32_t communicator) {
    const auto group = groups_.find(communicator);
    if (group == groups_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("use communicator ", communicator,
                       ": no communicator has this number; join the communicator first"));
    }
    return &group->second;
  }

  absl::Status Check(const std::vector<uint32_t>& memories, const std::vector<ByteRange>& ranges) const {
    for (const uint32_t number : memories) {
      const auto memory = memories_.find(number);
      if (memory == memories_.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "broadcast memory ", number, ": no open memory has this number; open the memory first"));
      }
      for (const ByteRange& range : ranges) {
        if (range.bytes > memory->second.bytes || range.offset > memory->second.bytes - range.bytes) {
          return absl::InvalidArgumentError(absl::StrCat(
              "broadcast ", range.bytes, " bytes at offset ", range.offset, " of memory ", number,
              ": the memory has ", memory->second.bytes, " bytes; broadcast a range inside the memory"));
        }
      }
    }
    return absl::OkStatus();
  }

  static absl::Status BroadcastHeader(Group& group, uint32_t root) {
    TC_RETURN_IF_ERROR(
        group.communicator->Broadcast(RequestContext(), static_cast<int>(root), group.headers, kHeaderBytes));
    return group.communicator->Await(RequestContext());
  }

  absl::Status SendHeader(Group& group, const BroadcastRequest& request) {
    if (request.ranges.size() > kMaxHeaderRanges) {
      return absl::InvalidArgumentError(absl::StrCat("broadcast ", request.ranges.size(),
                                                     " ranges: a header holds at most ", kMaxHeaderRanges,
                                                     "; broadcast fewer ranges at once"));
    }
    const std::string bytes = EncodeHeader(request.ranges);
    // Only the root's memory is filled; the broadcast brings the header to the others.
    for (size_t i = 0; i < group.ranks.size(); ++i) {
      if (group.ranks[i].rank != static_cast<int>(request.root)) continue;
      TC_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream,
                          tools_.devices->CreateStream(group.ranks[i].device));
      TC_RETURN_IF_ERROR(stream->CopyToDevice(
          group.headers[i], reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
      TC_RETURN_IF_ERROR(stream->Synchronize());
      return BroadcastHeader(group, request.root);
    }
    return absl::InvalidArgumentError("broadcast: the root is in another process; receive instead");
  }

  // REQUIRES: Check.
  absl::Status Broadcast(Group& group, uint32_t root, const std::vector<uint32_t>& memories,
                         const std::vector<ByteRange>& ranges) const {
    std::vector<DevicePtr> buffers(memories.size());
    for (const ByteRange& range : ranges) {
      for (size_t i = 0; i < buffers.size(); ++i) {
        buffers[i] = memories_.find(memories[i])->second.base + range.offset;
      }
      TC_RETURN_IF_ERROR(
          group.communicator->Broadcast(RequestContext(), static_cast<int>(root), buffers, range.bytes));
    }
    return group.communicator->Await(RequestContext());
  }

  HelperTools tools_;
  std::map<uint32_t, Memory> memories_;
  std::map<uint32_t, Group> groups_;
  // Memories and communicators are numbered together and no number is used again, so that none is taken for
  // another.
  uint32_t last_ = 0;  // number that was given
};

absl::Status Send(int socket, const std::string& bytes) {
  if (send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  return ErrnoStatus(errno, "send to", "the daemon");
}

// One request at a time. A failed one is answered and logged; whether this process goes on is the daemon's
// decision.
absl::Status ServeRequests(int socket, Server& server) {
  std::string buffer(kMaxMessageBytes, '\0');
  while (true) {
    const ssize_t size = recv(socket, buffer.data(), buffer.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return ErrnoStatus(errno, "receive from", "the daemon");
    if (size == 0) return absl::OkStatus();
    TC_ASSIGN_OR_RETURN(const Request request, DecodeRequest(std::string_view(buffer).substr(0, size)));
    const absl::StatusOr<Reply> done =
        std::visit([&server](const auto& each) { return server.Do(each); }, request);
    LOG_IF(WARNING, !done.ok()) << done.status();
    TC_RETURN_IF_ERROR(Send(socket, EncodeReply(done)));
  }
}

}  // namespace

absl::Status Serve(int socket, absl::AnyInvocable<absl::StatusOr<HelperTools>() &&> make_tools) {
  const UniqueFd owned(socket);
  TC_RETURN_IF_ERROR(EndWithTheDaemon(socket));
  absl::StatusOr<HelperTools> tools = std::move(make_tools)();
  if (!tools.ok()) {
    TC_RETURN_IF_ERROR(Send(socket, EncodeReply(tools.status())));
    return tools.status();
  }
  TC_RETURN_IF_ERROR(
      Send(socket, EncodeReply(Hello{.version = kVersion, .library = tools->library->version()})));
  Server server(*std::move(tools));
  return ServeRequests(socket, server);
}

}  // namespace tensorcast::helper
