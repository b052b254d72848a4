// Limits the rate at which objects are read: from all servers together, and from each server. Shared by all
// clients of a process. Thread-safe.
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

  // Blocks until the limits allow the caller to read `bytes` from the server `origin` ("https://host:port").
  // Callers are served in the order of their calls. CANCELLED or DEADLINE_EXCEEDED if the context ends first;
  // the bytes still count against the limits. `subject`: for the error.
  absl::Status Await(const RequestContext& context, const std::string& origin, uint64_t bytes,
                     std::string_view subject);

 private:
  const uint64_t of_origin_;
  RateLimit all_;
  absl::Mutex mutex_;
  std::map<std::string, RateLimit> origins_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::objects
