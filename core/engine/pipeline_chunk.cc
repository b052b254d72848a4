// The way of one chunk: taken, fetched, verified, placed, or put back. Which of these steps comes next, and
// for whom, is in pipeline.cc.
#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "core/artifact/layout.h"
#include "core/engine/pipeline.h"

namespace tensorcast {
namespace {

// So many refusals in a row of chunks that a source says it has, and it is given up.
constexpr int kMaxRefusals = 16;

}  // namespace

FetchPtr IngestPipeline::TakeFetch(SteadyTime now) {
  const bool any_direct = std::ranges::any_of(
      sources_.sources(), [](const auto& source) { return source->direct != Directly::kNot; });
  const int most = std::max(plan_.destination->max_chunks(), any_direct ? DirectCopies::kAtOnce : 0);
  if (sources_.under_way() >= most) return nullptr;
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
  if (fetch->direct == Directly::kCopied && BeginDirect(fetch)) return;
  if (fetch->direct == Directly::kWritten) {
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
  // The source says so itself when it is asked for one that it does not have.
  if (has != nullptr && !has->HasRange(range.offset, range.bytes)) {
    fetch->direct = Directly::kNot;
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

// Through the host it shows at which end the fault is.
void IngestPipeline::StopDirect(ChunkFetch& fetch, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  fetch.direct = Directly::kNot;
  LOG_IF(WARNING, fetch.source->direct != Directly::kNot)
      << what_ << ": what " << fetch.source->source->info().name
      << " has goes through the host from here on: " << why;
  fetch.source->direct = Directly::kNot;
}

bool IngestPipeline::AcceptDirect(ChunkFetch& fetch) {
  const bool copied = fetch.direct == Directly::kCopied;  // and so it was not fetched before
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
  // What is made here first is no replica yet, and in nobody's pool.
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
  const bool moved = fetch.direct != Directly::kNot || !fetch.buffer.spans.empty();
  fetch.source->clock->Passed(Stage::kFetch, fetch.start, moved ? fetch.request.range.bytes : 0);
  const SteadyTime now = SteadyNow();
  absl::MutexLock lock(&mutex_);
  sources_.Fetched(fetch, now);
  if (sources_.missing() > 0) WakeSlots();  // there is room for another one
}

// On the source's thread, perhaps: it only hands on. Once the lock is given back nothing of this is touched.
void IngestPipeline::PassOn(const FetchPtr& fetch) {
  absl::MutexLock lock(&mutex_);
  if (!std::exchange(fetch->half_over, true)) return;
  arrived_.push_back(fetch);
  slots_wake_ = true;
}

void IngestPipeline::Arrived(const FetchPtr& fetch) {
  if (fetch->direct == Directly::kWritten && fetch->digests.ok()) return ArrivedDirect(fetch);
  if (!Accept(*fetch)) return Finish(*fetch, /*placed=*/false);
  if (fetch->await_placed == nullptr) return Finish(*fetch, Placed(*fetch));
  absl::MutexLock lock(&mutex_);
  placing_.push_back(fetch);
  slots_wake_ = true;
}

void IngestPipeline::AwaitPlace(const FetchPtr& fetch) {
  const bool placed = fetch->direct != Directly::kNot ? AcceptDirect(*fetch) : Placed(*fetch);
  {
    absl::MutexLock lock(&mutex_);
    awaiting_place_ = false;
  }
  Finish(*fetch, placed);  // wakes who awaits the next one
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
  // Somebody joined meanwhile who has more time. A source that is late for a reason of its own shows that at
  // the next fetch.
  if (absl::IsDeadlineExceeded(why)) return context.deadline > fetch.context.deadline;
  // It does not have this one; but it said so.
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

}  // namespace tensorcast
