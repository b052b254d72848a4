#include "transport/tcp/io_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/log/check.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tensorcast::transport::tcp {
namespace {

constexpr Epoll::WatchId kWakeId = 0;
constexpr int kEventsATurn = 64;
// epoll_wait takes its time as an int of milliseconds; a longer wait is only cut into several.
constexpr absl::Duration kLongestWait = absl::Minutes(1);

epoll_event EventFor(Epoll::WatchId id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return event;
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoLoop>> IoLoop::Start(const std::string& name) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus(errno, "create", "an epoll descriptor");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return ErrnoStatus(errno, "create", "an event descriptor");
  epoll_event event = EventFor(kWakeId, EPOLLIN);
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus(errno, "watch", "an event descriptor");
  }
  return std::unique_ptr<IoLoop>(new IoLoop(std::move(epoll), std::move(wake), name));
}

void Epoll::Wake() {
  const uint64_t one = 1;
  // It fails only where the counter is full, and the loop awake.
  (void)!write(wake_.get(), &one, sizeof(one));
}

absl::StatusOr<Epoll::WatchId> Epoll::Watch(int fd, uint32_t events, Handler* handler) {
  // Numbers are not used again, so an event of a watch that ended in this turn finds no handler.
  const WatchId id = ++watches_made_;
  epoll_event event = EventFor(id, events);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoStatus(errno, "watch", "a socket");
  handlers_.emplace(id, handler);
  return id;
}

void Epoll::Change(WatchId id, int fd, uint32_t events) {
  epoll_event event = EventFor(id, events);
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void Epoll::Unwatch(WatchId id, int fd) {
  handlers_.erase(id);
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0);
}

// Called by the loop between its tasks and timers, without a lock. An interrupted wait ends as one without an
// event.
void Epoll::Wait(SteadyTime until) {
  const absl::Duration wait = std::clamp(TimeLeft(until), absl::ZeroDuration(), kLongestWait);
  // Rounded up: a timer that is almost due must not make the loop spin.
  const int wait_ms = static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))));
  // Not all at once, so that tasks and timers have their turn.
  std::array<epoll_event, kEventsATurn> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsATurn, wait_ms);
  for (int i = 0; i < count; ++i) {
    const WatchId id = events[i].data.u64;  // a copy: the struct is packed
    if (id == kWakeId) {
      uint64_t posts;
      (void)!read(wake_.get(), &posts, sizeof(posts));
    } else if (const auto handler = handlers_.find(id); handler != handlers_.end()) {
      handler->second->OnReady(events[i].events);
    }
  }
}

}  // namespace tensorcast::transport::tcp
