#include "core/ingest/pipeline.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/artifact/layout.h"
#include "core/device/numa.h"

namespace tensorcast {
namespace {

// More slots than are fetching, so that sources are kept busy while chunks are verified and placed.
constexpr int kSlotsBesideFetches = 2;
// Slots for the chunks of sources that fetch without a slot.
constexpr int kSlotsForArrivals = 4;
// A slot that waits for chunks on the way to their place.
constexpr int kSlotsForPlacing = 1;
constexpr int kMaxSlots = 64;

// A source is given up after so many refusals in a row of chunks that it claims to have.
constexpr int kMaxRefusals = 16;

// An ingest that waits shorter than this keeps its turn: sources that fill have something new all the time.
constexpr absl::Duration kShortWait = absl::Milliseconds(100);

absl::Status NoSourceLeft(const absl::Status& why, const std::optional<SourceFailure>& before) {
  if (!before.has_value()) return why;
  // Where bytes were found wrong and none are found elsewhere, they are lost; a reason that passes stays what
  // it is.
  const bool lost = before->corrupt && absl::IsNotFound(why);
  const absl::StatusCode code = lost ? absl::StatusCode::kDataLoss : why.code();
  // The error of a provider with one source says what that source failed with.
  if (absl::StrContains(why.message(), before->status.message())) return absl::Status(code, why.message());
  return absl::Status(code, absl::StrCat(why.message(), "; the source before, ", before->source.lane, " ",
                                         before->source.name, ", was given up: ", before->status.message()));
}

SourceLoss LossOf(const SourceFailure& failure, bool opened) {
  return !opened                                    ? SourceLoss::kNotOpened
         : failure.corrupt                          ? SourceLoss::kBadDigest
         : absl::IsDeadlineExceeded(failure.status) ? SourceLoss::kTimeout
                                                    : SourceLoss::kDied;
}

}  // namespace

IngestPipeline::IngestPipeline(PipelinePlan plan)
    : plan_(std::move(plan)),
      what_(absl::StrCat("ingest of ", plan_.subject)),
      verifier_(plan_.layout, plan_.expected, plan_.distrust_other_hosts),
      sources_(plan_.layout->chunk_count(), plan_.chunks, plan_.seed),
      idle_(plan_.peer_timeout) {}

IngestOutcome IngestPipeline::Run() {
  {
    const Cancellation::Registration cancelled =
        plan_.context().cancellation.OnCancel([this] { CancelFetches(); });
    TakeSteps(/*in_control=*/true);
    for (std::thread& slot : slots_) slot.join();
  }
  std::vector<std::unique_ptr<SourceInUse>> left;
  bool waits = false;
  {
    absl::MutexLock lock(&mutex_);
    sources_.GiveUpOvertaken();
    left = sources_.TakeAll();
    waits = !told_waiting_.empty();
  }
  if (waits) plan_.on_wait("");
  for (const std::unique_ptr<SourceInUse>& source : left) {
    if (source->in_use()) {
      source->clock->Leave(/*loss=*/std::nullopt, absl::OkStatus(), /*lost_chunks=*/0);
    } else {
      source->clock->Leave(SourceLoss::kTimeout, source->failure->status, /*lost_chunks=*/0);
      LOG(WARNING) << what_ << ": source " << source->failure->source.lane << " "
                   << source->failure->source.name << ": " << source->failure->status;
      untold_.push_back(*source->failure);
    }
  }
  left.clear();
  absl::MutexLock lock(&mutex_);
  return {.status = fatal_,
          .digests = verifier_.TakeDigests(),
          .changes = std::move(changes_),
          .untold = std::move(untold_),
          .refetched_chunks = sources_.refetched(),
          .reassigned_chunks = reassigned_,
          .verified_chunks = verified_};
}

// --- steps

void IngestPipeline::TakeSteps(bool in_control) {
  while (const Step step = NextStep(in_control)) step();
}

// Everything that can be done is looked for under one hold of the lock, and the wait begins under the same
// one: so nothing that happens meanwhile is missed.
IngestPipeline::Step IngestPipeline::NextStep(bool in_control) {
  while (true) {
    const RequestContext context = plan_.context();
    const absl::Status wanted = context.Check(what_);
    absl::MutexLock lock(&mutex_);
    if (wanted.ok() && cancelled_) continue;
    if (!wanted.ok() && fatal_.ok() && sources_.missing() > 0) {
      return [fetches = GiveUp(wanted)] { CancelAll(fetches); };
    }
    if (in_control) {
      if (Step step = RetireStep(); step != nullptr) return step;
    }
    if (IsOver()) {
      if (!asking_.has_value()) return nullptr;
      return [asking = *std::exchange(asking_, std::nullopt)] { asking.Cancel(); };
    }
    const SteadyTime now = SteadyNow();
    if (std::vector<Cancellation> overdue = LookAgain(now); !overdue.empty()) {
      return [overdue] { CancelAll(overdue); };
    }
    if (in_control) {
      if (Step step = ControlStep(now); step != nullptr) return step;
    }
    if (!in_control || ControlIsSlot()) {
      if (Step step = SlotStep(now); step != nullptr) return step;
    }
    AwaitChange(in_control, context);
  }
}

bool IngestPipeline::IsOver() const {
  return sources_.under_way() == 0 && (sources_.all_done() || !fatal_.ok());
}

// With one source alone there is nothing to control but its end, which its fetching slot sees.
bool IngestPipeline::IsAlone() const {
  return sources_.sources().size() == 1 && ask_again_ == SteadyTime::InfiniteFuture();
}

bool IngestPipeline::ControlIsSlot() const { return started_slots_ == 0 || IsAlone(); }

void IngestPipeline::AwaitChange(bool in_control, const RequestContext& context) {
  const bool as_slot = !in_control || ControlIsSlot();
  auto may_go_on = [this, in_control, as_slot]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return (in_control && control_wakes_) || (as_slot && slots_wake_);
  };
  if (in_control) control_wakes_ = false;
  if (as_slot) slots_wake_ = false;
  // What comes by time alone is for control; while the provider keeps control busy, it is for the slots.
  SteadyTime until = SteadyTime::InfiniteFuture();
  if (in_control) {
    until = NextControl(context);
  } else if (asking_.has_value()) {
    until = SteadyNow() + ChunkPicker::kLookEvery;
  }
  mutex_.AwaitWithTimeout(absl::Condition(&may_go_on), TimeLeft(until));
}

