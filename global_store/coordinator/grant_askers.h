// The requests for the live grants. If the answer to a request was lost, the repeated request gets the same
// grants again: other grants would count against their sources until they expire. When a grant ends, the log
// line carries the trace of its request.
//
// No errors. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/steady_time.h"
#include "base/trace_context.h"
#include "global_store/transfers/transfers.h"

namespace tensorcast::global_store {

class GrantAskers {
 public:
  // Counts the grants of the offer, and remembers them. `request` may be empty: then the request cannot be
  // repeated.
  void NoteGranted(std::string_view request, const GrantOffer& offer);
  // The offer again, with the grants of the request that still live; nullopt when none of them lives.
  std::optional<GrantOffer> RepeatedOffer(std::string_view request, const Transfers& transfers,
                                          SteadyTime now) const;
  // Counts and logs a grant that ended, and forgets it.
  void NoteEnded(const EndedGrant& ended);

 private:
  struct Asker {
    std::string request;  // may be empty
    TraceContext trace;
  };
  void Forget(const std::string& request, const std::string& grant_id);

  // Requests with a live grant, and the inverse.
  absl::flat_hash_map<std::string, std::vector<std::string>> grants_of_request_;
  absl::flat_hash_map<std::string, Asker> asker_of_grant_;
};

}  // namespace tensorcast::global_store
