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
  // Replicas that the transfer gave up before, or that it holds and that deliver nothing now. They are
  // offered only when no other source is left.
  std::vector<std::string> slow_replicas;
  absl::Duration timeout;  // the max duration of the transfer that the receiver expects; zero: unknown
  std::string required_lane;
  // The number of sources that the transfer wants, including `held_grants`. A receiver that takes over the
  // pulls into its zone may get this many in addition to those that it holds.
  uint32_t sources = 1;
  uint64_t received_mbit = 0;  // rate of the transfer so far, in Mbit/s; 0: not known
  // Grants that this transfer holds: their replicas are not offered to it again.
  std::vector<std::string> held_grants;
  // Shared origins, by place: the one that this transfer reads, and those that it could not read.
  std::string held_origin = {};
  std::vector<std::string> failed_origins = {};
  // The id of the receiver's replica that the transfer fills completely; empty: other nodes cannot read it
  // yet.
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
  absl::Duration token_expires;  // of the token that opens the pull; counted from grant_key_given
  std::string into_zone;         // the receiver's zone if the source is in another zone; else empty
  uint32_t slot_parts = 0;       // parts of an upload slot of the source; kSlotParts: a whole slot
  uint32_t share = 0;            // the lowest free number among the replica's grants when this one was issued
};

// A new grant, and the values that the receiver needs to use it.
struct OfferedGrant {
  Grant grant;
  NodeView source;
  ReplicaInfo replica;
  std::string source_key;  // signs the token
  absl::Duration ttl;
  // This receiver is number `share`, from 0, of the replica's `shares` receivers. Each of these receivers
  // begins with different chunks.
  uint32_t share = 0;
  uint32_t shares = 1;
};

// A shared origin that several receivers read; each first reads its own share of the chunks.
struct SharedReading {
  Origin origin;
  uint32_t share = 0;
  uint32_t shares = 1;
};

struct GrantOffer {
  std::vector<OfferedGrant> granted;  // of different replicas, best first
  // The pause before the transfer should ask for more sources. Set if it got fewer than it wants.
  absl::Duration look_again = absl::InfiniteDuration();
  std::string no_source_reason;  // when not granted
  std::vector<Origin> origins;   // files on live nodes, and shared objects
  // Set if the transfer should read this origin in parallel with the granted sources, because no node has the
  // whole image.
  std::optional<SharedReading> shared;
  // When not granted, for people: the nodes that may become a source. Ask again after `retry_after`; zero:
  // the time is not known.
  std::vector<std::string> waiting_for;
  absl::Duration retry_after;
  // When not granted, at most one of these is set. origin_to_read: only the files of an import have the
  // bytes; ask their node to make a replica from them, and report the outcome (Transfers::NoteReading).
  // origin_to_check: these files, or the receiver's own, may have the bytes; check them, record the finding
  // (Directory::NoteOrigin), and ask again.
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