SteadyTime IngestPipeline::NextControl(const RequestContext& context) const {
  if (!fatal_.ok()) return SteadyTime::InfiniteFuture();
  SteadyTime next = sources_.missing() > 0 ? context.deadline : SteadyTime::InfiniteFuture();
  if (sources_.in_use() == 0) return next;
  next = std::min({next, ask_again_, idle_.ends(), next_look_});
  return told_waiting_.empty() ? std::min(next, idle_.since() + kShortWait) : next;
}

IngestPipeline::Step IngestPipeline::RetireStep() {
  const std::shared_ptr<SourceInUse> retired = sources_.TakeRetired();
  if (retired == nullptr) return nullptr;
  return [this, retired] { Retire(*retired); };
}

IngestPipeline::Step IngestPipeline::ControlStep(SteadyTime now) {
  const bool waits = now >= idle_.since() + kShortWait;
  if (waits == told_waiting_.empty()) {
    told_waiting_ = waits ? absl::StrCat("chunks that no source has yet (", sources_.NamesInUse(), ")") : "";
    return [this, what = told_waiting_] { plan_.on_wait(what); };
  }
  if (!fatal_.ok()) return nullptr;
  if (sources_.sources().empty()) return [this] { AskProvider(/*unneeded=*/nullptr); };
  for (const std::unique_ptr<SourceInUse>& source : sources_.sources()) {
    if (!source->in_use() || source->availability == nullptr || source->end_seen) continue;
    if (source->availability->ended()) return [this, source = source.get()] { LookAtEnd(*source); };
  }
  if (sources_.in_use() == 0) return nullptr;  // their fetches are about to end
  if (now >= idle_.ends()) return [this] { GiveUpAll(); };
  if (std::exchange(tell_stall_, false)) return [this] { TellStall(); };
  if (!untold_.empty() || now >= ask_again_) {
    ask_again_ = SteadyTime::InfiniteFuture();
    asking_.emplace();
    slots_wake_ = true;
    return [this, unneeded = *asking_] { AskProvider(&unneeded); };
  }
  return nullptr;
}

