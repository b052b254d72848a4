// A task loop that also waits for sockets: what the connections of a transport live on. A transport has a few
// of them whatever the number of its peers, and each connection belongs to one.
//
// Threading, deadlines and shutdown are those of TaskLoop. Watch, Change and Unwatch belong to the loop's
// thread; handlers run on it, between tasks. After Stop no handler is called.
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

// How such a loop waits: in epoll, for the watched descriptors and for one that Wake writes to.
class Epoll : public TaskLoop::Waiter {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // `events` are epoll's. It may end any watch and destroy any handler; itself as the last it does.
    virtual void OnReady(uint32_t events) = 0;
  };
  using WatchId = uint64_t;

  // Calls the handler, which must outlive the watch, whenever the descriptor is ready for one of `events`,
  // and when it is broken. Level-triggered.
  absl::StatusOr<WatchId> Watch(int fd, uint32_t events, Handler* handler);
  void Change(WatchId id, int fd, uint32_t events);
  // The handler is called no more. Before the descriptor is closed.
  void Unwatch(WatchId id, int fd);

 protected:
  // `wake` is watched already.
  Epoll(UniqueFd epoll, UniqueFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

 private:
  void Wait(SteadyTime until) override;
  void Wake() override;

  const UniqueFd epoll_;
  const UniqueFd wake_;
  // By id and not by address in epoll's own memory: an event that was read before its watch ended finds
  // no handler.
  absl::flat_hash_map<WatchId, Handler*> handlers_;
  WatchId watches_made_ = 0;
};

class IoLoop final : public Epoll {
 public:
  // RESOURCE_EXHAUSTED where the process may have no more descriptors. `name`: the thread's, 15 characters.
  static absl::StatusOr<std::unique_ptr<IoLoop>> Start(const std::string& name);

  void Post(TaskQueue::Task task) { loop_.Post(std::move(task)); }
  void Run(absl::FunctionRef<void()> task) { loop_.Run(task); }
  bool OnThread() const { return loop_.OnThread(); }
  TaskQueue& queue() { return loop_.queue(); }
  void Stop() { loop_.Stop(); }

 private:
  IoLoop(UniqueFd epoll, UniqueFd wake, const std::string& name)
      : Epoll(std::move(epoll), std::move(wake)), loop_(name, this) {}

  // A member and not a base: its thread calls Wait, so this object has to be an IoLoop by then.
  TaskLoop loop_;
};

}  // namespace tensorcast::transport::tcp
