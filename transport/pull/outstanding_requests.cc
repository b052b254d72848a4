#include "transport/pull/outstanding_requests.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast::transport::pull {
namespace {

// The pieces that have arrived do not overlap each other, so only the neighbours on both sides can.
bool Overlaps(const std::map<uint64_t, uint64_t>& arrived, uint64_t offset, uint64_t end) {
  const auto next = arrived.lower_bound(offset);
  return (next != arrived.end() && next->first < end) ||
         (next != arrived.begin() && std::prev(next)->second > offset);
}

}  // namespace

absl::Status SourceBroke(std::string_view what) {
  return absl::InternalError(
      absl::StrCat("the source broke the pull protocol with ", what, "; run one release on both nodes"));
}

void OutstandingRequests::Add(uint64_t id, const RequestedPart& part, bool remote_read) {
  const uint64_t size = part.destination.size();
  bytes_ += size;
  // A remote read ends as a whole: no DATA is due for it.
  requests_.emplace(id,
                    Outstanding{.part = part, .due = remote_read ? 0 : size, .left = size, .arrived = {}});
}

absl::Status OutstandingRequests::Book(const Data& piece) {
  const auto found = requests_.find(piece.request_id);
  if (found == requests_.end()) return SourceBroke("a piece that was not asked for");
  Outstanding& request = found->second;
  // The numbers are the source's: `end` counts only once the offset was found to lie in the request.
  const uint64_t first = request.part.offset;
  const uint64_t size = request.part.destination.size();
  const uint64_t next = first + (size - request.due);
  const uint64_t end = piece.offset + piece.bytes;
  const bool fits = keeps_order_ ? piece.offset == next
                                 : piece.offset >= first && piece.offset - first <= size &&
                                       piece.bytes <= size - (piece.offset - first) &&
                                       !Overlaps(request.arrived, piece.offset, end);
  if (!fits || piece.bytes > request.due) {
    return SourceBroke(absl::StrCat("a piece of ", piece.bytes, " bytes at offset ", piece.offset, ", where ",
                                    request.due, " bytes at offset ", next, " are due"));
  }
  // Where pieces may come in any order, each byte must come once all the same.
  if (!keeps_order_) request.arrived.emplace(piece.offset, end);
  request.due -= piece.bytes;
  return absl::OkStatus();
}

void OutstandingRequests::Moved(uint64_t id, uint64_t bytes) {
  const auto found = requests_.find(id);
  bytes_ -= bytes;
  found->second.left -= bytes;
  if (found->second.left == 0) requests_.erase(found);
}

// Pieces that are being received end the rest.
void OutstandingRequests::End(uint64_t id) { Moved(id, std::exchange(requests_.at(id).due, 0)); }

bool OutstandingRequests::IsDue(uint64_t id) const {
  const auto found = requests_.find(id);
  return found != requests_.end() && found->second.due > 0;
}

std::vector<uint64_t> OutstandingRequests::DueOf(FetchId fetch) const {
  std::vector<uint64_t> due;
  for (const auto& [id, request] : requests_) {
    if (request.part.fetch == fetch && request.due > 0) due.push_back(id);
  }
  return due;
}

}  // namespace tensorcast::transport::pull
