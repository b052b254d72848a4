#include "core/handles/offer_table.h"

#include <utility>

#include "core/handles/ticket_table.h"

namespace tensorcast {

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