// A slot that has taken a step comes back for the next by itself. So others are to wake only where there is
// more than one step to be taken, not one after the other for the sake of each chunk.
IngestPipeline::Step IngestPipeline::SlotStep(SteadyTime now) {
  if (!arrived_.empty()) {
    FetchPtr fetch = std::move(arrived_.front());
    arrived_.pop_front();
    slots_wake_ = more_to_take_ || !arrived_.empty();
    return [this, fetch] { Arrived(fetch); };
  }
  if (!placing_.empty() && !awaiting_place_) {
    FetchPtr fetch = std::move(placing_.front());
    placing_.pop_front();
    awaiting_place_ = true;
    slots_wake_ = more_to_take_;
    return [this, fetch] { AwaitPlace(fetch); };
  }
  if (!fatal_.ok()) return nullptr;
  if (FetchPtr fetch = TakeFetch(now); fetch != nullptr) {
    slots_wake_ = more_to_take_;
    return [this, fetch] { Begin(fetch); };
  }
  more_to_take_ = false;
  if (sources_.under_way() == 0 && sources_.in_use() > 0 && !idle_.idle()) {
    idle_.NoteNothing(now);
    control_wakes_ = true;
  }
  return nullptr;
}

// What a source does not give now it may give after a while, and what it has not given after a while may be
// had from another.
std::vector<Cancellation> IngestPipeline::LookAgain(SteadyTime now) {
  if (now < next_look_ || !fatal_.ok()) return {};
  next_look_ = now + ChunkPicker::kLookEvery;
  WakeSlots();
  WatchStall(now);
  if (sources_.in_use() < 2) return {};
  return sources_.TakeBackOverdue(now);
}

// What waits for a buffer, or for its place, is not its source's.
void IngestPipeline::WatchStall(SteadyTime now) {
  const bool asked = sources_.under_way() > 0 && !acquiring_ && arrived_.empty() && placing_.empty();
  if (!asked) return stall_.Reset();
  stall_.Note(sources_.fetched(), now);
  if (asking_.has_value() || !stall_.TakeStall(now)) return;
  tell_stall_ = true;
  control_wakes_ = true;
}

// --- in control

void IngestPipeline::AskProvider(const Cancellation* unneeded) {
  RequestContext context = plan_.context();
  const bool needed = unneeded == nullptr;
  // A cancellation of its own: nothing is to wait for more sources when there is no need of any.
  if (!needed) context.cancellation = *unneeded;
  absl::StatusOr<MoreSources> more = plan_.sources->Next(context, std::exchange(untold_, {}), needed);
  std::vector<SourceFailure> unopened = plan_.sources->TakeUnopened();
  CHECK(!needed || !more.ok() || !more->sources.empty()) << "a provider gave no source though one is needed";
  if (more.ok()) {
    for (std::unique_ptr<ChunkSource>& source : more->sources) {
      if (absl::Status fits = CheckAvailability(*source); !fits.ok()) {
        untold_.push_back({.source = source->info(), .status = fits});
        unopened.push_back(untold_.back());
        source.reset();
      } else {
        AddSource(std::move(source));
      }
    }
  }
  for (const SourceFailure& failure : unopened) plan_.progress->AddUnopened(failure.source, failure.status);
  const RequestContext now = plan_.context();
  const absl::Status wanted = now.Check(what_);
  {
    absl::MutexLock lock(&mutex_);
    asking_.reset();
    if (sources_.in_use() > 0) {
      for (const SourceFailure& failure : std::exchange(unreplaced_, {})) {
        NoteChange(failure, /*opened=*/true);
      }
      for (const SourceFailure& failure : unopened) NoteChange(failure, /*opened=*/false);
    }
    // A caller with more time may have joined meanwhile.
    const bool late = absl::IsDeadlineExceeded(more.status()) && now.deadline > context.deadline;
    if (more.ok()) {
      ask_again_ = SteadyNow() + std::max(more->look_again, absl::Milliseconds(1));
    } else if (needed && !late) {
      fatal_.Update(wanted.ok() ? NoSourceLeft(more.status(), last_given_up_) : wanted);
    }
    Wake();
  }
  StartSlots();
}

void IngestPipeline::TellStall() {
  if (!plan_.sources->NoteStall()) return;
  absl::MutexLock lock(&mutex_);
  ask_again_ = SteadyNow();
}

// What another host announces of its chunks has to fit, whatever it announces.
absl::Status IngestPipeline::CheckAvailability(const ChunkSource& source) const {
  const std::shared_ptr<const Availability> has = source.availability();
  const ImageLayout& layout = *plan_.layout;
  if (has == nullptr || (has->chunks() == layout.chunk_count() && has->chunk_bytes() == layout.chunk_bytes)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(source.info().lane, " ", source.info().name, " announces ",
                                                 has->chunks(), " chunks of ", has->chunk_bytes(), " bytes; ",
                                                 plan_.subject, " has ", layout.chunk_count(), " of ",
                                                 layout.chunk_bytes));
}

