#include "daemon/sources/origin_comparer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/aside.h"
#include "base/status.h"
#include "core/disk/import_verifier.h"
#include "core/source/chunk_source.h"
#include "core/source/object_source.h"
#include "daemon/sources/origin_files.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

// Two writes within the file system's grain of time (at most 10 ms) leave the same ctime. A read that begins
// later than that after the identity was taken sees the first, and the second changes the ctime.
constexpr absl::Duration kGrain = absl::Milliseconds(50);
// A file system that hangs holds up the other comparisons for no longer than this, beyond the time at a
// quarter of the rate.
constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr double kSlowestBytesPerSecond = 16 << 20;

// Reads one chunk after the other, no faster than the rate, and counts what was read.
class PacedSource final : public ChunkSource {
 public:
  PacedSource(std::unique_ptr<ChunkSource> source, uint64_t bytes_per_second,
              std::shared_ptr<std::atomic<uint64_t>> read)
      : source_(std::move(source)), bytes_per_second_(bytes_per_second), read_(std::move(read)) {}

  const SourceInfo& info() const override { return source_->info(); }
  int max_concurrency() const override { return 1; }
  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_ASSIGN_OR_RETURN(std::optional<ChunkDigests> digests, source_->Fetch(context, request));
    const uint64_t read = read_->fetch_add(request.range.bytes) + request.range.bytes;
    if (bytes_per_second_ == 0) return digests;
    const absl::Duration due =
        absl::Seconds(static_cast<double>(read) / static_cast<double>(bytes_per_second_));
    TC_RETURN_IF_ERROR(rpc::SleepFor(context, begun_ + due - SteadyNow(), "compare an origin"));
    return digests;
  }

 private:
  const std::unique_ptr<ChunkSource> source_;
  const uint64_t bytes_per_second_;
  const std::shared_ptr<std::atomic<uint64_t>> read_;
  const SteadyTime begun_ = SteadyNow();
};

// A manifest that was given back says that the digests are right.
absl::StatusOr<std::shared_ptr<const Manifest>> Read(const RequestContext& context, const ObjectStore& store,
                                                     const Origin& origin,
                                                     const std::shared_ptr<const Manifest>& manifest,
                                                     uint64_t bytes_per_second,
                                                     std::shared_ptr<std::atomic<uint64_t>> read) {
  TC_ASSIGN_OR_RETURN(const OriginExtents opened, OpenOriginExtents(context, store, origin, *manifest));
  const ImageLayout& layout = manifest->layout();
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ChunkSource> source,
                      MakeObjectSource(opened.objects, opened.extents, layout.image_bytes));
  PacedSource paced(std::move(source), bytes_per_second, std::move(read));
  TC_ASSIGN_OR_RETURN(const std::optional<uint32_t> different, FindDifferentChunk(context, paced, *manifest));
  if (!different.has_value()) return manifest;
  return absl::DataLossError(absl::StrCat(
      "compare ", DescribeObjects(layout.chunk(*different), opened.extents, opened.objects), ": chunk ",
      *different,
      " differs from the import, although the file's size and times did not change; import the model again"));
}

}  // namespace

// A task is due (at first kGrain after its request), is read, and is then published, each by one Step of the
// thread. Errors that pass make it due again after retry_interval, from the step that failed. A task with
// files that differ stays, without a time, so that its error can be told.
OriginComparer::OriginComparer(Options options) : options_(std::move(options)), thread_([this] { Loop(); }) {}

OriginComparer::~OriginComparer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  cancellation_.Cancel();
  thread_.join();
}

OriginComparer::Standing OriginComparer::Compare(const std::string& artifact_id, const Origin& origin) {
  absl::MutexLock lock(&mutex_);
  Task& task = tasks_[artifact_id];
  if (task.compared_bytes == nullptr || task.origin.objects != origin.objects) {
    task = {.origin = origin,
            .compared_bytes = std::make_shared<std::atomic<uint64_t>>(0),
            .due = SteadyNow() + kGrain};
    for (const ObjectIdentity& object : origin.objects) task.total_bytes += object.bytes;
  }
  return {.compared_bytes = std::min(task.compared_bytes->load(), task.total_bytes),
          .total_bytes = task.total_bytes,
          .error = task.error};
}

