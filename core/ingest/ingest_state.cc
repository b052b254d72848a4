#include "core/ingest/ingest_state.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast {

// Chunks need a buffer exactly where the destination places them: bytes that are fetched straight to their
// place need none.
IngestState::IngestState(IngestPlan the_plan)
    : plan(std::move(the_plan)),
      what(absl::StrCat("ingest of ", plan.subject)),
      sources(plan.layout->chunk_count(), plan.chunks, plan.seed),
      slots(plan.destination->places()),
      idle(plan.peer_timeout) {}

// A failed ingest is not over while a fetch is in flight: until that fetch ends, its source may write to the
// destination's memory.
bool IngestState::IsOver() const { return sources.under_way() == 0 && (sources.all_done() || !failed.ok()); }

std::vector<Cancellation> IngestState::GiveUpSource(SourceInUse& source, absl::Status why, bool corrupt) {
  // Its chunks can be had from other sources now, so there may be something to ask for.
  idle.NoteSources(SteadyNow());
  slots.NoteChange();
  return sources.GiveUp(source, std::move(why), corrupt);
}

std::vector<Cancellation> IngestState::GiveUp(absl::Status why) {
  // The first reason stays.
  failed.Update(std::move(why));
  slots.NoteChange();
  return UnderWay();
}

// A question to the provider that runs now is cancelled as well, since nothing needs more sources any more.
std::vector<Cancellation> IngestState::UnderWay() const {
  std::vector<Cancellation> under_way = sources.UnderWay();
  if (asking.has_value()) under_way.push_back(*asking);
  return under_way;
}

void CancelAll(const std::vector<Cancellation>& fetches) {
  for (const Cancellation& fetch : fetches) fetch.Cancel();
}

}  // namespace tensorcast
