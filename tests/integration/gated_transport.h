// The loopback transport with a gate in front of each fetch, so that a test can stop transfers in their
// middle and look or do harm there. Thread-safe.
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
  // From now on fetches wait; up to `pass` of them are let through first.
  void Hold(int pass = 0);
  // Lets all go on that wait, and all later ones.
  void Release();
  // Blocks until this many wait.
  void AwaitHeld(int count);

  // Runs `fetch` now or when the gate opens.
  void Enter(std::function<void()> fetch);

 private:
  absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int pass_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
};

// `gate` must outlive it.
std::unique_ptr<transport::Transport> NewGatedTransport(Gate* gate,
                                                        const transport::LoopbackOptions& options = {});

}  // namespace tensorcast::testing
