// Shared origins as sources. A fleet without any replica reads each chunk from the object store once: every
// receiver reads its own share and gets the rest from the others as they fill.
#include <algorithm>

#include "global_store/transfers/transfers.h"

namespace tensorcast::global_store {

void Transfers::OfferShared(const Asking& asking, GrantOffer& offer) {
  const GrantRequest& request = asking.request;
  const std::string& node_id = request.receiver.node_id;
  const auto readable = std::ranges::find_if(offer.origins, [&](const Origin& origin) {
    return IsShared(origin) && std::ranges::count(request.failed_origins, PlaceOf(origin)) == 0;
  });
  // From here on it leads to the bytes no more by an origin that it could not read, whatever it was told
  // before.
  if (!request.ReadsOwnFiles() || readable == offer.origins.end()) {
    return waits_.EndReads(request.artifact_id, node_id);
  }
  const SourceIndex::Scope* sources = inventory_.sources().Find(request.artifact_id);
  const bool has_source = asking.query.has_source || !offer.granted.empty();
  const bool whole_elsewhere = sources != nullptr && !sources->ready.empty();
  const bool reads = !request.held_origin.empty();
  if (!reads && whole_elsewhere && has_source && !asking.query.stalls) return;
  const uint32_t share = waits_.NoteReads(request.artifact_id, node_id, asking.now);
  // Beyond the shares each further reader would read what others do. But none waits that could read.
  if (reads || (share == Waits::kMaxReaders && has_source)) return;
  offer.shared = {.origin = *readable, .share = share % Waits::kMaxReaders, .shares = Waits::kMaxReaders};
}

}  // namespace tensorcast::global_store
