#include "transport/pull_id.h"

#include <algorithm>

#include "absl/log/check.h"
#include "base/ids.h"

namespace tensorcast::transport {

PullId NewPullId() {
  PullId id;
  FillRandom(id.data(), id.size());
  return id;
}

PullId PullIdFromBytes(std::string_view bytes) {
  PullId id;
  CHECK_EQ(bytes.size(), id.size());
  std::copy(bytes.begin(), bytes.end(), id.begin());
  return id;
}

}  // namespace tensorcast::transport
