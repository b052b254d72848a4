// One ingest at work: fetch -> verify -> place -> commit for every chunk that is wanted of an image, from
// several sources at once.
//
// Slots, a thread each, take whatever step can be taken: a fetch that ended is verified and sent to its place
// (a device copies on while no slot waits), else one of them awaits the chunk that has been on that way the
// longest, and the others have the picker name the next chunk for one of the sources. The slots are shared by
// all sources; one that has nothing to give holds none, and neither does a fetch of a source that needs no
// thread while it fetches.
//
// Run's own thread is in control: it asks the provider for sources, which join and leave while the slots
// work, destroys those that were given up, and tells what waits for what. While the only source is one of
// which no more is to be expected it is a slot as well.
//
// Credit runs backwards. A chunk is taken within its source's window, then a buffer of the destination (one
// of a staging ring, held until the chunk is in its place; a replica's own memory is always there), then it
// is asked for. So a slow device or disk stops the fetches for it, and no slot holds a buffer that waits for
// bytes that no source has. Bytes that a source has in page-locked memory are verified there and copied from
// there, without a buffer; those that it has on a GPU come straight to a GPU, and so do those that it writes
// there from another host: they are digested in their place. One slot at a time waits for a buffer: the
// others place what arrives, which is what gives buffers back.
//
// A chunk is asked of one source at a time, so its place has one writer. A fetch has a cancellation of its
// own; it ends, cancelled or not, before its chunk is asked of another. A source that fails, or sends wrong
// bytes, is given up alone: its other fetches are cancelled and their chunks go to the others.
//
// A source that gives nothing for long is overtaken where another gives its chunks (chunk_picker), and
// reported to the provider at the end. Where none of the sources in use gives anything the provider is asked
// for a better one; until there is one, a slow source is as good as any.
//
// A source may fill yet (ChunkSource::availability). When no source has a chunk that is missing, and nothing
// is under way, the ingest waits; when that lasts too long (missing_chunk_stall), all of them are given up
// and the provider is asked.
//
// Run is called once; progress may be read from any thread meanwhile. No lock is held across a call to a
// source, the provider, the destination, a cancellation, or an availability but for what takes no lock there:
// an availability calls its observers, which take the pipeline's mutex, under its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/ingest/chunk_verifier.h"
#include "core/ingest/destination.h"
#include "core/ingest/device_verification.h"
#include "core/ingest/missing_chunk_stall.h"
#include "core/ingest/progress.h"
#include "core/ingest/progress_stall.h"
#include "core/ingest/source_set.h"
#include "core/replica/transfer_report.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// All pointers must outlive the pipeline.
struct PipelinePlan {
  std::string subject;  // the artifact, for messages
  const ImageLayout* layout = nullptr;
  // Null: a first ingest, which computes both digests of every chunk and checks the padding.
  const Manifest* expected = nullptr;
  // For a known artifact: the chunks that are to be brought, ascending. Not set: all.
  std::optional<std::vector<uint32_t>> chunks = {};
  Destination* destination = nullptr;
  SourceProvider* sources = nullptr;
  ProgressTracker* progress = nullptr;
  DeviceVerification device_verification = DeviceVerification::kFull;
  bool distrust_other_hosts = false;  // compare BLAKE3 too of what comes from another host
  std::optional<int> numa_node = {};  // near which the slots run, but for Run's own thread
  // Sources that have had nothing for so long, while nothing was under way, are given up.
  absl::Duration peer_timeout = absl::InfiniteDuration();
  uint64_t seed = 0;                        // of the order of chunks
  std::function<RequestContext()> context;  // as it is now; always the same cancellation
  // This chunk is in its place; and verified, unless the policy lets it be.
  std::function<void(uint32_t chunk, bool verified)> on_chunk;
  // Told, on Run's thread, what is waited for, for people; an empty text: it goes on.
  WaitObserver on_wait;
};

struct IngestOutcome {
  absl::Status status;
  std::vector<ChunkDigests> digests;  // of every chunk that was brought when the status is OK
  std::vector<SourceChange> changes;
  std::vector<SourceFailure> untold;  // sources given up, of which the provider does not know yet
  uint32_t refetched_chunks = 0;
  uint32_t reassigned_chunks = 0;
  uint32_t verified_chunks = 0;
};

class IngestPipeline {
 public:
  explicit IngestPipeline(PipelinePlan plan);

  // Blocks until every chunk that is wanted is done, or no source is left, or the destination failed, or the
  // context ended. To be called once.
  IngestOutcome Run();

 private:
  // What a thread does next, without the lock. Null: everything is over.
  using Step = std::function<void()>;

