#include "transport/loopback/event_loop.h"

#include "absl/log/check.h"
#include "base/steady_time.h"

namespace tensorcast::transport {

EventLoop::EventLoop() : queue_([this] { Wake(); }), thread_([this] { Loop(); }) {}

EventLoop::~EventLoop() { CHECK(!thread_.joinable()) << "an event loop was destroyed before it was stopped"; }

void EventLoop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    awake_ = true;
  }
  thread_.join();
  queue_.Close();
}

void EventLoop::Run(absl::FunctionRef<void()> task) {
  if (std::this_thread::get_id() == thread_.get_id()) {
    task();
  } else {
    queue_.PostAndWait(task);
  }
}

void EventLoop::Wake() {
  absl::MutexLock lock(&mutex_);
  awake_ = true;
}

void EventLoop::Loop() {
  for (;;) {
    queue_.RunPosted();
    queue_.RunTimers(SteadyNow());
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&awake_), TimeLeft(queue_.next_timer()));
    if (stop_) return;
    awake_ = false;
  }
}

}  // namespace tensorcast::transport
