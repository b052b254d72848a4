// After an import, reads the imported files once more and compares their digests with the artifact's. The
// files count as a copy only after a successful comparison (global_store/inventory). Runs one comparison at a
// time, at a bounded rate.
//
// Owns a thread. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/config_reader.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/manifest.h"
#include "core/artifact/origin.h"
#include "core/source/object_reader.h"

namespace tensorcast::daemon {

class OriginComparer {
 public:
  struct Options {
    std::shared_ptr<const ObjectStore> objects;
    uint64_t bytes_per_second = uint64_t{512} << 20;  // 0: no limit
    // NOT_FOUND: the artifact was deleted.
    std::function<absl::StatusOr<std::shared_ptr<const Manifest>>(const std::string& artifact_id)>
        find_manifest;
    // Reports to the global store that the files match the import; `origin.compared` is set.
    // FAILED_PRECONDITION: the artifact is gone, or was imported from other files meanwhile. After any other
    // error, the comparer reports again later.
    std::function<absl::Status(const Manifest& manifest, const Origin& origin)> publish;
    absl::Duration retry_interval = absl::Seconds(5);

    void FromConfig(ConfigReader& config) { config.Read("daemon.compare_rate", bytes_per_second); }
  };

  explicit OriginComparer(Options options);
  ~OriginComparer();  // Aborts the running comparison.

  // The state of a comparison.
  struct Standing {
    uint64_t compared_bytes = 0;
    uint64_t total_bytes = 0;
    // DATA_LOSS if the files differ from the import although their versions match, else the last error.
    absl::Status error;
  };
  // Begins a comparison and returns at once. Does nothing if a comparison of the same files is under way or
  // has ended in DATA_LOSS. Replaces the comparison of another origin of the artifact. REQUIRES: `origin`
  // names files of this node; `origin.untraceable` and `origin.compared` are not set.
  Standing Compare(const std::string& artifact_id, const Origin& origin);

 private:
  struct Task {
    Origin origin;
    std::shared_ptr<std::atomic<uint64_t>> compared_bytes;
    uint64_t total_bytes = 0;
    std::shared_ptr<const Manifest> right;  // set when the digests matched: then only `publish` is left
    SteadyTime due;
    absl::Status error;
  };

  void Loop();
  SteadyTime FirstDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks until a task is due. False when the object is being destroyed.
  bool AwaitDue(std::string& artifact_id, Task& task);
  absl::StatusOr<std::shared_ptr<const Manifest>> ReadOnce(const std::string& artifact_id, const Task& task);
  // Does the next step of a due task, with no lock held.
  void Step(const std::string& artifact_id, Task task);

  const Options options_;
  const Cancellation cancellation_;
  absl::Mutex mutex_;
  std::map<std::string, Task> tasks_
      ABSL_GUARDED_BY(mutex_);  // by artifact; without those that were published
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tensorcast::daemon