void IngestPipeline::AddSource(std::unique_ptr<ChunkSource> opened) {
  auto source = std::make_unique<SourceInUse>();
  source->max_fetches = std::max(1, opened->max_concurrency());
  source->blocks = opened->blocks();
  source->direct = DirectPathOf(*opened);
  if (source->direct == DirectPath::kCopied) {
    source->max_fetches = std::max(source->max_fetches, DirectCopies::kAtOnce);
    source->blocks = false;
  }
  source->availability = opened->availability();
  const bool filling = source->availability != nullptr && !source->availability->complete();
  source->clock = std::make_shared<StageClock>(opened->info(), filling);
  if (source->availability != nullptr) {
    source->watch = source->availability->OnChange([this] {
      absl::MutexLock lock(&mutex_);
      Wake();
    });
  }
  plan_.progress->AddSource(source->clock);
  source->source = std::move(opened);
  absl::MutexLock lock(&mutex_);
  sources_.Add(std::move(source));
  idle_.NoteSources(SteadyNow());  // it may have what was missing
}

// Such a chunk is compared by XXH3 alone, which a GPU can compute.
DirectPath IngestPipeline::DirectPathOf(ChunkSource& source) const {
  const std::shared_ptr<const DeviceBlock> place = plan_.destination->memory().device;
  const bool distrusted = plan_.distrust_other_hosts && source.info().type == SourceType::kRemote;
  if (place == nullptr || plan_.expected == nullptr || distrusted) return DirectPath::kNone;
  const DevicePtr to = place->pointer();
  if (const DevicePtr from = source.device_image()) {
    return plan_.destination->TakesFrom(from.device) ? DirectPath::kCopied : DirectPath::kNone;
  }
  if (!plan_.destination->TakesFrom(to.device)) return DirectPath::kNone;  // no digest on that device
  const absl::Status ready = source.PrepareDevice(to, plan_.layout->image_bytes);
  return ready.ok() ? DirectPath::kWritten : DirectPath::kNone;
}

int IngestPipeline::SlotsWanted() const {
  int fetching = 0;
  int for_arrivals = 0;
  for (const std::unique_ptr<SourceInUse>& source : sources_.sources()) {
    fetching += source->blocks ? source->max_fetches : 0;
    for_arrivals = source->blocks ? for_arrivals : kSlotsForArrivals;
  }
  const uint32_t unfinished = sources_.missing() + sources_.under_way();
  const int useful = static_cast<int>(std::min<uint32_t>(unfinished, kMaxSlots));
  const int for_placing = plan_.destination->places() ? kSlotsForPlacing : 0;
  const int wanted = kSlotsBesideFetches + fetching + for_arrivals + for_placing;
  return std::min({wanted, useful, plan_.destination->max_chunks()});
}

void IngestPipeline::StartSlots() {
  int wanted = 0;
  {
    absl::MutexLock lock(&mutex_);
    // This thread is one of them, where it can be.
    wanted = SlotsWanted() - (IsAlone() ? 1 : 0);
  }
  try {
    while (static_cast<int>(slots_.size()) < wanted) {
      slots_.emplace_back([this] {
        const NearNumaNode near(plan_.numa_node);
        TakeSteps(/*in_control=*/false);
      });
    }
  } catch (const std::system_error& error) {
    LOG(WARNING) << "an ingest runs on " << slots_.size() + 1 << " threads instead of " << wanted + 1 << ": "
                 << error.what();
  }
  absl::MutexLock lock(&mutex_);
  started_slots_ = static_cast<int>(slots_.size());
}

void IngestPipeline::LookAtEnd(SourceInUse& source) {
  source.end_seen = true;
  const absl::Status end = source.availability->end();
  if (end.ok()) return;  // it has what it has, and stays
  std::vector<Cancellation> fetches;
  {
    absl::MutexLock lock(&mutex_);
    fetches = GiveUpSource(source, end, /*corrupt=*/false);
  }
  CancelAll(fetches);
}

