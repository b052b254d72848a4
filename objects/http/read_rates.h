// Limits the rate at which objects are read: the total of all servers, and each server by itself. Shared by
// all clients of a process. Thread-safe.
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
  // Max rates of all reads together and of each server, in bytes per second; 0: no limit.
  ReadRates(uint64_t all, uint64_t of_origin) : of_origin_(of_origin), all_(all) {}

  // Reserves a turn to read `bytes` from the server `origin` ("https://host:port"), and waits for the turn.
  // Concurrent callers get their turns one after another. CANCELLED or DEADLINE_EXCEEDED if the context ends
  // first.
  absl::Status Await(const RequestContext& context, const std::string& origin, uint64_t bytes,
                     std::string_view subject);

 private:
  const uint64_t of_origin_;
  RateLimit all_;
  absl::Mutex mutex_;
  std::map<std::string, RateLimit> origins_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::objects
