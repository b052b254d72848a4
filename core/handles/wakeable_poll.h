// The server's thread sleeps here until a watched descriptor is ready (epoll) or another thread wakes it
// (eventfd).
//
// Wake is thread-safe. The other functions belong to the server's thread. Errors are those of the system
// calls. Internal to this folder.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"

namespace tensorcast {

class WakeablePoll {
 public:
  // `path` is the socket's path, for messages.
  static absl::StatusOr<std::unique_ptr<WakeablePoll>> Create(std::string path);

  // Watches a descriptor for `events` from now on, level-triggered. Its events carry `id`, which must
  // differ from kWakeId.
  absl::Status Watch(int fd, uint32_t events, uint64_t id) { return Control(EPOLL_CTL_ADD, fd, events, id); }
  // Changes the events of a watched descriptor.
  absl::Status Change(int fd, uint32_t events, uint64_t id) { return Control(EPOLL_CTL_MOD, fd, events, id); }

  // Sleeps until a watched descriptor is ready, Wake was called, or `until` has come; it may return earlier.
  // Returns the events of ready descriptors, which stay until the next call.
  std::span<const epoll_event> Wait(SteadyTime until);

  // Ends the running Wait or, if none runs, the next Wait. Takes no lock.
  void Wake();
  // A descriptor of the same eventfd. A write to this descriptor has the effect of Wake. After this
  // object was destroyed, a write has no effect.
  absl::StatusOr<UniqueFd> DuplicateWake() const;

 private:
  static constexpr size_t kEventsAtOnce = 64;
  static constexpr uint64_t kWakeId = std::numeric_limits<uint64_t>::max();

  WakeablePoll(UniqueFd epoll, UniqueFd wake, std::string path)
      : path_(std::move(path)), epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  absl::Status Control(int operation, int fd, uint32_t events, uint64_t id);

  const std::string path_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  std::array<epoll_event, kEventsAtOnce> events_{};
};

}  // namespace tensorcast
