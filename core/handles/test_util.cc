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

Claim HostClaim(int pool_fd, uint64_t pool_bytes, std::vector<Extent> extents, uint64_t image_bytes,
                std::shared_ptr<void> hold) {
  Claim claim;
  claim.handles = {"replica-1", "tc1:test", image_bytes,
                   HostHandles{"pool-1", pool_bytes, std::move(extents)}};
  claim.fd = pool_fd;
  claim.hold = std::move(hold);
  return claim;
}

Claim DeviceClaim(std::shared_ptr<void> hold) {
  Claim claim;
  claim.handles = {"replica-2", "tc1:test", 4096, DeviceHandles{{"FAKE-0", "handle", 2u << 20}}};
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

}  // namespace tensorcast
