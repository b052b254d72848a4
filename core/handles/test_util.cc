#include "core/handles/test_util.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "base/posix/unix_socket.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "core/handles/frame_io.h"

namespace tensorcast {

SteadyTime Soon() { return SteadyNow() + absl::Seconds(60); }

UniqueFd MakePool(uint64_t bytes, int seals) {
  UniqueFd fd(memfd_create("test-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(fd) << errno;
  CHECK_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  const std::vector<char> granule(kGranuleBytes);
  for (uint64_t offset = 0; offset < bytes; offset += kGranuleBytes) {
    const size_t size = std::min(kGranuleBytes, bytes - offset);
    const std::string fill(size, static_cast<char>(offset / kGranuleBytes));
    CHECK_EQ(pwrite(fd.get(), fill.data(), size, static_cast<off_t>(offset)), static_cast<ssize_t>(size));
  }
  CHECK_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

int PoolSeals() { return F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL; }
int OfferSeals() { return F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE; }

Claim HostClaim(int pool_fd, uint64_t pool_bytes, const std::vector<Extent>& extents, uint64_t image_bytes,
                std::shared_ptr<void> hold) {
  HostHandles host{.pool_id = "pool-1", .segments = {{.number = 0, .bytes = pool_bytes}}, .extents = {}};
  uint64_t image_offset = 0;
  for (const Extent& extent : extents) {
    host.extents.push_back({image_offset, 0, extent.offset, extent.bytes});
    image_offset += extent.bytes;
  }
  Claim claim;
  claim.handles = {"replica-1", "tc2:test", image_bytes, std::move(host)};
  claim.fds = {pool_fd};
  claim.hold = std::move(hold);
  return claim;
}

Claim DeviceClaim(std::shared_ptr<void> hold) {
  Claim claim;
  claim.handles = {"replica-2", "tc2:test", 4096, DeviceHandles{{"FAKE-0", "handle", 2u << 20}}};
  claim.hold = std::move(hold);
  return claim;
}

std::unique_ptr<HandleServer> StartServer(const std::string& path) {
  HandleServer::Options options;
  options.path = path;
  auto server = HandleServer::Start(options);
  CHECK_OK(server.status());
  return *std::move(server);
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

UniqueFd RawConnect(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = UnixAddress(path);
  CHECK_OK(address.status());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return UniqueFd();
  }
  return fd;
}

UniqueFd RawGreet(const std::string& path) {
  UniqueFd socket = RawConnect(path);
  SendFrame(socket.get(), HelloFrame{});
  const std::optional<Frame> answer = ReceiveFrame(socket.get());
  CHECK(answer.has_value() && std::holds_alternative<HelloAckFrame>(*answer));
  return socket;
}

UniqueFd RawListen(const std::string& path, int backlog) {
  unlink(path.c_str());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = UnixAddress(path);
  CHECK_OK(address.status());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 ||
      listen(fd.get(), backlog) != 0) {
    return UniqueFd();
  }
  return fd;
}

void SendBytes(int socket, std::string_view bytes, int fd) {
  const std::vector<int> fds = fd < 0 ? std::vector<int>() : std::vector<int>{fd};
  const absl::StatusOr<size_t> sent = SendSome(socket, bytes, fds);
  CHECK_OK(sent.status());
  CHECK_EQ(*sent, bytes.size());
}

void SendFrame(int socket, const Frame& frame, int fd) { SendBytes(socket, *EncodeFrame(frame), fd); }

std::optional<Frame> ReceiveFrame(int socket) {
  FrameReader reader(kMaxServerFrameBytes, kMaxFrameDescriptors);
  std::optional<Frame> frame;
  static_cast<void>(testing::Eventually([&] {
    auto incoming = reader.Read(socket);
    if (incoming.ok() && incoming->has_value()) frame = std::move((*incoming)->frame);
    return !incoming.ok() || frame.has_value() || reader.closed();
  }));
  return frame;
}

absl::StatusCode ErrorOf(const std::optional<Frame>& frame) {
  if (!frame || !std::holds_alternative<ErrorFrame>(*frame)) return absl::StatusCode::kOk;
  return std::get<ErrorFrame>(*frame).status.code();
}

}  // namespace tensorcast
