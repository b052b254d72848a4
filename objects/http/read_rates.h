// The max rates at which objects are read: of all together, and of each server. Shared by all clients of a
// process. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/rate_limit.h"
#include "base/request_context.h"

namespace tensorcast::objects {

class ReadRates {
 public:
  // Bytes a second; 0: no limit.
  ReadRates(uint64_t all, uint64_t of_origin) : of_origin_(of_origin), all_(all) {}

  // Takes its turn to read so many bytes of a server ("https://host:port"), and waits for it: those that
  // read at once wait one after another. CANCELLED or DEADLINE_EXCEEDED: the context ended first.
  absl::Status Await(const RequestContext& context, const std::string& origin, uint64_t bytes,
                     std::string_view subject);

 private:
  const uint64_t of_origin_;
  RateLimit all_;
  absl::Mutex mutex_;
  std::map<std::string, RateLimit> origins_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::objects
