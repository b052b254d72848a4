// Epochs: which of the leaders that a cluster had, one after another, a server speaks for. It says so with
// each answer, as gRPC metadata; a caller that has heard of a later one no longer believes it. A server that
// is not one of several says none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace tensorcast::rpc {

inline constexpr char kEpochKey[] = "tc-epoch";  // metadata

struct Epoch {
  uint64_t cluster = 0;
  uint64_t number = 0;  // grows with each leader of that cluster; 0: there are none

  std::string ToText() const;  // 16 hexadecimal digits, '-', decimal ones
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

// Nothing for what ToText does not write.
std::optional<Epoch> ParseEpoch(std::string_view text);

// The latest epoch that was heard of, of all calls that share this. An epoch of another cluster takes its
// place, with a warning: epochs of two clusters cannot be compared. Thread-safe.
class EpochFence {
 public:
  // UNAVAILABLE when the answer is of an earlier epoch than one before it. REQUIRES: the call has ended.
  absl::Status Check(const grpc::ClientContext& call) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same of an epoch that `server` said.
  absl::Status Check(const Epoch& epoch, std::string_view server) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::optional<Epoch> latest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::rpc
