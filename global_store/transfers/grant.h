// Grants: permissions to pull a replica, what is asked for them and what is answered. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/replica.h"
#include "core/replica/transfer_report.h"
#include "global_store/catalog/facts.h"
#include "global_store/inventory/replica.h"
#include "global_store/membership/node.h"

namespace tensorcast::global_store {

struct GrantRequest {
  NodeIdentity receiver;
  std::string artifact_id;
  Location destination;
  std::vector<std::string> excluded_replicas;
  std::vector<std::string> corrupt_replicas;
  // Given up before, or held and giving nothing just now: offered when nothing else is left.
  std::vector<std::string> slow_replicas;
  absl::Duration timeout;  // how long the receiver expects to take at most; zero: unknown
  std::string required_lane;
  // That the transfer wants in all, those of `held_grants` among them. A receiver that takes over the way
  // into its zone may be given as many beside those that it holds.
  uint32_t sources = 1;
  uint64_t received_mbit = 0;  // how fast its bytes came so far, in Mbit/s; 0: not known
  // Grants that this transfer has: their replicas are not offered to it once more.
  std::vector<std::string> held_grants;
  // Shared origins, by place: the one that this transfer reads, and those that it could not.
  std::string held_origin = {};
  std::vector<std::string> failed_origins = {};

  // The receiver takes the bytes from files that its own node imported, where it has such.
  bool ReadsOwnFiles() const { return required_lane.empty() || required_lane == kDiskLane; }
};

struct Grant {
  std::string grant_id;
  std::string artifact_id;
  std::string replica_id;
  std::string source_node;
  std::string receiver_node;
  Location destination;
  std::string lane;
  SteadyTime issued;
  SteadyTime expires;            // moved on by the receiver's heartbeats
  absl::Duration token_expires;  // to open the pull by, since the source's key was given; fixed
  std::string into_zone;         // the receiver's zone where the source is in another zone; else empty
  uint32_t slot_parts = 0;       // of one of the source's upload slots, kSlotParts: all of it
  uint32_t share = 0;            // among the replica's grants when it was issued: the lowest that was free
};

// A fresh grant with what its holder needs to use it.
struct OfferedGrant {
  Grant grant;
  NodeView source;
  ReplicaInfo replica;
  std::string source_key;  // signs the token
  absl::Duration ttl;
  // Which of the replica's receivers this one is, so that each can ask it for other chunks first.
  uint32_t share = 0;
  uint32_t shares = 1;
};

// A shared origin to be read by several receivers, each its own share of the chunks first.
struct SharedReading {
  Origin origin;
  uint32_t share = 0;
  uint32_t shares = 1;
};

struct GrantOffer {
  std::vector<OfferedGrant> granted;  // of different replicas, the best first
  // From now: when the transfer should ask for more sources, as fewer than it wants were there.
  absl::Duration look_again = absl::InfiniteDuration();
  std::string no_source_reason;  // when not granted
  std::vector<Origin> origins;   // files on live nodes, and shared objects
  // To be read beside what is granted: no node has the whole image.
  std::optional<SharedReading> shared;
  // When not granted: what may become a source, for people. Asking again is worth while after `retry_after`;
  // where that is zero, the time is not known.
  std::vector<std::string> waiting_for;
  absl::Duration retry_after;
  // When not granted, at most one of these. The first: only the files of an import can give the bytes;
  // have their node make a replica of them and say how that went (Transfers::NoteReading). The second: so it
  // may be, or the receiver's own files can; look at those (Directory::NoteOrigin) and ask again.
  std::optional<OriginToCheck> origin_to_read;
  std::optional<OriginToCheck> origin_to_check;
};

// How a grant ended; each ends exactly once.
enum class GrantEnd : uint8_t { kSucceeded, kFailed, kCancelled, kOvertaken, kExpired, kRevoked };
std::string_view GrantEndName(GrantEnd end);

struct EndedGrant {
  Grant grant;
  GrantEnd end = GrantEnd::kExpired;
};

}  // namespace tensorcast::global_store
