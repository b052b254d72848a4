// A pull by another daemon, as the one that serves it sees it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace tensorcast::daemon {

struct ServeReport {
  std::string transport_id;
  std::string artifact_id;
  std::string replica_id;
  std::string receiver_node_id;
  std::string lane;
  uint64_t bytes = 0;
  uint64_t requests = 0;
  absl::Time opened;
  absl::Time first_request;                    // the epoch: none came yet
  absl::Time last_completion;                  // of a request; the epoch likewise
  absl::Time closed = absl::InfiniteFuture();  // while it is open
  bool in_place = true;                        // sent from where the replica lies
  absl::Duration reading =
      absl::ZeroDuration();  // else: from a GPU or a disk into buffers, summed over reads
  std::string error;         // why it ended, when not because the receiver had all that it wanted
};

}  // namespace tensorcast::daemon