  void TakeSteps(bool in_control);
  Step NextStep(bool in_control);
  // Null: there is nothing of this kind to do now.
  Step RetireStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step ControlStep(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Step SlotStep(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitChange(bool in_control, const RequestContext& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SteadyTime NextControl(const RequestContext& context) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsAlone() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);  // the only source, and no more to be expected
  bool ControlIsSlot() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsOver() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // There may be another chunk to take. The slot that takes the next step else lets the others sleep, if one
  // of them has found nothing before.
  void WakeSlots() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { more_to_take_ = slots_wake_ = true; }
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    WakeSlots();
    control_wakes_ = true;
  }

  // --- in control
  // `unneeded`: ends the question; null: a source is needed.
  void AskProvider(const Cancellation* unneeded);
  void TellStall();
  absl::Status CheckAvailability(const ChunkSource& source) const;
  void AddSource(std::unique_ptr<ChunkSource> opened);
  int SlotsWanted() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void StartSlots();
  void LookAtEnd(SourceInUse& source);
  void GiveUpAll();
  void Retire(SourceInUse& source);
  // REQUIRES: a source is in use.
  void NoteChange(const SourceFailure& failure, bool opened) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // --- a chunk
  FetchPtr TakeFetch(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(const FetchPtr& fetch);
  void NoteFetched(ChunkFetch& fetch);
  void PassOn(const FetchPtr& fetch);
  DirectPath DirectPathOf(ChunkSource& source) const;
  bool BeginDirect(const FetchPtr& fetch);  // whether it is on the way to its place, and never in the host
  void FetchInto(const FetchPtr& fetch);    // what its request names
  void ArrivedDirect(const FetchPtr& fetch);
  bool PlaceDirect(ChunkFetch& fetch, DevicePtr source);  // whether it is on the way, and digested at its end
  bool AcceptDirect(ChunkFetch& fetch);  // whether it is in its place, and right, or else missing again
  void StopDirect(ChunkFetch& fetch, const absl::Status& why);
  bool FindInHost(ChunkFetch& fetch);  // whether its source has it where it can be placed from
  void StopAcquiring();
  void Arrived(const FetchPtr& fetch);
  bool Accept(ChunkFetch& fetch);  // whether it is right and on the way to its place, or else missing again
  void AwaitPlace(const FetchPtr& fetch);
  bool Placed(ChunkFetch& fetch);  // whether it is in its place now, or else missing again
  void Finish(ChunkFetch& fetch, bool placed);
  absl::Status Verify(const ChunkFetch& fetch);
  absl::Status Place(ChunkFetch& fetch);

  // --- what ends before its time. Those that give cancellations are for the caller to cancel, without the
  // lock.
  void EndInVain(ChunkFetch& fetch);
  // Whether that was not a fault of its source, as the ingest's context is now.
  bool IsExcused(ChunkFetch& fetch, const RequestContext& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutBackWrong(ChunkFetch& fetch, absl::Status why);      // costs its source
  void PutBackAndGiveUp(ChunkFetch& fetch, absl::Status why);  // costs the whole ingest
  [[nodiscard]] std::vector<Cancellation> LookAgain(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchStall(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  [[nodiscard]] std::vector<Cancellation> GiveUpSource(SourceInUse& source, absl::Status why, bool corrupt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  [[nodiscard]] std::vector<Cancellation> GiveUp(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Cancellation> UnderWay() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void CancelFetches();
  static void CancelAll(const std::vector<Cancellation>& fetches);

  const PipelinePlan plan_;
  const std::string what_;  // for messages
  ChunkVerifier verifier_;

  // Run's thread only.
  std::vector<std::thread> slots_;
  std::vector<SourceFailure> untold_;      // as in the outcome
  std::vector<SourceFailure> unreplaced_;  // given up when no other source was in use
  std::optional<SourceFailure> last_given_up_;

  mutable absl::Mutex mutex_;
  // Something happened that may give a slot, or the thread in control, a step to take.
  bool slots_wake_ ABSL_GUARDED_BY(mutex_) = false;
  bool more_to_take_ ABSL_GUARDED_BY(mutex_) = false;  // more chunks than one, perhaps
  bool control_wakes_ ABSL_GUARDED_BY(mutex_) = false;
  SourceSet sources_ ABSL_GUARDED_BY(mutex_);
  int started_slots_ ABSL_GUARDED_BY(mutex_) = 0;
  bool acquiring_ ABSL_GUARDED_BY(mutex_) = false;  // a slot waits for a buffer
  // The provider is being asked for more than is needed; so that can be ended.
  std::optional<Cancellation> asking_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<FetchPtr> arrived_ ABSL_GUARDED_BY(mutex_);  // fetches that ended
  std::deque<FetchPtr> placing_ ABSL_GUARDED_BY(mutex_);  // chunks on the way to their place
  bool awaiting_place_ ABSL_GUARDED_BY(mutex_) = false;   // a slot waits for one of them
  SteadyTime next_look_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();  // for overdue fetches
  SteadyTime ask_again_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfiniteFuture();
  MissingChunkStall idle_ ABSL_GUARDED_BY(mutex_);
  ProgressStall stall_ ABSL_GUARDED_BY(mutex_);       // of all sources in use together
  bool tell_stall_ ABSL_GUARDED_BY(mutex_) = false;   // the provider
  std::string told_waiting_ ABSL_GUARDED_BY(mutex_);  // what on_wait was told last
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);        // ends the whole ingest
  std::vector<SourceChange> changes_ ABSL_GUARDED_BY(mutex_);
  uint32_t reassigned_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t verified_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast
