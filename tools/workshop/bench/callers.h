// A global store under load: ResolveKey by many callers of this process at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"

namespace tensorcast::security {
class Identity;
}

namespace tensorcast::bench {

inline constexpr int kCallers = 64;

struct CallWindow {
  double calls_per_second = 0;
  std::vector<double> latencies_ms;
};

// Thread-compatible: one window at a time.
class Callers {
 public:
  // Calls for `key` at the global store at `address`. The callers have this identity; null: the connection is
  // in clear.
  Callers(const RequestContext& context, const std::string& address, std::string key,
          std::shared_ptr<security::Identity> identity = nullptr);
  ~Callers();

  // Calls for `length`; each caller makes one call after another. The first failed call ends it.
  absl::StatusOr<CallWindow> Run(absl::Duration length);

 private:
  class Stub;

  absl::Status CallOnce(std::vector<double>* latencies);

  const RequestContext context_;
  const std::string key_;
  const std::unique_ptr<Stub> stub_;
};

}  // namespace tensorcast::bench