// The sources may all wait for each other here. The provider may know one that has the chunks.
void IngestPipeline::GiveUpAll() {
  std::vector<Cancellation> fetches;
  {
    absl::MutexLock lock(&mutex_);
    // A chunk came after all, between the check and this.
    if (sources_.under_way() > 0) return;
    const absl::Status why = absl::UnavailableError(absl::StrCat(
        "for ", absl::FormatDuration(plan_.peer_timeout), " none of ", sources_.NamesInUse(),
        " had a chunk that is missing: ", sources_.missing(), " of ", plan_.layout->chunk_count(), " are"));
    for (const std::unique_ptr<SourceInUse>& source : sources_.sources()) {
      if (!source->in_use()) continue;
      for (Cancellation& fetch : GiveUpSource(*source, why, /*corrupt=*/false)) fetches.push_back(fetch);
    }
  }
  CancelAll(fetches);
}

void IngestPipeline::Retire(SourceInUse& source) {
  SourceFailure failure = *std::move(source.failure);
  source.watch = Availability::Watch();
  source.source.reset();
  source.clock->Leave(LossOf(failure, /*opened=*/true), failure.status, failure.chunks);
  LOG(WARNING) << what_ << ": source " << failure.source.lane << " " << failure.source.name << " is given up"
               << (failure.corrupt ? " as corrupt: " : ": ") << failure.status;
  untold_.push_back(failure);
  last_given_up_ = failure;
  absl::MutexLock lock(&mutex_);
  if (sources_.in_use() > 0) {
    NoteChange(failure, /*opened=*/true);
  } else {
    unreplaced_.push_back(std::move(failure));
  }
}

void IngestPipeline::NoteChange(const SourceFailure& failure, bool opened) {
  changes_.push_back({failure.source, sources_.AnyInUse()->source->info(), LossOf(failure, opened),
                      failure.status, failure.chunks, SteadyNow()});
}

// --- a chunk

FetchPtr IngestPipeline::TakeFetch(SteadyTime now) {
  const bool any_direct = std::ranges::any_of(
      sources_.sources(), [](const auto& source) { return source->direct != DirectPath::kNone; });
  const int max = std::max(plan_.destination->max_chunks(), any_direct ? DirectCopies::kAtOnce : 0);
  if (sources_.under_way() >= max) return nullptr;
  if (plan_.destination->places()) {
    // While one waits for a buffer another has to be there to give buffers back.
    const bool alone = started_slots_ + (ControlIsSlot() ? 1 : 0) == 1;
    if (acquiring_ || (alone && sources_.under_way() > 0)) return nullptr;
  }
  FetchPtr fetch = sources_.Take(now);
  if (fetch == nullptr) return nullptr;
  fetch->direct = fetch->source->direct;
  acquiring_ = plan_.destination->places();
  idle_.NoteChunk();
  control_wakes_ |= !told_waiting_.empty();
  return fetch;
}

void IngestPipeline::Begin(const FetchPtr& fetch) {
  ChunkRequest& request = fetch->request;
  request.range = plan_.layout->chunk(request.chunk);
  request.blake3 = verifier_.WantsBlake3(fetch->source->source->info().type, request.chunk);
  fetch->context = plan_.context();
  fetch->context.cancellation = fetch->cancellation;
  if (fetch->direct == DirectPath::kCopied && BeginDirect(fetch)) return;
  if (fetch->direct == DirectPath::kWritten) {
    request.device = plan_.destination->memory().device->pointer() + request.range.offset;
    StopAcquiring();
    return FetchInto(fetch);
  }
  if (FindInHost(*fetch)) {
    StopAcquiring();
    return Arrived(fetch);
  }
  absl::StatusOr<ChunkBuffer> buffer = plan_.destination->Acquire(fetch->context, request.range);
  if (plan_.destination->places()) {
    fetch->context.deadline = plan_.context().deadline;  // the wait may have been long
    StopAcquiring();
  }
  if (!buffer.ok()) {
    fetch->digests = buffer.status();
    return Arrived(fetch);
  }
  fetch->buffer = *std::move(buffer);
  fetch->bytes.assign(fetch->buffer.spans.begin(), fetch->buffer.spans.end());
  request.destination = fetch->buffer.spans;
  FetchInto(fetch);
}

void IngestPipeline::FetchInto(const FetchPtr& fetch) {
  fetch->acquired = true;
  fetch->start = SteadyNow();
  plan_.progress->Asked(*fetch->source->clock);
  ChunkSource& source = *fetch->source->source;
  if (fetch->source->blocks) {
    fetch->digests = source.Fetch(fetch->context, fetch->request);
    NoteFetched(*fetch);
    return Arrived(fetch);
  }
  source.StartFetch(fetch->context, fetch->request,
                    [this, fetch](absl::StatusOr<std::optional<ChunkDigests>> digests) {
                      fetch->digests = std::move(digests);
                      NoteFetched(*fetch);
                      PassOn(fetch);
                    });
  // A source is not to be destroyed while it starts a fetch, though that has ended: the chunk goes on when
  // both are over.
  PassOn(fetch);
}

