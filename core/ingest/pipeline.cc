#include "core/ingest/pipeline.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/synchronization/mutex.h"
#include "core/device/numa.h"
#include "core/ingest/chunk_picker.h"

namespace tensorcast {
namespace {

// More slots than are fetching, so that sources are kept busy while chunks are verified and placed.
constexpr int kSlotsBesideFetches = 2;
// Slots for the chunks of sources that fetch without a slot.
constexpr int kSlotsForArrivals = 4;
// A slot that waits for chunks on the way to their place.
constexpr int kSlotsForPlacing = 1;
constexpr int kMaxSlots = 64;

}  // namespace

IngestPipeline::IngestPipeline(IngestPlan plan)
    : state_(std::move(plan)),
      chunks_(&state_),
      control_(&state_, &chunks_.paths(), [this] { StartSlots(); }) {}

// No slot exists at first: Run's thread asks the provider, and StartSlots makes slots after each answer, as
// many as the sources can use. The threads stay until the ingest is over.
IngestOutcome IngestPipeline::Run() {
  {
    // It ends with this block, so that no cancellation comes to the state after the slots have ended.
    const Cancellation::Registration cancelled =
        state_.plan.context().cancellation.OnCancel([this] { CancelFetches(); });
    TakeSteps(/*in_control=*/true);
    for (std::thread& slot : slots_) slot.join();
  }
  IngestControl::Left left = control_.End();
  absl::MutexLock lock(&state_.mutex);
  return {.status = state_.failed,
          .digests = chunks_.TakeDigests(),
          .changes = std::move(left.changes),
          .untold = std::move(left.untold),
          .refetched_chunks = state_.sources.refetched(),
          .reassigned_chunks = state_.reassigned,
          .verified_chunks = state_.verified};
}

void IngestPipeline::TakeSteps(bool in_control) {
  while (const Step step = NextStep(in_control)) step();
}

// Everything that can be done is looked for under one hold of the lock, and the wait begins under the same
// one: so nothing that happens meanwhile is missed.
IngestPipeline::Step IngestPipeline::NextStep(bool in_control) {
  while (true) {
    const RequestContext context = state_.plan.context();
    const absl::Status wanted = context.Check(state_.what);
    absl::MutexLock lock(&state_.mutex);
    // The context was looked at without the lock: a cancellation since then is found in the next round.
    if (wanted.ok() && cancelled_) continue;
    // Where all chunks are on their way, the image may still become whole.
    if (!wanted.ok() && state_.failed.ok() && state_.sources.missing() > 0) {
      return [fetches = state_.GiveUp(wanted)] { CancelAll(fetches); };
    }
    if (in_control) {
      if (Step step = control_.RetireStep(); step != nullptr) return step;
    }
    if (state_.IsOver()) {
      // The provider is still being asked for more, which nothing needs.
      if (!state_.asking.has_value()) return nullptr;
      return [asking = *std::exchange(state_.asking, std::nullopt)] { asking.Cancel(); };
    }
    const SteadyTime now = SteadyNow();
    if (std::vector<Cancellation> overdue = LookAgain(now); !overdue.empty()) {
      return [overdue] { CancelAll(overdue); };
    }
    if (in_control) {
      if (Step step = control_.NextStep(now); step != nullptr) return step;
    }
    if (!in_control || ControlIsSlot()) {
      if (Step step = SlotStep(now); step != nullptr) return step;
    }
    AwaitChange(in_control, context);
  }
}

// A thread sleeps until its kind is to wake (SlotScheduler) or its time has come. Sleep clears the flags
// under the same hold of the lock in which nothing was found to do.
void IngestPipeline::AwaitChange(bool in_control, const RequestContext& context) {
  const bool as_slot = !in_control || ControlIsSlot();
  auto may_go_on = [this, in_control, as_slot]() ABSL_SHARED_LOCKS_REQUIRED(state_.mutex) {
    return state_.slots.MayWake(in_control, as_slot);
  };
  state_.slots.Sleep(in_control, as_slot);
  // What comes by time alone is for control; while the provider keeps control busy, it is for the slots.
  SteadyTime until = SteadyTime::InfiniteFuture();
  if (in_control) {
    until = NextControl(context);
  } else if (state_.asking.has_value()) {
    until = SteadyNow() + ChunkPicker::kLookEvery;
  }
  state_.mutex.AwaitWithTimeout(absl::Condition(&may_go_on), TimeLeft(until));
}

// The deadline ends an ingest only while chunks are missing: chunks on their way are awaited (NextStep).
SteadyTime IngestPipeline::NextControl(const RequestContext& context) const {
  if (!state_.failed.ok()) return SteadyTime::InfiniteFuture();
  const SteadyTime end = state_.sources.missing() > 0 ? context.deadline : SteadyTime::InfiniteFuture();
  return state_.sources.in_use() == 0 ? end : std::min({end, next_look_, control_.NextTime()});
}

IngestPipeline::Step IngestPipeline::SlotStep(SteadyTime now) {
  SlotScheduler& slots = state_.slots;
  // What is nearest to its end comes first: that gives buffers back, and lets others read the chunk soon.
  if (FetchPtr fetch = slots.TakeArrived()) return [this, fetch] { chunks_.Arrived(fetch); };
  if (FetchPtr fetch = slots.TakeToAwait()) return [this, fetch] { chunks_.AwaitPlace(fetch); };
  if (!state_.failed.ok()) return nullptr;
  if (FetchPtr fetch = chunks_.Take(now, started_slots_ + (ControlIsSlot() ? 1 : 0))) {
    return [this, fetch] { chunks_.Begin(fetch); };
  }
  // Nothing to take and nothing under way: the ingest waits for its sources. Control has to say so, and has
  // to give the sources up after a while.
  slots.Took(/*any=*/false);
  if (state_.sources.under_way() == 0 && state_.sources.in_use() > 0 && !state_.idle.idle()) {
    state_.idle.NoteNothing(now);
    slots.WakeControl();
  }
  return nullptr;
}

// What a source does not give now it may give after a while, and what it has not given after a while may be
// had from another.
std::vector<Cancellation> IngestPipeline::LookAgain(SteadyTime now) {
  if (now < next_look_ || !state_.failed.ok()) return {};
  next_look_ = now + ChunkPicker::kLookEvery;
  state_.slots.NoteMore();
  if (state_.sources.under_way() == 0 || !state_.slots.all_with_sources()) {
    stall_.Reset();
  } else {
    stall_.Note(state_.sources.fetched(), now);
    if (!state_.asking.has_value() && stall_.TakeStall(now)) control_.NoteStall();
  }
  if (state_.sources.in_use() < 2) return {};
  return state_.sources.TakeBackOverdue(now);
}

int IngestPipeline::SlotsWanted() const {
  int fetching = 0;
  int for_arrivals = 0;
  for (const std::unique_ptr<SourceInUse>& source : state_.sources.sources()) {
    fetching += source->blocks ? source->max_fetches : 0;
    for_arrivals = source->blocks ? for_arrivals : kSlotsForArrivals;
  }
  // More slots than chunks that are left would find nothing to do.
  const uint32_t unfinished = state_.sources.missing() + state_.sources.under_way();
  const int useful = static_cast<int>(std::min<uint32_t>(unfinished, kMaxSlots));
  const Destination& destination = *state_.plan.destination;
  const int for_placing = destination.places() ? kSlotsForPlacing : 0;
  const int wanted = kSlotsBesideFetches + fetching + for_arrivals + for_placing;
  // Run's thread is one of them, where it can be.
  return std::min({wanted, useful, destination.max_chunks()}) - (control_.IsAlone() ? 1 : 0);
}

// Only Run's thread adds slots, so `slots_` needs no lock. Fewer threads than wanted only make the ingest
// slower; with none, Run's thread is the slot (ControlIsSlot).
void IngestPipeline::StartSlots() {
  int wanted = 0;
  {
    absl::MutexLock lock(&state_.mutex);
    wanted = SlotsWanted();
  }
  try {
    while (static_cast<int>(slots_.size()) < wanted) {
      slots_.emplace_back([this] {
        const NearNumaNode near(state_.plan.numa_node);
        TakeSteps(/*in_control=*/false);
      });
    }
  } catch (const std::system_error& error) {
    LOG(WARNING) << state_.what << ": the transfer runs on " << slots_.size() + 1 << " threads instead of "
                 << wanted + 1 << " (" << error.what() << "); raise the limit of threads (`ulimit -u`)";
  }
  absl::MutexLock lock(&state_.mutex);
  started_slots_ = static_cast<int>(slots_.size());
}

// On the thread that cancels, at any time during Run. The fetches are cancelled here; that the ingest fails
// is found by the next thread that looks (NextStep), since `cancelled_` makes it check its context again.
void IngestPipeline::CancelFetches() {
  std::vector<Cancellation> fetches;
  {
    absl::MutexLock lock(&state_.mutex);
    cancelled_ = true;
    fetches = state_.UnderWay();
    state_.slots.NoteChange();
  }
  CancelAll(fetches);
}

}  // namespace tensorcast
