// The loopback transport with a gate before each fetch, so that a test can stop transfers in the middle, to
// inspect or disturb them. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/transport.h"

namespace tensorcast::testing {

class Gate {
 public:
  // From now on fetches wait, except the next `pass` ones.
  void Hold(int pass = 0);
  // Lets all waiting and later fetches go on.
  void Release();
  // Blocks until `count` fetches wait.
  void AwaitHeld(int count);

  // Runs `fetch` now, or when the gate opens.
  void Enter(std::function<void()> fetch);

 private:
  absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int pass_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
};

// `gate` must outlive the transport.
std::unique_ptr<transport::Transport> NewGatedTransport(Gate* gate,
                                                        const transport::LoopbackOptions& options = {});

}  // namespace tensorcast::testing
