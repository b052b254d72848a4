// An epoch numbers the successive leaders of a cluster. A server sends its epoch with each answer, as gRPC
// metadata. A caller that knows a later epoch refuses the answer. A server without standby servers sends no
// epoch.
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
  uint64_t number = 0;  // grows with each leader of that cluster; 0: no epoch

  std::string ToText() const;  // 16 hexadecimal digits, '-', decimal digits
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

// nullopt for a text that ToText does not write.
std::optional<Epoch> ParseEpoch(std::string_view text);

// The latest known epoch of all calls that share this object. An epoch of another cluster replaces the known
// epoch, with a warning, because epochs of two clusters cannot be compared. Thread-safe.
class EpochFence {
 public:
  // UNAVAILABLE when the answer's epoch is earlier than the latest one. REQUIRES: the call has ended.
  absl::Status Check(const grpc::ClientContext& call) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same check for an epoch that `server` sent.
  absl::Status Check(const Epoch& epoch, std::string_view server) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::optional<Epoch> latest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::rpc
