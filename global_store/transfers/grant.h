// Grants (permissions to pull a replica), the requests for them, and the answers. Plain values.
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
  // Replicas that the transfer gave up, or that it holds and that deliver nothing now. They are offered
  // only if no other source is left.
  std::vector<std::string> slow_replicas;
  absl::Duration timeout;  // the max duration that the receiver expects for the transfer; zero: unknown
  std::string required_lane;
  // Number of sources that the transfer wants, including `held_grants`. If the receiver becomes the node
  // that pulls into its zone, `held_grants` do not count.
  uint32_t sources = 1;
  uint64_t received_mbit = 0;  // rate of the transfer so far, in Mbit/s; 0: not known
  // Grants that the transfer holds. Their replicas are not offered to the transfer again.
  std::vector<std::string> held_grants;
  // The place of the shared origin that the transfer reads (empty: none), and the places of the origins that
  // it could not read.
  std::string held_origin = {};
  std::vector<std::string> failed_origins = {};
  // The id of the receiver's replica if the transfer brings all its chunks and other nodes may already read
  // it; else empty.
  std::string fills = {};

  // Whether the receiver may read files that its own node imported.
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
  SteadyTime expires;            // extended by the receiver's heartbeats
  absl::Duration token_expires;  // age of the source's grant key at which the token ends
  std::string into_zone;         // the receiver's zone if the source is in another zone; else empty
  uint32_t slot_parts = 0;       // used parts of the source's upload slots; kSlotParts: one slot
  uint32_t share = 0;            // number among the replica's grants: the lowest number that was free
};

// A new grant, and the values that the receiver needs to use it.
struct OfferedGrant {
  Grant grant;
  NodeView source;
  ReplicaInfo replica;
  std::string source_key;  // signs the token
  absl::Duration ttl;
  // This receiver is number `share` (from 0) of the replica's `shares` receivers. Each receiver begins with
  // different chunks.
  uint32_t share = 0;
  uint32_t shares = 1;
};

// A shared origin that several receivers read. Each receiver first reads its own share of the chunks.
struct SharedReading {
  Origin origin;
  uint32_t share = 0;
  uint32_t shares = 1;
};

struct GrantOffer {
  std::vector<OfferedGrant> granted;  // of different replicas, best first
  // The pause before the transfer should ask for more sources; infinite: it need not ask.
  absl::Duration look_again = absl::InfiniteDuration();
  std::string no_source_reason;  // when not granted
  std::vector<Origin> origins;   // files on live nodes, and shared objects
  // An origin to read in parallel with the granted sources; unset: none.
  std::optional<SharedReading> shared;
  // When not granted, for people: the nodes that may become a source. The receiver asks again after
  // `retry_after`; zero: the time is not known.
  std::vector<std::string> waiting_for;
  absl::Duration retry_after;
  // When not granted, at most one of the next two fields is set. origin_to_read: ask the node of this origin
  // to make a replica from its files, then report the outcome (Transfers::NoteReading). origin_to_check:
  // check this origin, record the finding (Directory::NoteOrigin), then repeat the request.
  std::optional<OriginToCheck> origin_to_read;
  std::optional<OriginToCheck> origin_to_check;
};

// How a grant ended. Each grant ends exactly once.
enum class GrantEnd : uint8_t { kSucceeded, kFailed, kCancelled, kOvertaken, kExpired, kRevoked };
std::string_view GrantEndName(GrantEnd end);

struct EndedGrant {
  Grant grant;
  GrantEnd end = GrantEnd::kExpired;
};

}  // namespace tensorcast::global_store
