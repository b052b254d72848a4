#include "core/handles/wakeable_poll.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/log/check.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// Rounded up to whole milliseconds, so that the thread does not wake just before the time and spin until
// it. At most a minute: any larger number could overflow the int, and to wake for nothing is harmless.
int WaitMilliseconds(SteadyTime until) {
  if (until == SteadyTime::InfiniteFuture()) return -1;
  const absl::Duration wait = std::clamp(TimeLeft(until), absl::ZeroDuration(), absl::Minutes(1));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WakeablePoll>> WakeablePoll::Create(std::string path) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoStatus(errno, "create", "an epoll descriptor for the handle socket");
  UniqueFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake) return ErrnoStatus(errno, "create", "an eventfd for the handle socket");
  std::unique_ptr<WakeablePoll> poll(new WakeablePoll(std::move(epoll), std::move(wake), std::move(path)));
  TC_RETURN_IF_ERROR(poll->Watch(poll->wake_.get(), EPOLLIN, kWakeId));
  return poll;
}

absl::Status WakeablePoll::Control(int operation, int fd, uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), operation, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "watch a descriptor of", path_);
}

std::span<const epoll_event> WakeablePoll::Wait(SteadyTime until) {
  const int count = epoll_wait(epoll_.get(), events_.data(), kEventsAtOnce, WaitMilliseconds(until));
  CHECK(count >= 0 || errno == EINTR) << "epoll_wait on our own descriptor failed: errno " << errno;
  size_t ready = 0;
  for (int i = 0; i < count; ++i) {
    if (events_[i].data.u64 == kWakeId) {
      // One read takes all that was written.
      uint64_t ignored;
      [[maybe_unused]] const ssize_t size = read(wake_.get(), &ignored, sizeof(ignored));
    } else {
      events_[ready++] = events_[i];
    }
  }
  return std::span<const epoll_event>(events_).first(ready);
}

void WakeablePoll::Wake() {
  const uint64_t one = 1;
  // It fails only when the counter is full, and then the thread wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

absl::StatusOr<UniqueFd> WakeablePoll::DuplicateWake() const {
  UniqueFd wake(fcntl(wake_.get(), F_DUPFD_CLOEXEC, 0));
  if (!wake) return ErrnoStatus(errno, "duplicate", "an eventfd for the handle socket");
  return wake;
}

}  // namespace tensorcast
