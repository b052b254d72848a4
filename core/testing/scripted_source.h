// A chunk source, and a provider of such sources, that do what a test tells them: fail, lie, hold back,
// count.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/source/chunk_source.h"

namespace tensorcast::testing {

struct SourceScript {
  std::string name = "scripted";
  int max_concurrency = 2;
  bool deliver_digests = false;       // with each chunk, of the bytes delivered
  bool held = false;                  // fetches wait until Release(), or their request is cancelled
  bool held_too_long = false;         // and then are DEADLINE_EXCEEDED
  std::set<uint32_t> failing_chunks;  // UNAVAILABLE
  std::set<uint32_t> corrupt_chunks;  // one bit flipped
};

// What sources have in common with the test: the bytes, the script, what happened. One control may serve
// several sources. Must be held by a shared_ptr.
class SourceControl : public std::enable_shared_from_this<SourceControl> {
 public:
  SourceControl(std::vector<std::byte> image, SourceScript script);

  std::unique_ptr<ChunkSource> MakeSource();
  // Lets held fetches, and all later ones, go on.
  void Release();
  // Blocks until this many fetches are held at once.
  void WaitForHeldFetches(int count);

  int opened() const;
  int open() const;                         // sources alive
  std::map<uint32_t, int> fetches() const;  // begun, by chunk
  int total_fetches() const;
  int most_at_once() const;

 private:
  friend class ScriptedSource;
  absl::Status Begin(const RequestContext& context, uint32_t chunk);
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
  int most_at_once_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, int> fetches_ ABSL_GUARDED_BY(mutex_);
};

std::shared_ptr<SourceControl> MakeControl(std::vector<std::byte> image, SourceScript script = {});

// Gives one source of each control in turn, then NOT_FOUND. Remembers what it was told.
class ScriptedProvider final : public SourceProvider {
 public:
  explicit ScriptedProvider(std::vector<std::shared_ptr<SourceControl>> controls)
      : controls_(std::move(controls)) {}

  absl::StatusOr<std::unique_ptr<ChunkSource>> Next(const RequestContext& context,
                                                    const SourceFailure* failure) override;
  void Finished(const absl::Status& status) override;

  int calls() const;
  std::vector<SourceFailure> failures() const;
  // One for each call of Finished.
  std::vector<absl::Status> finished() const;

 private:
  const std::vector<std::shared_ptr<SourceControl>> controls_;
  mutable absl::Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<SourceFailure> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::testing
