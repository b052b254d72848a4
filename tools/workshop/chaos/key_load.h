// Clients that bind, resolve and delete a few keys, concurrently and continuously, during faults of their
// cluster; and the answers that they got (key_history.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "tensorcast/client.h"
#include "tools/workshop/chaos/key_history.h"

namespace tensorcast::chaos {

struct KeyLoadOptions {
  std::vector<std::string> daemons;    // their unix sockets; the threads' clients use them in turn
  std::vector<std::string> artifacts;  // permanent artifacts to bind
  std::string prefix = "load/";        // of the keys' names; no other load uses it
  int keys = 3;
  int threads = 4;
  uint32_t seed = 1;
  // `pace` is the pause between two calls of a thread. Most calls wait `patience` for an answer. One call in
  // eight waits less than a second, so that some calls get no answer.
  absl::Duration pace = absl::Milliseconds(20);
  absl::Duration patience = absl::Seconds(20);
};

// Thread-safe.
class KeyLoad {
 public:
  // Returns the error of a client that does not reach its daemon.
  static absl::StatusOr<std::unique_ptr<KeyLoad>> Start(const KeyLoadOptions& options);
  ~KeyLoad() { Stop(); }
  KeyLoad(const KeyLoad&) = delete;
  KeyLoad& operator=(const KeyLoad&) = delete;

  // Whether `more` further changes were acknowledged, or one got no answer, by `deadline`.
  bool AwaitAcknowledged(size_t more, SteadyTime deadline) const {
    return history_.AwaitAcknowledged(more, deadline);
  }
  bool AwaitUnknown(size_t more, SteadyTime deadline) const { return history_.AwaitUnknown(more, deadline); }
  // Ends the waiting calls and the threads.
  void Stop();
  // Checks the answers so far. INTERNAL also if an artifact no longer exists.
  absl::Status Check() const ABSL_LOCKS_EXCLUDED(mutex_);
  const KeyHistory& history() const { return history_; }

 private:
  explicit KeyLoad(const KeyLoadOptions& options) : options_(options) {}
  void Run(client::Client& client, uint32_t seed);
  KeyCall Call(client::Client& client, const RequestContext& context, KeyCall call);

  const KeyLoadOptions options_;
  KeyHistory history_;
  Cancellation stop_;
  mutable absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<client::Client>> clients_;
  std::vector<std::thread> threads_;
};

}  // namespace tensorcast::chaos
