#include "daemon/sources/peer_pools.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/handles/pool_segment.h"

namespace tensorcast::daemon {

absl::StatusOr<std::shared_ptr<SegmentMapping>> SegmentMapping::Map(int fd, uint64_t bytes) {
  TC_RETURN_IF_ERROR(CheckPoolSegment(fd, bytes));
  // The mapping is for reading only: no daemon writes into the pool of another.
  void* base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, "map", "a segment of a source's pool");
  return std::shared_ptr<SegmentMapping>(new SegmentMapping(static_cast<const std::byte*>(base), bytes));
}

SegmentMapping::~SegmentMapping() { munmap(const_cast<std::byte*>(base_), bytes_); }

// A pull holds the mappings that it reads: one reference is the table's own.
bool PeerPools::Entry::InUse() const {
  return std::ranges::any_of(segments, [](const auto& segment) { return segment.second.use_count() > 1; });
}

absl::StatusOr<std::vector<std::shared_ptr<SegmentMapping>>> PeerPools::Get(const std::string& peer,
                                                                            const HostHandles& handles,
                                                                            std::span<const UniqueFd> fds) {
  std::vector<std::shared_ptr<SegmentMapping>> mappings(handles.segments.size());
  {
    absl::MutexLock lock(&mutex_);
    const auto found = by_peer_.find(peer);
    if (found != by_peer_.end() && found->second.pool_id == handles.pool_id) {
      found->second.last_used = SteadyNow();
      for (size_t i = 0; i < mappings.size(); ++i) {
        const auto kept = found->second.segments.find(handles.segments[i].number);
        if (kept != found->second.segments.end()) mappings[i] = kept->second;
      }
    }
  }
  // Without the lock, since mapping takes long. Two calls at once may both map; the later one is kept, the
  // other goes with its pull. Another pool id is another start of the daemon: its old mappings go likewise.
  std::vector<size_t> made;
  for (size_t i = 0; i < mappings.size(); ++i) {
    const uint64_t bytes = handles.segments[i].bytes;
    if (mappings[i] == nullptr) {
      TC_ASSIGN_OR_RETURN(mappings[i], SegmentMapping::Map(fds[i].get(), bytes));
      made.push_back(i);
    } else if (mappings[i]->bytes().size() < bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "map segment ", handles.segments[i].number, " of a source's pool: the segment had ",
          mappings[i]->bytes().size(), " bytes before and has ", bytes, " now; take another source"));
    }
  }
  if (made.empty()) return mappings;
  Entry replaced;  // unmapped after the lock
  absl::MutexLock lock(&mutex_);
  Entry& entry = by_peer_[peer];
  if (entry.pool_id != handles.pool_id) {
    replaced = std::exchange(entry, Entry{.pool_id = handles.pool_id, .segments = {}, .last_used = {}});
  }
  for (const size_t i : made) entry.segments[handles.segments[i].number] = mappings[i];
  entry.last_used = SteadyNow();
  return mappings;
}

void PeerPools::Sweep(SteadyTime now, const std::function<bool(const std::string& peer)>& alive) {
  std::vector<std::string> candidates;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [peer, entry] : by_peer_) {
      // Looked at again below: `alive` is asked without the lock, and a pull may begin meanwhile.
      if (!entry.InUse()) candidates.push_back(peer);
    }
  }
  // The lock is not held here, since `alive` connects to the peer's socket.
  for (const std::string& peer : candidates) {
    const bool lives = alive(peer);
    Entry dropped;  // unmapped after the lock
    absl::MutexLock lock(&mutex_);
    const auto found = by_peer_.find(peer);
    if (found == by_peer_.end() || found->second.InUse() ||
        (lives && now - found->second.last_used < idle_limit_)) {
      continue;
    }
    dropped = std::move(found->second);
    by_peer_.erase(found);
  }
}

int PeerPools::size() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(by_peer_.size());
}

bool HasListener(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return true;
  // EAGAIN: its queue is full of other connections.
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
         errno == EAGAIN;
}

}  // namespace tensorcast::daemon
