// A task loop that also waits for sockets, by epoll.
//
// Threading, deadlines and shutdown: see TaskLoop. Watch, Change and Unwatch belong to the loop's thread.
// Handlers run on that thread, between tasks. After Stop the loop calls no handler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "base/task_loop.h"

namespace tensorcast::transport::tcp {

// Waits in epoll_wait for the watched descriptors, and for an eventfd that Wake signals.
class Epoll : public TaskLoop::Waiter {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // `events`: as reported by epoll. The handler may end any watch and destroy any handler, itself included.
    virtual void OnReady(uint32_t events) = 0;
  };
  using WatchId = uint64_t;

  // From now on, calls the handler whenever the descriptor is ready for one of `events`, or has an error.
  // Level-triggered. The handler must outlive the watch.
  absl::StatusOr<WatchId> Watch(int fd, uint32_t events, Handler* handler);
  void Change(WatchId id, int fd, uint32_t events);
  // Stops calling the handler. REQUIRES: the descriptor is still open.
  void Unwatch(WatchId id, int fd);

 protected:
  // REQUIRES: `epoll` already watches `wake`.
  Epoll(UniqueFd epoll, UniqueFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

 private:
  void Wait(SteadyTime until) override;
  void Wake() override;

  const UniqueFd epoll_;
  const UniqueFd wake_;
  // epoll stores the watch's id, not the handler's address. An event that epoll reported before its watch
  // ended therefore finds no handler here.
  absl::flat_hash_map<WatchId, Handler*> handlers_;
  WatchId watches_made_ = 0;
};

class IoLoop final : public Epoll {
 public:
  // RESOURCE_EXHAUSTED if the process may open no more descriptors. `name`: the thread's name, at most 15
  // characters.
  static absl::StatusOr<std::unique_ptr<IoLoop>> Start(const std::string& name);

  void Post(TaskQueue::Task task) { loop_.Post(std::move(task)); }
  void Run(absl::FunctionRef<void()> task) { loop_.Run(task); }
  bool OnThread() const { return loop_.OnThread(); }
  TaskQueue& queue() { return loop_.queue(); }
  void Stop() { loop_.Stop(); }

 private:
  IoLoop(UniqueFd epoll, UniqueFd wake, const std::string& name)
      : Epoll(std::move(epoll), std::move(wake)), loop_(name, this) {}

  // TaskLoop is a member, not a base, so that Epoll is constructed before the loop's thread calls Wait.
  TaskLoop loop_;
};

}  // namespace tensorcast::transport::tcp
