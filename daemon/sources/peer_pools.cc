#include "daemon/sources/peer_pools.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::daemon {

absl::StatusOr<std::shared_ptr<PoolMapping>> PoolMapping::Map(int fd, uint64_t bytes) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0) return ErrnoStatus(errno, "fstat", "a source's pool");
  // Reading past a file's end is fatal; a sealed pool cannot shrink after this.
  if (bytes == 0 || static_cast<uint64_t>(facts.st_size) < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a source's pool should have ", bytes, " bytes but has ", facts.st_size));
  }
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, "mmap", "a source's pool");
  return std::shared_ptr<PoolMapping>(new PoolMapping(static_cast<const std::byte*>(base), bytes));
}

PoolMapping::~PoolMapping() { munmap(const_cast<std::byte*>(base_), bytes_); }

// The extents come from another process: each is checked against the mapping before anything reads there.
absl::StatusOr<std::vector<ConstHostSpan>> PoolMapping::Spans(const std::vector<Extent>& extents,
                                                              uint64_t image_bytes) const {
  std::vector<ConstHostSpan> spans;
  uint64_t left = image_bytes;
  for (const Extent& extent : extents) {
    if (extent.bytes > bytes_ || extent.offset > bytes_ - extent.bytes) {
      return absl::InvalidArgumentError(absl::StrCat("an extent at ", extent.offset, " of ", extent.bytes,
                                                     " bytes lies outside the source's pool of ", bytes_));
    }
    const uint64_t used = std::min(left, extent.bytes);
    if (used > 0) spans.emplace_back(base_ + extent.offset, used);
    left -= used;
  }
  if (left > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a source's extents end ", left, " bytes before the image does"));
  }
  return spans;
}

absl::StatusOr<std::shared_ptr<PoolMapping>> PeerPools::Get(const std::string& peer,
                                                            const HostHandles& handles, int fd) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = by_peer_.find(peer);
    if (found != by_peer_.end() && found->second.pool_id == handles.pool_id) {
      found->second.last_used = SteadyNow();
      return found->second.mapping;
    }
  }
  // Without the lock, since mapping takes long. Two who come at once may both map; the later one is kept, the
  // other goes with its pull. Another pool id is another start of the daemon: its old mapping goes likewise.
  TC_ASSIGN_OR_RETURN(std::shared_ptr<PoolMapping> mapping, PoolMapping::Map(fd, handles.pool_bytes));
  absl::MutexLock lock(&mutex_);
  by_peer_[peer] = Entry{.pool_id = handles.pool_id, .mapping = mapping, .last_used = SteadyNow()};
  return mapping;
}

void PeerPools::Sweep(SteadyTime now, const std::function<bool(const std::string& peer)>& alive) {
  std::vector<std::string> candidates;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [peer, entry] : by_peer_) {
      // Only the table holds it. Looked at again below: `alive` is asked without the lock, and a pull may
      // begin meanwhile.
      if (entry.mapping.use_count() == 1) candidates.push_back(peer);
    }
  }
  for (const std::string& peer : candidates) {
    const bool lives = alive(peer);
    std::shared_ptr<PoolMapping> dropped;  // unmapped after the lock
    absl::MutexLock lock(&mutex_);
    const auto found = by_peer_.find(peer);
    if (found == by_peer_.end() || found->second.mapping.use_count() != 1 ||
        (lives && now - found->second.last_used < idle_limit_)) {
      continue;
    }
    dropped = std::move(found->second.mapping);
    by_peer_.erase(found);
  }
}

int PeerPools::size() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(by_peer_.size());
}

bool SomebodyListens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return true;
  // EAGAIN: its queue is full of others who connect.
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
         errno == EAGAIN;
}

}  // namespace tensorcast::daemon
