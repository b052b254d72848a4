// Grant tokens let a source verify that the global store allowed a pull (FORMAT.md).
//
// The global store signs a token with the grant key that it gave the source at registration. The source
// verifies the token before it opens the pull or issues an attach ticket. A token permits only a pull of the
// named replica by the named node over the named lane, so it is not a secret. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {

// VerifyGrant accepts a token for this time after its expiry, because of rounding and the drift of clocks.
inline constexpr absl::Duration kGrantAllowance = absl::Seconds(5);

// The key that the global store gave a source at its registration. Store and source count time from that
// moment, each on its own steady clock.
struct GrantKey {
  std::string bytes;  // empty: not registered yet
  SteadyTime given;
  uint64_t epoch = 0;  // of the global store that gave the key
};

struct GrantClaims {
  std::string grant_id;
  std::string replica_id;
  std::string artifact_id;
  std::string receiver_node_id;
  std::string lane;
  absl::Duration expires;  // from GrantKey::given to the deadline for opening the pull; an open pull ends
                           // with its grant
  // The names of the nodes, from their certificates if they have any (security/name.h).
  std::string receiver_name;
  std::string source_name;
  uint64_t epoch = 0;  // of the global store that gave the grant

  friend bool operator==(const GrantClaims&, const GrantClaims&) = default;
};

// REQUIRES: the key is not empty, and no string has more than 65535 bytes.
std::string SignGrant(std::string_view key, const GrantClaims& claims);

// INVALID_ARGUMENT for bytes that are not a token, FAILED_PRECONDITION for a token of another version,
// PERMISSION_DENIED if `key` is empty, another key signed the token, or the token has another epoch,
// DEADLINE_EXCEEDED when the token expired more than kGrantAllowance before `now`.
absl::StatusOr<GrantClaims> VerifyGrant(const GrantKey& key, std::string_view token, SteadyTime now);

}  // namespace tensorcast::rpc
