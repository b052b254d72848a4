#include "transport/pull_id.h"

#include <sys/random.h>

#include <algorithm>

#include "absl/log/check.h"

namespace tensorcast::transport {

PullId NewPullId() {
  PullId id;
  // Reads of up to 256 bytes are never short and cannot fail once the system has booted.
  PCHECK(getrandom(id.data(), id.size(), 0) == static_cast<ssize_t>(id.size()));
  return id;
}

PullId PullIdFromBytes(std::string_view bytes) {
  PullId id;
  CHECK_EQ(bytes.size(), id.size());
  std::copy(bytes.begin(), bytes.end(), id.begin());
  return id;
}

}  // namespace tensorcast::transport
