#include "daemon/sources/source_failures.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "daemon/sources/origin_files.h"

namespace tensorcast::daemon {
namespace {

// "node-b (tcp)", "global store".
std::string NameOf(const SourceInfo& source) {
  return source.lane.empty() ? source.name : absl::StrCat(source.name, " (", source.lane, ")");
}

// What a failure of one source means for the request. Files of the import that went or changed are not
// sources any more, and bytes that cannot be read are lost. Anything else (a peer's own deadline or pool, no
// descriptor left, a disk that is away, a global store that does not answer) is of this moment.
absl::StatusCode CodeForRequest(const SourceFailure& failure) {
  if (failure.corrupt) return absl::StatusCode::kDataLoss;
  const bool origin = failure.source.type == SourceType::kDisk && failure.source.grant_id.empty();
  if (origin && absl::IsDataLoss(failure.status)) return absl::StatusCode::kDataLoss;
  if (origin && IsAboutOriginFiles(failure.status)) return absl::StatusCode::kNotFound;
  return absl::StatusCode::kUnavailable;
}

// Of the failures of a request the one to answer it with: what may be otherwise in a moment is worth another
// request, wrong bytes are worse than files that went. Null: nothing failed.
const SourceFailure* Decisive(std::span<const SourceFailure> failures) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kDataLoss, absl::StatusCode::kNotFound}) {
    const auto found = std::ranges::find(failures, code, CodeForRequest);
    if (found != failures.end()) return &*found;
  }
  return nullptr;
}

}  // namespace

// A source that fails again and again is one entry, so the error stays short. Wrong bytes keep an entry of
// their own: a later failure of another kind must not hide them.
void SourceFailures::Note(const SourceFailure& failure) {
  const auto known = std::ranges::find_if(failures_, [&failure](const SourceFailure& other) {
    return NameOf(other.source) == NameOf(failure.source) && other.corrupt == failure.corrupt;
  });
  if (known == failures_.end()) {
    failures_.push_back(failure);
  } else {
    *known = failure;
  }
}

void SourceFailures::NoteUnopened(SourceFailure failure) {
  Note(failure);
  unopened_.push_back(std::move(failure));
}

void SourceFailures::NoteUnopenedLanes(std::vector<SourceFailure> lanes) {
  std::ranges::move(lanes, std::back_inserter(unopened_));
}

void SourceFailures::NoteAnswer(const v1::RequestReplicaTransportResponse& answer) {
  waited_for_.assign(answer.waiting_for().begin(), answer.waiting_for().end());
  no_source_reason_ = answer.no_source_reason();
}

std::string SourceFailures::NoteWait() {
  waited_in_vain_ = waited_for_;
  return absl::StrJoin(waited_for_, ", ");
}

// The decisive failure's status comes last, behind what else is known.
absl::Status SourceFailures::NothingLeft(const std::string& artifact_id, const std::string& lane) const {
  std::string message = absl::StrCat("bring ", artifact_id, ": no source is left");
  if (!lane.empty()) absl::StrAppend(&message, " on the lane ", lane);
  if (!no_source_reason_.empty()) absl::StrAppend(&message, ": ", no_source_reason_);
  if (!waited_for_.empty()) absl::StrAppend(&message, "; out of reach: ", absl::StrJoin(waited_for_, ", "));
  if (!waited_in_vain_.empty()) {
    absl::StrAppend(&message, "; waited in vain for ", absl::StrJoin(waited_in_vain_, ", "));
  }
  const SourceFailure* decisive = Decisive(failures_);
  for (const SourceFailure& failure : failures_) {
    if (&failure == decisive) continue;
    absl::StrAppend(&message, "; ", NameOf(failure.source), ": ", failure.status.message());
  }
  const bool waited = !waited_in_vain_.empty() || !waited_for_.empty();
  if (decisive == nullptr) {
    if (waited) return absl::UnavailableError(absl::StrCat(message, "; start these nodes, or try again"));
    return absl::NotFoundError(absl::StrCat(message, "; put the artifact again"));
  }
  absl::StrAppend(&message, "; ", NameOf(decisive->source));
  const absl::StatusCode code = waited ? absl::StatusCode::kUnavailable : CodeForRequest(*decisive);
  // With what it carries, such as that the global store is away for long: that is not tried again.
  const absl::Status whole = Annotate(decisive->status, message);
  return whole.code() == code ? whole : absl::Status(code, whole.message());
}

}  // namespace tensorcast::daemon
