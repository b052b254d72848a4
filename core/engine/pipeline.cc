#include "core/engine/pipeline.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/layout.h"

namespace tensorcast {
namespace {

// More slots than the source takes fetches, so that it is kept busy while chunks are verified and placed.
constexpr int kSlotsBesideFetches = 2;
constexpr int kMaxSlots = 64;

// Those that are wanted: what the source did not compute on the way is computed here.
ChunkDigests DigestsOf(const ChunkRequest& request, std::optional<ChunkDigests> delivered) {
  if (!delivered.has_value()) {
    DigestBuilder builder(request.blake3);
    for (const HostSpan& span : request.destination) builder.Update(span);
    return builder.FinishChunk();
  }
  if (request.blake3 && !delivered->blake3.has_value()) {
    delivered->blake3 = Blake3OfPieces(request.destination);
  }
  return *delivered;
}

// What a chunk has to match, and does not; empty where it does. XXH3 first: bytes that differ by accident are
// no forgery.
std::string Mismatch(const ChunkDigests& found, const ChunkDigests& expected) {
  if (found.xxh3 != expected.xxh3) {
    return absl::StrCat("has digest ", found.xxh3.ToHex(), ", its manifest says ", expected.xxh3.ToHex());
  }
  if (found.blake3.has_value() && expected.blake3.has_value() && *found.blake3 != *expected.blake3) {
    return absl::StrCat("is forged: its XXH3 is right, but its BLAKE3 is ", found.blake3->ToHex(),
                        ", its manifest says ", expected.blake3->ToHex());
  }
  return "";
}

absl::Status NoSourceLeft(const absl::Status& why, const std::optional<SourceFailure>& before) {
  if (!before.has_value()) return why;
  // Where bytes were found wrong and none are found elsewhere, they are lost; a reason that passes stays what
  // it is.
  const bool lost = before->corrupt && absl::IsNotFound(why);
  const absl::StatusCode code = lost ? absl::StatusCode::kDataLoss : why.code();
  return absl::Status(code, absl::StrCat(why.message(), "; the source before, ", before->source.lane, " ",
                                         before->source.name, ", was given up: ", before->status.message()));
}

SourceLoss LossOf(const SourceFailure& failure) {
  return failure.corrupt                            ? SourceLoss::kBadDigest
         : absl::IsDeadlineExceeded(failure.status) ? SourceLoss::kTimeout
                                                    : SourceLoss::kDied;
}

// Runs `work` on this thread and `extra` more, and waits for all of them.
void RunOnThreads(int extra, const std::function<void()>& work) {
  std::vector<std::thread> threads;
  try {
    for (int i = 0; i < extra; ++i) threads.emplace_back(work);
  } catch (const std::system_error& error) {
    LOG(WARNING) << "an ingest runs on " << threads.size() + 1 << " threads instead of " << extra + 1 << ": "
                 << error.what();
  }
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

struct IngestPipeline::SourceRun {
  explicit SourceRun(ChunkSource& source)
      : source(source),
        max_fetches(std::max(1, source.max_concurrency())),
        clock(std::make_shared<StageClock>(source.info())) {}

  ChunkSource& source;
  const int max_fetches;
  const std::shared_ptr<StageClock> clock;  // read by others while it runs
  // Guarded by the pipeline's mutex.
  int fetches = 0;
  uint32_t delivered = 0;  // chunks
  bool stopping = false;
  std::optional<SourceFailure> failure;
};

IngestPipeline::IngestPipeline(PipelinePlan plan)
    : plan_(std::move(plan)), digests_(plan_.layout->chunk_count()), ledger_(plan_.layout->chunk_count()) {}

absl::Status IngestPipeline::CheckContext() const {
  return plan_.context().Check(absl::StrCat("ingest of ", plan_.subject));
}

IngestOutcome IngestPipeline::Run() {
  absl::Status status = RunSources();
  absl::MutexLock lock(&mutex_);
  return {std::move(status), std::move(digests_), std::move(changes_), refetched_, verified_};
}

absl::Status IngestPipeline::RunSources() {
  std::optional<SourceFailure> failure;
  auto unfinished = [this] {
    absl::MutexLock lock(&mutex_);
    return !ledger_.all_done();
  };
  bool told = true;  // the provider knows of the failure
  while (unfinished()) {
    TC_RETURN_IF_ERROR(CheckContext());
    const RequestContext context = plan_.context();
    absl::StatusOr<std::unique_ptr<ChunkSource>> source =
        plan_.sources->Next(context, std::exchange(told, true) ? nullptr : &*failure);
    if (!source.ok()) {
      TC_RETURN_IF_ERROR(CheckContext());
      // Somebody joined meanwhile who has more time.
      if (absl::IsDeadlineExceeded(source.status()) && plan_.context().deadline > context.deadline) continue;
      return NoSourceLeft(source.status(), failure);
    }
    NoteChanges(failure, (*source)->info());
    failure = RunSource(**source);
    told = !failure.has_value();
    absl::MutexLock lock(&mutex_);
    TC_RETURN_IF_ERROR(fatal_);
  }
  return absl::OkStatus();
}

int IngestPipeline::SlotCount(const ChunkSource& source) const {
  absl::MutexLock lock(&mutex_);
  const int useful = static_cast<int>(std::min<uint32_t>(ledger_.missing(), kMaxSlots));
  const int wanted = std::max(1, source.max_concurrency()) + kSlotsBesideFetches;
  return std::max(1, std::min({useful, wanted, plan_.destination->max_chunks()}));
}

std::optional<SourceFailure> IngestPipeline::RunSource(ChunkSource& source) {
  SourceRun run(source);
  plan_.progress->SetSource(source.info(), run.clock);
  RunOnThreads(SlotCount(source) - 1, [this, &run] { SlotLoop(run); });
  absl::MutexLock lock(&mutex_);
  if (run.failure.has_value()) {
    run.failure->delivered = run.delivered;
    LOG(WARNING) << "ingest of " << plan_.subject << ": source " << run.failure->source.lane << " "
                 << run.failure->source.name << " is given up"
                 << (run.failure->corrupt ? " as corrupt: " : ": ") << run.failure->status;
  }
  return std::move(run.failure);
}

void IngestPipeline::NoteChanges(const std::optional<SourceFailure>& failure, const SourceInfo& next) {
  const SteadyTime now = SteadyNow();
  absl::MutexLock lock(&mutex_);
  if (failure.has_value()) {
    changes_.push_back({failure->source, next, LossOf(*failure), failure->status, failure->chunks, now});
  }
  for (SourceFailure& unopened : plan_.sources->TakeUnopened()) {
    changes_.push_back({std::move(unopened.source), next, SourceLoss::kNotOpened, std::move(unopened.status),
                        /*chunks=*/0, now});
  }
}

void IngestPipeline::SlotLoop(SourceRun& run) {
  while (const std::optional<uint32_t> chunk = TakeChunk(run)) MoveChunk(run, *chunk);
}

std::optional<uint32_t> IngestPipeline::TakeChunk(SourceRun& run) {
  const absl::Status wanted = CheckContext();
  absl::MutexLock lock(&mutex_);
  if (!wanted.ok() && ledger_.missing() > 0) {
    fatal_.Update(wanted);
    run.stopping = true;
  }
  auto may_go_on = [this, &run]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return run.stopping || ledger_.missing() == 0 || run.fetches < run.max_fetches;
  };
  mutex_.Await(absl::Condition(&may_go_on));
  if (run.stopping) return std::nullopt;
  const std::optional<ChunkLedger::Taken> taken = ledger_.Take();
  if (!taken.has_value()) return std::nullopt;
  ++run.fetches;
  refetched_ += taken->again ? 1 : 0;
  return taken->chunk;
}

void IngestPipeline::MoveChunk(SourceRun& run, uint32_t chunk) {
  const ByteRange range = plan_.layout->chunk(chunk);
  // A fetch that failed ends after its source is given up: until then its place is taken, so that no other
  // slot asks a source that is known to have failed.
  absl::Cleanup end_fetch = [this, &run] { EndFetch(run); };
  absl::StatusOr<ChunkBuffer> buffer = plan_.destination->Acquire(plan_.context(), range);
  if (!buffer.ok()) return GiveUp(run, chunk, buffer.status());
  const ChunkRequest request{chunk, range, buffer->spans, WantsBlake3(run, chunk)};
  const RequestContext context = plan_.context();
  absl::StatusOr<std::optional<ChunkDigests>> digests = Fetch(run, context, request);
  if (!digests.ok()) {
    if (absl::Status wanted = CheckContext(); !wanted.ok()) return GiveUp(run, chunk, wanted);
    // Somebody joined meanwhile who has more time. A source that is late for a reason of its own shows that
    // at the next fetch.
    if (absl::IsDeadlineExceeded(digests.status()) && plan_.context().deadline > context.deadline) {
      return PutBack(chunk);
    }
    return GiveUpSource(run, chunk, digests.status(), /*corrupt=*/false);
  }
  std::move(end_fetch).Invoke();
  if (plan_.expected == nullptr) {
    if (absl::Status padding = CheckPadding(*plan_.layout, range, buffer->spans); !padding.ok()) {
      return GiveUp(run, chunk, padding);
    }
  }
  if (!Verify(run, request, *digests)) return;
  if (absl::Status placed = Place(run, request, *buffer); !placed.ok()) return GiveUp(run, chunk, placed);
  Commit(run, chunk, range.bytes);
}

bool IngestPipeline::WantsBlake3(const SourceRun& run, uint32_t chunk) const {
  if (plan_.expected == nullptr) return true;
  return plan_.distrust_other_hosts && run.source.info().type == SourceType::kRemote &&
         plan_.expected->digests()[chunk].blake3.has_value();
}

absl::StatusOr<std::optional<ChunkDigests>> IngestPipeline::Fetch(SourceRun& run,
                                                                  const RequestContext& context,
                                                                  const ChunkRequest& request) {
  const SteadyTime start = SteadyNow();
  absl::StatusOr<std::optional<ChunkDigests>> digests = run.source.Fetch(context, request);
  if (digests.ok()) {
    run.clock->Passed(Stage::kFetch, start, request.range.bytes);
  } else {
    run.clock->Failed(Stage::kFetch, start, digests.status());
  }
  return digests;
}

bool IngestPipeline::Verify(SourceRun& run, const ChunkRequest& request,
                            std::optional<ChunkDigests> delivered) {
  const SteadyTime start = SteadyNow();
  const bool complete = delivered.has_value() && (delivered->blake3.has_value() || !request.blake3);
  const uint64_t bytes_read = complete ? 0 : request.range.bytes;
  const ChunkDigests digests = DigestsOf(request, delivered);
  if (plan_.expected != nullptr) {
    const std::string wrong = Mismatch(digests, plan_.expected->digests()[request.chunk]);
    if (!wrong.empty()) {
      absl::Status mismatch =
          absl::DataLossError(absl::StrCat("chunk ", request.chunk, " of ", plan_.subject, " from ",
                                           run.source.info().lane, " ", run.source.info().name, " ", wrong));
      run.clock->Failed(Stage::kVerify, start, mismatch);
      GiveUpSource(run, request.chunk, std::move(mismatch), /*corrupt=*/true);
      return false;
    }
  }
  digests_[request.chunk] = digests;
  run.clock->Passed(Stage::kVerify, start, bytes_read);
  return true;
}

absl::Status IngestPipeline::Place(SourceRun& run, const ChunkRequest& request, const ChunkBuffer& buffer) {
  if (!plan_.destination->places()) return absl::OkStatus();
  const SteadyTime start = SteadyNow();
  absl::Status placed = plan_.destination->Place(request.range, buffer);
  if (placed.ok()) {
    run.clock->Passed(Stage::kPlace, start, request.range.bytes);
  } else {
    run.clock->Failed(Stage::kPlace, start, placed);
  }
  return placed;
}

void IngestPipeline::Commit(SourceRun& run, uint32_t chunk, uint64_t bytes) {
  plan_.on_chunk(chunk);
  plan_.progress->AddDone(bytes);
  absl::MutexLock lock(&mutex_);
  ++run.delivered;
  ledger_.Done(chunk);
  verified_ += plan_.expected != nullptr ? 1 : 0;
}

void IngestPipeline::EndFetch(SourceRun& run) {
  absl::MutexLock lock(&mutex_);
  --run.fetches;
}

void IngestPipeline::PutBack(uint32_t chunk) {
  absl::MutexLock lock(&mutex_);
  ledger_.PutBack(chunk);
}

void IngestPipeline::GiveUpSource(SourceRun& run, uint32_t chunk, absl::Status why, bool corrupt) {
  absl::MutexLock lock(&mutex_);
  ledger_.PutBack(chunk);
  run.stopping = true;
  if (!run.failure.has_value()) {
    run.failure = SourceFailure{run.source.info(), std::move(why), corrupt};
  } else if (corrupt && !run.failure->corrupt) {
    // That it lies is worth more to know than that it also broke off.
    run.failure->status = std::move(why);
    run.failure->corrupt = true;
  }
  ++run.failure->chunks;
}

void IngestPipeline::GiveUp(SourceRun& run, uint32_t chunk, absl::Status why) {
  absl::MutexLock lock(&mutex_);
  ledger_.PutBack(chunk);
  run.stopping = true;
  fatal_.Update(std::move(why));
}

}  // namespace tensorcast
