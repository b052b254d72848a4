// Grant tokens: they let a source verify that the global store allowed a pull (FORMAT.md).
//
// The global store signs the claims with the grant key that it gave the source at registration. The source
// verifies them with the same key before it opens the pull or issues an attach ticket. A token is a
// permission, not a secret: its holder can only pull the named replica, as the named node, over the named
// lane. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {

// The tolerance in VerifyGrant, for rounding to whole seconds and for the drift of clocks between two
// heartbeats.
inline constexpr absl::Duration kGrantAllowance = absl::Seconds(5);

// The key that the global store gave a source at its registration. Both count time from that moment, each on
// its own steady clock, and the source corrects its count with every heartbeat's answer. So no two clocks are
// compared.
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
  absl::Duration expires;  // deadline for opening the pull, since the key was given; an open pull ends with
                           // its grant
  // The names of the nodes, from their certificates if they have any (security/name.h).
  std::string receiver_name;
  std::string source_name;
  uint64_t epoch = 0;  // of the global store that gave the grant

  friend bool operator==(const GrantClaims&, const GrantClaims&) = default;
};

// REQUIRES: the key is not empty, and no string has more than 65535 bytes.
std::string SignGrant(std::string_view key, const GrantClaims& claims);

// INVALID_ARGUMENT for bytes that are not a token, FAILED_PRECONDITION for a token of another version,
// PERMISSION_DENIED when another key signed it or its epoch is not the key's, DEADLINE_EXCEEDED when it
// expired more than kGrantAllowance before `now`.
absl::StatusOr<GrantClaims> VerifyGrant(const GrantKey& key, std::string_view token, SteadyTime now);

}  // namespace tensorcast::rpc
