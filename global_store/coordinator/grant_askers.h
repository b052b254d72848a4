// Remembers the request of each live grant, so that a repeated request gets the same grants again.
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
  // Counts and remembers the offer's grants. Empty `request`: the request cannot be repeated.
  void NoteGranted(std::string_view request, const GrantOffer& offer);
  // The offer for a repeated `request`, with the grants that still live; nullopt: no grant lives.
  std::optional<GrantOffer> RepeatedOffer(std::string_view request, const Transfers& transfers,
                                          SteadyTime now) const;
  // Counts and logs the end of a grant, with the trace of the grant's request. Forgets the grant.
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
