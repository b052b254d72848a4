#include "core/handles/ticket_table.h"

#include <utility>

#include "base/ids.h"
#include "base/steady_time.h"

namespace tensorcast {

std::string RandomToken() { return RandomHex(16); }

// All tickets live equally long, so the queue by expiry is in order by itself. (Two threads may be
// microseconds out of order, since `now` is read before the lock; the earlier ticket is then swept with the
// later one.) A ticket that was claimed stays in the queue until its time, and is then not found.
TicketTable::Issued TicketTable::Issue(Claim claim, SteadyTime now) {
  std::string ticket = RandomToken();
  const SteadyTime expiry = now + ttl_;
  absl::MutexLock lock(&mutex_);
  const bool was_empty = by_expiry_.empty();
  by_expiry_.emplace_back(expiry, ticket);
  entries_.emplace(ticket, Entry{std::move(claim), expiry});
  return {std::move(ticket), was_empty};
}

std::optional<Claim> TicketTable::Take(std::string_view ticket, SteadyTime now) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(ticket);
  // Expired ones are not claimed, even before they are swept; used and unknown ones look the same to a
  // guesser.
  if (it == entries_.end() || it->second.expiry <= now) return std::nullopt;
  std::optional<Claim> claim = std::move(it->second.claim);
  entries_.erase(it);
  return claim;
}

std::vector<Claim> TicketTable::TakeExpired(SteadyTime now) {
  // Given to the caller and not ended here: the end of a claim calls its owner, which may not happen under
  // the lock.
  std::vector<Claim> expired;
  absl::MutexLock lock(&mutex_);
  while (!by_expiry_.empty() && by_expiry_.front().first <= now) {
    const auto it = entries_.find(by_expiry_.front().second);
    if (it != entries_.end()) {
      expired.push_back(std::move(it->second.claim));
      entries_.erase(it);
    }
    by_expiry_.pop_front();
  }
  return expired;
}

SteadyTime TicketTable::next_expiry() const {
  absl::MutexLock lock(&mutex_);
  return by_expiry_.empty() ? SteadyTime::InfiniteFuture() : by_expiry_.front().first;
}

int TicketTable::size() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(entries_.size());
}

std::array<int, 3> TicketTable::Count() const {
  std::array<int, 3> counts{};
  absl::MutexLock lock(&mutex_);
  for (const auto& [ticket, entry] : entries_) ++counts[entry.claim.handles.memory.index()];
  return counts;
}

void FencedReplicas::Add(std::string_view replica_id, absl::Status why) {
  absl::MutexLock lock(&mutex_);
  replicas_.emplace_back(replica_id, std::move(why));
  if (replicas_.size() > kMax) replicas_.pop_front();
}

absl::Status FencedReplicas::Check(std::string_view replica_id) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [fenced, why] : replicas_) {
    if (fenced == replica_id) return why;
  }
  return absl::OkStatus();
}

std::string OfferTable::Add(Offer offer) {
  std::string token = RandomToken();
  absl::MutexLock lock(&mutex_);
  offers_.emplace(token, std::move(offer));
  return token;
}

std::optional<Offer> OfferTable::Take(std::string_view token) {
  absl::MutexLock lock(&mutex_);
  const auto it = offers_.find(token);
  if (it == offers_.end()) return std::nullopt;
  std::optional<Offer> offer = std::move(it->second);
  offers_.erase(it);
  return offer;
}

bool OfferTable::Contains(std::string_view token) const {
  absl::MutexLock lock(&mutex_);
  return offers_.contains(token);
}

}  // namespace tensorcast