bool IngestPipeline::BeginDirect(const FetchPtr& fetch) {
  const ByteRange range = fetch->request.range;
  const Availability* const has = fetch->source->availability.get();
  // The source itself refuses when it is asked for a chunk that it does not have.
  if (has != nullptr && !has->HasRange(range.offset, range.bytes)) {
    fetch->direct = DirectPath::kNone;
    return false;
  }
  fetch->start = SteadyNow();
  if (!PlaceDirect(*fetch, fetch->source->source->device_image() + range.offset)) return false;
  fetch->acquired = true;
  plan_.progress->Asked(*fetch->source->clock);
  absl::MutexLock lock(&mutex_);
  acquiring_ = false;
  placing_.push_back(fetch);
  WakeSlots();
  return true;
}

// It is in its place, and has yet to be digested.
void IngestPipeline::ArrivedDirect(const FetchPtr& fetch) {
  const bool digesting = PlaceDirect(*fetch, fetch->request.device);
  {
    absl::MutexLock lock(&mutex_);
    if (digesting) {
      placing_.push_back(fetch);
      slots_wake_ = true;
    } else {
      sources_.PutBack(*fetch);
    }
  }
  if (!digesting) Finish(*fetch, /*placed=*/false);
}

bool IngestPipeline::PlaceDirect(ChunkFetch& fetch, DevicePtr source) {
  fetch.compared =
      IsCompared(plan_.device_verification, plan_.seed, fetch.request.chunk, plan_.layout->chunk_count());
  absl::StatusOr<AwaitDigested> placing =
      plan_.destination->PlaceFrom(fetch.request.range, source, /*digest=*/fetch.compared);
  if (!placing.ok()) {
    fetch.compared = true;
    StopDirect(fetch, placing.status());
    return false;
  }
  fetch.await_digested = *std::move(placing);
  return true;
}

// A fetch through the host shows which end is at fault.
void IngestPipeline::StopDirect(ChunkFetch& fetch, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  fetch.direct = DirectPath::kNone;
  LOG_IF(WARNING, fetch.source->direct != DirectPath::kNone)
      << what_ << ": what " << fetch.source->source->info().name
      << " has goes through the host from here on: " << why;
  fetch.source->direct = DirectPath::kNone;
}

bool IngestPipeline::AcceptDirect(ChunkFetch& fetch) {
  const bool copied = fetch.direct == DirectPath::kCopied;  // and so it was not fetched before
  const absl::StatusOr<Digest> digest = fetch.await_digested();
  if (!digest.ok()) {
    if (copied) plan_.progress->Answered(*fetch.source->clock);
    StopDirect(fetch, digest.status());
    absl::MutexLock lock(&mutex_);
    sources_.PutBack(fetch);
    return false;
  }
  fetch.digests = ChunkDigests{.xxh3 = *digest, .blake3 = std::nullopt};
  if (copied) NoteFetched(fetch);
  if (absl::Status verified = fetch.compared ? Verify(fetch) : absl::OkStatus(); !verified.ok()) {
    PutBackWrong(fetch, std::move(verified));
    return false;
  }
  fetch.source->clock->CameDirectly();
  return Placed(fetch);
}

bool IngestPipeline::FindInHost(ChunkFetch& fetch) {
  // A replica of a first ingest is not a replica yet, and in no pool.
  if (!plan_.destination->places() || plan_.expected == nullptr) return false;
  fetch.bytes = fetch.source->source->HostSpans(fetch.request.range);
  if (fetch.bytes.empty()) return false;
  fetch.acquired = true;
  fetch.digests = std::nullopt;
  fetch.start = SteadyNow();
  plan_.progress->Asked(*fetch.source->clock);
  NoteFetched(fetch);
  return true;
}

void IngestPipeline::StopAcquiring() {
  absl::MutexLock lock(&mutex_);
  acquiring_ = false;
  WakeSlots();
}