SteadyTime OriginComparer::FirstDue() const {
  SteadyTime first = SteadyTime::InfiniteFuture();
  for (const auto& [artifact_id, task] : tasks_) first = std::min(first, task.due);
  return first;
}

bool OriginComparer::AwaitDue(std::string& artifact_id, Task& task) {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    const SteadyTime first = FirstDue();
    const SteadyTime now = SteadyNow();
    if (first <= now) {
      const auto due =
          std::ranges::find_if(tasks_, [&](const auto& entry) { return entry.second.due == first; });
      artifact_id = due->first;
      task = due->second;
      return true;
    }
    const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || FirstDue() < first;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&changed), first - now);
  }
  return false;
}

void OriginComparer::Loop() {
  std::string artifact_id;
  Task task;
  while (AwaitDue(artifact_id, task)) Step(artifact_id, std::exchange(task, Task()));
}

absl::StatusOr<std::shared_ptr<const Manifest>> OriginComparer::ReadOnce(const std::string& artifact_id,
                                                                         const Task& task) {
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, options_.find_manifest(artifact_id));
  const double quarter = static_cast<double>(options_.bytes_per_second) / 4;
  const double slowest = quarter == 0 ? kSlowestBytesPerSecond : std::min(quarter, kSlowestBytesPerSecond);
  RequestContext context =
      RequestContext::Background(kPatience + absl::Seconds(static_cast<double>(task.total_bytes) / slowest));
  context.cancellation = cancellation_;
  // Each try reads all files again.
  task.compared_bytes->store(0);
  // Aside: a file system that hangs must not keep this thread from other tasks, nor the destructor. The
  // lambda owns what it uses, since it may outlive this object.
  return RunAside<std::shared_ptr<const Manifest>>(
      context, absl::StrCat("compare the origin of ", artifact_id),
      [context, store = options_.objects, origin = task.origin, manifest, rate = options_.bytes_per_second,
       read = task.compared_bytes]() mutable {
        return Read(context, *store, origin, manifest, rate, std::move(read));
      });
}

void OriginComparer::Step(const std::string& artifact_id, Task task) {
  if (task.right == nullptr) {
    absl::StatusOr<std::shared_ptr<const Manifest>> read = ReadOnce(artifact_id, task);
    task.error = read.status();
    if (read.ok()) task.right = *std::move(read);
  }
  // Nothing to compare any more: the artifact is deleted, or its files went or changed, as a check finds,
  // too.
  bool over = IsAboutOriginFiles(task.error);
  if (task.right != nullptr) {
    Origin origin = task.origin;
    origin.compared = true;
    task.error = options_.publish(*task.right, origin);
    over = task.error.ok() || absl::IsFailedPrecondition(task.error);
  }
  const bool differs = absl::IsDataLoss(task.error) && task.right == nullptr;
  LOG_IF(INFO, over && task.error.ok()) << "The origin " << task.origin.objects[0].uri << " of "
                                        << artifact_id << " was compared and is what was imported";
  LOG_IF(ERROR, differs) << "The origin of " << artifact_id
                         << " is not a copy of the artifact: " << task.error;
  LOG_IF(WARNING, !over && !differs && !absl::IsCancelled(task.error))
      << "compare the origin of " << artifact_id << ": " << task.error << "; this daemon tries again later";
  absl::MutexLock lock(&mutex_);
  const auto current = tasks_.find(artifact_id);
  if (current->second.compared_bytes != task.compared_bytes) return;  // other files came meanwhile
  if (over) {
    tasks_.erase(current);
    return;
  }
  task.due = differs ? SteadyTime::InfiniteFuture() : SteadyNow() + options_.retry_interval;
  current->second = std::move(task);
}

}  // namespace tensorcast::daemon
