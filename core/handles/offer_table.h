// The memory that connected clients offer, until it is taken. Thread-safe. Internal to this folder.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/handles/handle_server.h"

namespace tensorcast {

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
