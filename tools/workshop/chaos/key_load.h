// Programs that bind, resolve and delete a few keys, all at once and all the time, while something is done to
// their cluster; and what they were told (key_history.h).
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
  std::vector<std::string> daemons;    // their unix sockets; the threads' clients take turns
  std::vector<std::string> artifacts;  // that are there for good, to be bound
  std::string prefix = "load/";        // of the keys' names; no other load uses it
  int keys = 3;
  int threads = 4;
  uint32_t seed = 1;
  // Between two calls of a thread. Most calls wait so long for an answer, and one of eight less than a
  // second, so that some get none.
  absl::Duration pace = absl::Milliseconds(20);
  absl::Duration patience = absl::Seconds(20);
};

// Thread-safe.
class KeyLoad {
 public:
  // The error of a client that does not reach its daemon.
  static absl::StatusOr<std::unique_ptr<KeyLoad>> Start(const KeyLoadOptions& options);
  ~KeyLoad() { Stop(); }
  KeyLoad(const KeyLoad&) = delete;
  KeyLoad& operator=(const KeyLoad&) = delete;

  // Whether so many more changes were acknowledged by then, or one got no answer.
  bool AwaitAcknowledged(size_t more, SteadyTime deadline) const {
    return history_.AwaitAcknowledged(more, deadline);
  }
  bool AwaitUnknown(size_t more, SteadyTime deadline) const { return history_.AwaitUnknown(more, deadline); }
  // Ends the calls that wait, and the threads.
  void Stop();
  // Of what was told so far. INTERNAL, too, for an artifact that is not there any more.
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