void IngestPipeline::NoteFetched(ChunkFetch& fetch) {
  plan_.progress->Answered(*fetch.source->clock);
  if (!fetch.digests.ok()) return;
  const bool moved = fetch.direct != DirectPath::kNone || !fetch.buffer.spans.empty();
  fetch.source->clock->Passed(Stage::kFetch, fetch.start, moved ? fetch.request.range.bytes : 0);
  const SteadyTime now = SteadyNow();
  absl::MutexLock lock(&mutex_);
  sources_.Fetched(fetch, now);
  if (sources_.missing() > 0) WakeSlots();  // there is room for another one
}

// On the source's thread, perhaps: it only hands on. Once the lock is given back nothing of this is touched.
void IngestPipeline::PassOn(const FetchPtr& fetch) {
  absl::MutexLock lock(&mutex_);
  if (!std::exchange(fetch->completed_once, true)) return;
  arrived_.push_back(fetch);
  slots_wake_ = true;
}

void IngestPipeline::Arrived(const FetchPtr& fetch) {
  if (fetch->direct == DirectPath::kWritten && fetch->digests.ok()) return ArrivedDirect(fetch);
  if (!Accept(*fetch)) return Finish(*fetch, /*placed=*/false);
  if (fetch->await_placed == nullptr) return Finish(*fetch, Placed(*fetch));
  absl::MutexLock lock(&mutex_);
  placing_.push_back(fetch);
  slots_wake_ = true;
}

void IngestPipeline::AwaitPlace(const FetchPtr& fetch) {
  const bool placed = fetch->direct != DirectPath::kNone ? AcceptDirect(*fetch) : Placed(*fetch);
  {
    absl::MutexLock lock(&mutex_);
    awaiting_place_ = false;
  }
  Finish(*fetch, placed);  // wakes the slot that awaits the next one
}

void IngestPipeline::Finish(ChunkFetch& fetch, bool placed) {
  fetch.buffer = ChunkBuffer();
  absl::MutexLock lock(&mutex_);
  if (placed) {
    sources_.Done(fetch);
    verified_ += plan_.expected != nullptr && fetch.compared ? 1 : 0;
  } else {
    WakeSlots();  // for what was put back
  }
  sources_.Remove(fetch);
  control_wakes_ |= !fetch.source->in_use();
  if (IsOver()) {
    Wake();
  } else if (plan_.destination->places()) {
    WakeSlots();  // for the buffer that is free
  }
}

bool IngestPipeline::Accept(ChunkFetch& fetch) {
  if (!fetch.digests.ok()) {
    EndInVain(fetch);
    return false;
  }
  if (absl::Status padding = verifier_.CheckPadding(fetch.request); !padding.ok()) {
    PutBackAndGiveUp(fetch, std::move(padding));
    return false;
  }
  if (absl::Status verified = Verify(fetch); !verified.ok()) {
    PutBackWrong(fetch, std::move(verified));
    return false;
  }
  if (absl::Status placed = Place(fetch); !placed.ok()) {
    PutBackAndGiveUp(fetch, std::move(placed));
    return false;
  }
  return true;
}

bool IngestPipeline::Placed(ChunkFetch& fetch) {
  StageClock& clock = *fetch.source->clock;
  if (fetch.await_placed != nullptr) {
    if (absl::Status placed = fetch.await_placed(); !placed.ok()) {
      clock.Failed(Stage::kPlace, fetch.placing_since, placed);
      PutBackAndGiveUp(fetch, std::move(placed));
      return false;
    }
    clock.Passed(Stage::kPlace, fetch.placing_since, fetch.request.range.bytes);
  }
  plan_.on_chunk(fetch.request.chunk, fetch.compared);
  plan_.progress->AddDone(clock, fetch.request.range.bytes);
  return true;
}

absl::Status IngestPipeline::Verify(const ChunkFetch& fetch) {
  SourceInUse& source = *fetch.source;
  const SteadyTime start = SteadyNow();
  const ChunkVerifier::Verdict verdict = verifier_.Verify(fetch.request, fetch.bytes, *fetch.digests);
  if (verdict.wrong.empty()) {
    source.clock->Passed(Stage::kVerify, start, verdict.bytes_read);
    return absl::OkStatus();
  }
  const SourceInfo& info = source.source->info();
  absl::Status wrong =
      absl::DataLossError(absl::StrCat("chunk ", fetch.request.chunk, " of ", plan_.subject, " from ",
                                       info.lane, " ", info.name, " ", verdict.wrong));
  source.clock->Failed(Stage::kVerify, start, wrong);
  return wrong;
}

