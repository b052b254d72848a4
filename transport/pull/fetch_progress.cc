#include "transport/pull/fetch_progress.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace tensorcast::transport::pull {

// Within one span of the destination.
RequestedPart FetchProgress::NextPart(uint64_t max_bytes) {
  while (fetch_.destination[span_].empty()) ++span_;
  HostSpan& span = fetch_.destination[span_];
  const HostSpan destination = span.first(std::min<uint64_t>(max_bytes, span.size()));
  span = span.subspan(destination.size());
  const uint64_t offset = fetch_.offset + requested_;
  requested_ += destination.size();
  return {.fetch = fetch_.id, .offset = offset, .destination = destination};
}

// Digested as long as pieces come in the order of the image. The first one that does not ends that, and the
// fetch has no digest: the engine computes it.
void FetchProgress::Put(uint64_t offset, HostSpan place, ConstHostSpan held) {
  const bool in_order = digested_to_ == offset;
  if (in_order) digested_to_ += place.size();
  if (in_order && !held.empty()) {
    digest_.UpdateAndCopy(place.data(), held);
  } else if (in_order) {
    digest_.Update(place);
  } else if (!held.empty()) {
    std::memcpy(place.data(), held.data(), held.size());
  }
}

FetchResult FetchProgress::Result() const {
  if (failed()) return failure_;
  // Pieces of several requests of one fetch may come in turn, and are then not digested here.
  const bool digested = digested_to_ == fetch_.offset + fetch_.bytes;
  return digested ? std::optional<Digest>(digest_.Finish()) : std::nullopt;
}

}  // namespace tensorcast::transport::pull
