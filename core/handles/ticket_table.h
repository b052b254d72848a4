// The daemon's values behind tokens: claims of tickets that were issued and not yet claimed, and offers that
// were not yet taken. Removed values are returned to the caller, so that holds are never released under a
// lock.
//
// Thread-safe. Internal to this folder.
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
    bool was_empty = false;  // no other ticket was waiting to expire
  };
  Issued Issue(Claim claim, SteadyTime now);

  // The claim of a ticket that is neither used nor expired.
  std::optional<Claim> Take(std::string_view ticket, SteadyTime now);

  // Removes and returns the tickets that have expired.
  std::vector<Claim> TakeExpired(SteadyTime now);

  // When the next one expires; InfiniteFuture when there is none.
  SteadyTime next_expiry() const;
  int size() const;
  // By kind of memory, as HandleCounts has them.
  std::array<int, 3> Count() const;

 private:
  struct Entry {
    Claim claim;
    SteadyTime expiry;
  };

  const absl::Duration ttl_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  // In the order of their expiry, since all live equally long; used ones are skipped when they come up.
  std::deque<std::pair<SteadyTime, std::string>> by_expiry_ ABSL_GUARDED_BY(mutex_);
};

// Replicas with damaged bytes: no ticket gives a claim on them any more.
class FencedReplicas {
 public:
  // `why` is never OK. The last kMax of them are remembered, for longer than any ticket lives.
  void Add(std::string_view replica_id, absl::Status why);
  absl::Status Check(std::string_view replica_id) const;

 private:
  static constexpr size_t kMax = 1024;

  mutable absl::Mutex mutex_;
  std::deque<std::pair<std::string, absl::Status>> replicas_ ABSL_GUARDED_BY(mutex_);
};

// The memory that connected clients offer, until it is taken.
class OfferTable {
 public:
  // Returns the token that names the offer from now on.
  std::string Add(Offer offer);
  std::optional<Offer> Take(std::string_view token);
  bool Contains(std::string_view token) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, Offer, std::less<>> offers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
