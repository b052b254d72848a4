// The claims behind tickets that no client has used, and the offers that no put has taken. Removed values are
// returned to the caller, so no Claim::hold is released under a lock. Thread-safe. Internal to this folder.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/handles/handles.h"

namespace tensorcast {

// 128 random bits in lower-case hexadecimal.
std::string RandomToken();

class TicketTable {
 public:
  explicit TicketTable(absl::Duration ttl) : ttl_(ttl) {}

  struct Issued {
    std::string ticket;
    bool was_empty = false;  // this ticket is the next one to expire
  };
  Issued Issue(Claim claim, SteadyTime now);

  // Removes and returns the claim of a ticket; nullopt for a ticket that is used, expired or unknown.
  std::optional<Claim> Take(std::string_view ticket, SteadyTime now);

  // Removes and returns the tickets that have expired.
  std::vector<Claim> TakeExpired(SteadyTime now);

  // The time at which the next ticket expires; InfiniteFuture if there is none.
  SteadyTime next_expiry() const;
  int size() const;
  // The numbers of tickets by kind of memory, in the order of HandleCounts.
  std::array<int, 3> Count() const;

 private:
  struct Entry {
    Claim claim;
    SteadyTime expiry;
  };

  const absl::Duration ttl_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  // In the order of expiry, because all tickets have the same ttl. Used tickets stay until their expiry.
  std::deque<std::pair<SteadyTime, std::string>> by_expiry_ ABSL_GUARDED_BY(mutex_);
};

// Replicas with damaged bytes, for which tickets are refused.
class FencedReplicas {
 public:
  // `why` is not OK. Remembers only the last kMax replicas; the tickets of earlier replicas have expired.
  void Add(std::string_view replica_id, absl::Status why);
  // The status of Add for this replica; OK if it is not fenced.
  absl::Status Check(std::string_view replica_id) const;

 private:
  static constexpr size_t kMax = 1024;

  mutable absl::Mutex mutex_;
  std::deque<std::pair<std::string, absl::Status>> replicas_ ABSL_GUARDED_BY(mutex_);
};

// The offers of connected clients that no put has taken.
class OfferTable {
 public:
  // Returns a new token for the offer.
  std::string Add(Offer offer);
  // Removes and returns an offer; nullopt for an unknown token.
  std::optional<Offer> Take(std::string_view token);
  bool Contains(std::string_view token) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, Offer, std::less<>> offers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
