#include "daemon/sources/offered_grants.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/replica/transfer_report.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

// While no source answers, others are looked for after so long; each time after twice as long.
constexpr absl::Duration kLookElsewhere = absl::Milliseconds(250);

// Before a source that delivered nothing is asked again; longer each time.
constexpr absl::Duration kFirstPause = absl::Milliseconds(250);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

}  // namespace

void OfferedGrants::Add(v1::TransportGrant grant) { ids_.push_back(held_.Add(std::move(grant))); }

bool OfferedGrants::WereAllTried() const {
  return std::ranges::all_of(ids_, [this](const auto& id) { return requests_.WasTried(ReplicaOf(id)); });
}

bool OfferedGrants::AllRest() const {
  return std::ranges::all_of(ids_, [this](const auto& id) { return held_.Rests(id); });
}

void OfferedGrants::EndResting() {
  for (const std::string& id : std::exchange(ids_, {})) {
    if (!held_.Rests(id)) {
      ids_.push_back(id);
      continue;
    }
    requests_.NoteRests(ReplicaOf(id));
    held_.End(id, absl::CancelledError("the source was overtaken recently, and another source is available"));
  }
}

// The best is opened alone where it is a whole replica of this host: of several the one that opens first
// would be read, which need not be the best.
absl::Status OfferedGrants::OpenBest(const RequestContext& context, const WaitObserver& observer) {
  const auto fruitless = [this](const std::string& id) { return requests_.Fruitless(ReplicaOf(id)); };
  const auto is_fresh = [&](const std::string& id) { return fruitless(id) == 0 && !held_.Rests(id); };
  if (std::ranges::any_of(ids_, is_fresh)) EndResting();
  bool alone = false;
  for (const std::string& id : std::exchange(ids_, {})) {
    if (alone || fruitless(id) > 0) {
      ids_.push_back(id);
      continue;
    }
    alone = !held_.IsOpening() && IsWholeOnThisHost(id);
    Open(context, id);
  }
  if (held_.IsOpening() || ids_.empty()) return absl::OkStatus();
  const std::string first = ids_.front();
  TC_RETURN_IF_ERROR(PauseBefore(context, first, observer));
  ids_.pop_front();
  Open(context, first);
  return absl::OkStatus();
}

void OfferedGrants::OpenAll(const RequestContext& context) {
  for (const std::string& id : std::exchange(ids_, {})) Open(context, id);
}

void OfferedGrants::Open(const RequestContext& context, const std::string& grant_id) {
  if (!held_.IsOpening()) {
    look_elsewhere_after_ = kLookElsewhere;
    look_elsewhere_at_ = SteadyNow() + look_elsewhere_after_;
  }
  held_.Open(context, grant_id);
}

// The pause grows each time, so that a cluster that hangs is not asked more and more often.
void OfferedGrants::NoteLookedElsewhere() {
  look_elsewhere_after_ *= 2;
  look_elsewhere_at_ = SteadyNow() + look_elsewhere_after_;
}

// Before one that gave nothing when it was asked last is asked again.
absl::Status OfferedGrants::PauseBefore(const RequestContext& context, const std::string& grant_id,
                                        const WaitObserver& observer) {
  const int fruitless = requests_.Fruitless(ReplicaOf(grant_id));
  const std::string& name = held_.all().at(grant_id).grant.source().name();
  observer(absl::StrCat(name, ", which sent no bytes before"));
  const absl::Duration pause = std::min(kFirstPause * std::exp2(fruitless - 1), kLongestPause);
  const absl::Status paused = rpc::SleepFor(context, pause, absl::StrCat("ask source ", name, " again"));
  if (paused.ok()) return paused;
  ids_.clear();
  held_.EndAll(paused);
  return paused;
}

bool OfferedGrants::IsWholeOnThisHost(const std::string& grant_id) const {
  const v1::TransportGrant& grant = held_.all().at(grant_id).grant;
  return grant.lane() == kLocalLane && grant.replica().state() == v1::REPLICA_STATE_READY;
}

std::string OfferedGrants::ReplicaOf(const std::string& grant_id) const {
  return held_.all().at(grant_id).replica_name();
}

}  // namespace tensorcast::daemon
