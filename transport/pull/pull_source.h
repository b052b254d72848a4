// The servings of one transport. The transport's listener calls Admit for each receiver that connects.
//
// Thread-safe. The destructor of a Serving blocks.
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
  // `lane`: the lane's name. REQUIRES: serving_threads >= 1.
  PullSource(std::string_view lane, const SourceLimits& limits, int serving_threads)
      : lane_(lane), limits_(limits), threads_(serving_threads) {}

  // OK if the image can be served; else an error of Transport::Serve.
  static absl::Status CheckImage(const RegisteredMemory& memory, const ServedImage& image);
  // Serves the image until the Serving is destroyed. The Serving must be destroyed before this object. The
  // caller sets the descriptor's addresses, source name, keys and segments; Serve sets the other fields. The
  // Serving releases `hold` when nothing reads the image. FAILED_PRECONDITION if the descriptor is longer
  // than kMaxDescriptorBytes.
  absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image, std::string receiver,
                                                 Descriptor descriptor, std::shared_ptr<void> hold)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Admits a receiver to the pull that its HELLO names. The caller must start the returned connection on the
  // owner thread of `queue`. `peer`: the name in the receiver's certificate; empty: no certificate. If Admit
  // fails, the caller must send the error to the receiver: FAILED_PRECONDITION for another protocol version,
  // NOT_FOUND for an unknown pull, PERMISSION_DENIED for a pull of another receiver, or the errors of
  // SourceServing::Join.
  absl::StatusOr<std::shared_ptr<SourceConnection>> Admit(const Hello& hello, std::string_view peer,
                                                          TaskQueue* queue) ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes a serving and ends its connections. When Revoke returns, nothing reads the serving's image.
  void Revoke(SourceServing& serving) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::string_view lane_;
  const SourceLimits limits_;
  ServingThreads threads_;
  absl::Mutex mutex_;
  absl::flat_hash_map<PullId, std::shared_ptr<SourceServing>> servings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::transport::pull
