// One thread that waits for sockets, timers and tasks: what the connections of a transport live on. A
// transport has a few of them whatever the number of its peers, and each connection belongs to one.
//
// Post, Run and OnThread are thread-safe; the rest is for the loop's thread. Tasks that are posted after Stop
// are dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/task_queue.h"

namespace tensorcast::transport::tcp {

class IoLoop {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // `events` are epoll's. It may end any watch and destroy any handler; itself as the last it does.
    virtual void OnReady(uint32_t events) = 0;
  };
  using WatchId = uint64_t;

  // RESOURCE_EXHAUSTED where the process may have no more descriptors. `name`: the thread's, 15 characters.
  static absl::StatusOr<std::unique_ptr<IoLoop>> Start(const std::string& name);
  // REQUIRES: stopped.
  ~IoLoop();
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  // Ends the thread; what has not run is dropped. REQUIRES: called once, not on the loop's thread.
  void Stop();

  void Post(TaskQueue::Task task) { queue_.Post(std::move(task)); }
  // Runs `task` on the loop and waits for it; at once when this is the loop's thread.
  void Run(absl::FunctionRef<void()> task);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Timers.
  TaskQueue& queue() { return queue_; }

  // Calls the handler, which must outlive the watch, whenever the descriptor is ready for one of `events`,
  // and when it is broken. Level-triggered.
  absl::StatusOr<WatchId> Watch(int fd, uint32_t events, Handler* handler);
  void Change(WatchId id, int fd, uint32_t events);
  // The handler is called no more. Before the descriptor is closed.
  void Unwatch(WatchId id, int fd);

 private:
  IoLoop(UniqueFd epoll, UniqueFd wake, const std::string& name);
  void Wake();
  void Loop();
  void WaitOnce();

  const UniqueFd epoll_;
  const UniqueFd wake_;
  TaskQueue queue_;
  bool stop_ = false;
  // By id and not by address in epoll's own memory: an event that was read before its watch ended finds
  // no handler.
  absl::flat_hash_map<WatchId, Handler*> handlers_;
  WatchId watches_made_ = 0;
  std::thread thread_;
};

}  // namespace tensorcast::transport::tcp