absl::Status IngestPipeline::Place(ChunkFetch& fetch) {
  if (!plan_.destination->places() || fetch.source->source->in_place()) return absl::OkStatus();
  fetch.placing_since = SteadyNow();
  absl::StatusOr<AwaitPlaced> placing = plan_.destination->Place(fetch.request.range, fetch.bytes);
  if (!placing.ok()) {
    fetch.source->clock->Failed(Stage::kPlace, fetch.placing_since, placing.status());
    return placing.status();
  }
  fetch.await_placed = *std::move(placing);
  if (fetch.await_placed == nullptr) {
    fetch.source->clock->Passed(Stage::kPlace, fetch.placing_since, fetch.request.range.bytes);
  }
  return absl::OkStatus();
}

// --- what ends in vain

// The chunk is missing again. Whether its source is to blame depends on why.
void IngestPipeline::EndInVain(ChunkFetch& fetch) {
  const absl::Status& why = fetch.digests.status();
  SourceInUse& source = *fetch.source;
  const RequestContext context = plan_.context();
  const absl::Status wanted = context.Check(what_);
  std::vector<Cancellation> fetches;
  bool failed = false;
  {
    absl::MutexLock lock(&mutex_);
    sources_.PutBack(fetch);
    if (!wanted.ok()) {
      failed = true;
      fetches = GiveUp(wanted);
    } else if (!source.in_use()) {
      failed = !absl::IsCancelled(why);
      sources_.CountLost(fetch);
    } else if (fetch.taken_back && absl::IsCancelled(why)) {
      ++reassigned_;
      source.clock->Reassigned();
    } else if (!fatal_.ok() || IsExcused(fetch, context)) {
      VLOG(2) << what_ << ": chunk " << fetch.request.chunk << " is asked for again: " << why;
    } else if (!fetch.acquired) {
      fetches = GiveUp(why);
    } else {
      failed = true;
      fetches = GiveUpSource(source, why, /*corrupt=*/false);
      sources_.CountLost(fetch);
    }
  }
  if (failed && fetch.acquired) source.clock->Failed(Stage::kFetch, fetch.start, why);
  CancelAll(fetches);
}

bool IngestPipeline::IsExcused(ChunkFetch& fetch, const RequestContext& context) {
  const absl::Status& why = fetch.digests.status();
  // A caller with more time joined meanwhile. A source that is late for a reason of its own shows that at
  // the next fetch.
  if (absl::IsDeadlineExceeded(why)) return context.deadline > fetch.context.deadline;
  // It does not have this chunk, and said so.
  const bool refused = absl::IsFailedPrecondition(why) && fetch.source->availability != nullptr;
  return refused && ++fetch.source->refusals <= kMaxRefusals;
}

void IngestPipeline::PutBackWrong(ChunkFetch& fetch, absl::Status why) {
  std::vector<Cancellation> fetches;
  {
    absl::MutexLock lock(&mutex_);
    sources_.PutBack(fetch);
    fetches = GiveUpSource(*fetch.source, std::move(why), /*corrupt=*/true);
    sources_.CountLost(fetch);
  }
  CancelAll(fetches);
}

void IngestPipeline::PutBackAndGiveUp(ChunkFetch& fetch, absl::Status why) {
  std::vector<Cancellation> fetches;
  {
    absl::MutexLock lock(&mutex_);
    sources_.PutBack(fetch);
    fetches = GiveUp(std::move(why));
  }
  CancelAll(fetches);
}

// --- what is given up

std::vector<Cancellation> IngestPipeline::GiveUpSource(SourceInUse& source, absl::Status why, bool corrupt) {
  idle_.NoteSources(SteadyNow());
  Wake();
  return sources_.GiveUp(source, std::move(why), corrupt);
}

std::vector<Cancellation> IngestPipeline::GiveUp(absl::Status why) {
  fatal_.Update(std::move(why));
  Wake();
  return UnderWay();
}

std::vector<Cancellation> IngestPipeline::UnderWay() const {
  std::vector<Cancellation> under_way = sources_.UnderWay();
  if (asking_.has_value()) under_way.push_back(*asking_);
  return under_way;
}

void IngestPipeline::CancelFetches() {
  std::vector<Cancellation> fetches;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    fetches = UnderWay();
    Wake();
  }
  CancelAll(fetches);
}

void IngestPipeline::CancelAll(const std::vector<Cancellation>& fetches) {
  for (const Cancellation& fetch : fetches) fetch.Cancel();
}

}  // namespace tensorcast
