// Chunk sources, and a provider of them, that a test controls. They fail, corrupt bytes, hold fetches, and
// count calls as their script says.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/task_loop.h"
#include "core/source/chunk_source.h"

namespace tensorcast::testing {

struct SourceScript {
  std::string name = "scripted";
  SourceType type = SourceType::kLocal;
  uint32_t share = 0;  // this source's number of `shares`, as in SourceInfo
  uint32_t shares = 1;
  int max_concurrency = 2;
  bool deliver_digests = false;       // with each chunk: of the delivered bytes
  bool held = false;                  // fetches wait for Release() or for the end of their request
  bool held_too_long = false;         // fetches that waited then fail with DEADLINE_EXCEEDED
  bool own_thread = false;            // fetches run on a thread of the source, one after another
  std::set<uint32_t> failing_chunks;  // their fetches fail with UNAVAILABLE
  std::set<uint32_t> corrupt_chunks;  // delivered with one flipped bit
  // The chunks that the source has; null: all. It refuses fetches of other chunks.
  std::shared_ptr<const Availability> availability;
  std::map<uint32_t, int> refusals;  // by chunk: how many fetches are refused though the source has the chunk
};

// The state that a test shares with its sources: the bytes, the script, and counts of calls. Several sources
// may use one control. Must be held by a shared_ptr.
class SourceControl : public std::enable_shared_from_this<SourceControl> {
 public:
  SourceControl(std::vector<std::byte> image, SourceScript script);

  std::unique_ptr<ChunkSource> MakeSource();
  // Ends the wait of held fetches. Later fetches are not held.
  void Release();
  // Blocks until at least this many fetches are held.
  void WaitForHeldFetches(int count);

  int opened() const;                       // sources that were made
  int open() const;                         // sources that exist now
  std::map<uint32_t, int> fetches() const;  // fetches that began, by chunk
  int refused() const;                      // refused fetches
  int total_fetches() const;
  int max_at_once() const;

 private:
  friend class ScriptedSource;
  absl::Status Begin(const RequestContext& context, uint32_t chunk);
  bool Refuses(uint32_t chunk);
  void End();
  void CountOpen(int change);

  const std::vector<std::byte> image_;
  const SourceScript script_;
  mutable absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_);
  int held_fetches_ ABSL_GUARDED_BY(mutex_) = 0;
  int opened_ ABSL_GUARDED_BY(mutex_) = 0;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int max_at_once_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, int> fetches_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, int> refusals_ ABSL_GUARDED_BY(mutex_);  // that are left
  int refused_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<TaskLoop> thread_;  // last: its tasks use the rest
};

std::shared_ptr<SourceControl> MakeControl(std::vector<std::byte> image, SourceScript script = {});

// The sources that a scripted provider gives in one call of Next.
struct SourceBatch {
  std::vector<std::shared_ptr<SourceControl>> controls;
  absl::Duration look_again = absl::InfiniteDuration();
};

// Gives its batches in order, one in each call. After the last, NOT_FOUND if the ingest needs a source, else
// nothing. Remembers the failures that were reported to it.
class ScriptedProvider final : public SourceProvider {
 public:
  // Gives one source of the next control, and only when one is needed.
  explicit ScriptedProvider(const std::vector<std::shared_ptr<SourceControl>>& controls);
  // Gives the next batch in every call.
  explicit ScriptedProvider(std::vector<SourceBatch> batches) : batches_(std::move(batches)) {}

  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override;
  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override;

  int calls() const;
  std::vector<SourceFailure> failures() const;
  // One for each call of Finished.
  std::vector<absl::Status> finished() const;

 private:
  std::vector<SourceBatch> batches_;
  bool only_when_needed_ = false;
  mutable absl::Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<SourceFailure> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> finished_ ABSL_GUARDED_BY(mutex_);
};

// Asks a provider for a source as an ingest does that needs one, and reports `failure` if it is not null.
// REQUIRES: the provider gives one source at a time.
absl::StatusOr<std::unique_ptr<ChunkSource>> NextOf(SourceProvider& provider, const RequestContext& context,
                                                    const SourceFailure* failure = nullptr);

}  // namespace tensorcast::testing
