// The servings of one transport by the pull protocol, and the pulls that its listener admits to them.
//
// Thread-safe. Blocking: destroying a Serving.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/task_queue.h"
#include "transport/pull/source_connection.h"
#include "transport/pull/wire.h"
#include "transport/registered_memory.h"
#include "transport/serving.h"
#include "transport/transport.h"

namespace tensorcast::transport::pull {

class PullSource {
 public:
  // `lane`: its name. REQUIRES: serving_threads >= 1.
  PullSource(std::string_view lane, const SourceLimits& limits, int serving_threads)
      : lane_(lane), limits_(limits), threads_(serving_threads) {}

  // Whether such an image can be served: the statuses of Transport::Serve.
  static absl::Status CheckImage(const RegisteredMemory& memory, const ServedImage& image);
  // Serves the image until the Serving is destroyed, which must happen before this object is destroyed. The
  // lane has filled in the descriptor's addresses, source name, keys and segments. `hold` is released with
  // the Serving. FAILED_PRECONDITION when the descriptor is too long.
  absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image, std::string receiver,
                                                 Descriptor descriptor, std::shared_ptr<void> hold)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Admits a receiver to the pull that it asks for. The caller starts the connection on the owner thread of
  // `queue`. `peer`: the name in the receiver's certificate; empty: it has shown none. The receiver gets an
  // error as it is.
  absl::StatusOr<std::shared_ptr<SourceConnection>> Admit(const Hello& hello, std::string_view peer,
                                                          TaskQueue* queue) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends a serving: no connection finds it any more, and nothing reads its image when this returns.
  void Revoke(SourceServing& serving) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::string_view lane_;
  const SourceLimits limits_;
  ServingThreads threads_;
  absl::Mutex mutex_;
  absl::flat_hash_map<PullId, std::shared_ptr<SourceServing>> servings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::transport::pull
