#include "core/testing/scripted_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::testing {

class ScriptedSource final : public ChunkSource {
 public:
  explicit ScriptedSource(std::shared_ptr<SourceControl> control)
      : control_(std::move(control)),
        info_{.type = control_->script_.type,
              .lane = "test",
              .name = control_->script_.name,
              .share = control_->script_.share,
              .shares = control_->script_.shares} {
    control_->CountOpen(1);
  }
  ~ScriptedSource() override { control_->CountOpen(-1); }

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return control_->script_.max_concurrency; }
  std::shared_ptr<const Availability> availability() const override { return control_->script_.availability; }
  bool blocks() const override { return !control_->script_.own_thread; }

  void StartFetch(const RequestContext& context, const ChunkRequest& request,
                  const ChunkDone& done) override {
    if (blocks()) return ChunkSource::StartFetch(context, request, done);
    control_->thread_->Post([=, this] { done(Fetch(context, request)); });
  }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_RETURN_IF_ERROR(control_->Begin(context, request.chunk));
    if (control_->Refuses(request.chunk)) {
      control_->End();
      return absl::FailedPreconditionError(absl::StrCat("chunk ", request.chunk, " is not there"));
    }
    absl::StatusOr<std::optional<ChunkDigests>> digest = Deliver(request);
    control_->End();
    return digest;
  }

 private:
  absl::StatusOr<std::optional<ChunkDigests>> Deliver(const ChunkRequest& request) {
    const SourceScript& script = control_->script_;
    if (script.failing_chunks.contains(request.chunk)) {
      return absl::UnavailableError(absl::StrCat("scripted failure of chunk ", request.chunk));
    }
    CHECK_LE(request.range.offset + request.range.bytes, control_->image_.size());
    uint64_t offset = request.range.offset;
    DigestBuilder digest(request.blake3);
    for (const HostSpan& span : request.destination) {
      std::memcpy(span.data(), control_->image_.data() + offset, span.size());
      offset += span.size();
    }
    CHECK_EQ(offset, request.range.offset + request.range.bytes);
    if (script.corrupt_chunks.contains(request.chunk)) request.destination.front().front() ^= std::byte{1};
    if (!script.deliver_digests) return std::nullopt;
    for (const HostSpan& span : request.destination) digest.Update(span);
    return digest.FinishChunk();
  }

  const std::shared_ptr<SourceControl> control_;
  const SourceInfo info_;
};

SourceControl::SourceControl(std::vector<std::byte> image, SourceScript script)
    : image_(std::move(image)), script_(std::move(script)), held_(script_.held), refusals_(script_.refusals) {
  if (script_.own_thread) thread_.emplace();
}

std::unique_ptr<ChunkSource> SourceControl::MakeSource() {
  {
    absl::MutexLock lock(&mutex_);
    ++opened_;
  }
  return std::make_unique<ScriptedSource>(shared_from_this());
}

void SourceControl::Release() {
  absl::MutexLock lock(&mutex_);
  held_ = false;
}

void SourceControl::WaitForHeldFetches(int count) {
  absl::MutexLock lock(&mutex_);
  auto enough = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return held_fetches_ >= count; };
  mutex_.Await(absl::Condition(&enough));
}

absl::Status SourceControl::Begin(const RequestContext& context, uint32_t chunk) {
  // Taking the lock makes the mutex evaluate the condition of the wait below again. Without this a
  // cancellation would not end the wait.
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
  absl::MutexLock lock(&mutex_);
  bool late = false;
  ++fetches_[chunk];
  max_at_once_ = std::max(max_at_once_, ++running_);
  if (held_) {
    ++held_fetches_;
    auto may_go_on = [this, &context]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !held_ || context.cancellation.IsCancelled();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&may_go_on), TimeLeft(context.deadline));
    --held_fetches_;
    late = script_.held_too_long;
  }
  absl::Status wanted = context.Check("scripted fetch");
  if (late) wanted.Update(absl::DeadlineExceededError("scripted to be late"));
  running_ -= wanted.ok() ? 0 : 1;
  return wanted;
}

bool SourceControl::Refuses(uint32_t chunk) {
  absl::MutexLock lock(&mutex_);
  bool refuses = script_.availability != nullptr && !script_.availability->Has(chunk);
  if (const auto left = refusals_.find(chunk); left != refusals_.end() && left->second > 0) {
    --left->second;
    refuses = true;
  }
  refused_ += refuses ? 1 : 0;
  return refuses;
}

void SourceControl::End() {
  absl::MutexLock lock(&mutex_);
  --running_;
}

void SourceControl::CountOpen(int change) {
  absl::MutexLock lock(&mutex_);
  open_ += change;
}

int SourceControl::opened() const {
  absl::MutexLock lock(&mutex_);
  return opened_;
}

int SourceControl::open() const {
  absl::MutexLock lock(&mutex_);
  return open_;
}

std::map<uint32_t, int> SourceControl::fetches() const {
  absl::MutexLock lock(&mutex_);
  return fetches_;
}

int SourceControl::refused() const {
  absl::MutexLock lock(&mutex_);
  return refused_;
}

int SourceControl::total_fetches() const {
  int total = 0;
  for (const auto& [chunk, count] : fetches()) total += count;
  return total;
}

int SourceControl::max_at_once() const {
  absl::MutexLock lock(&mutex_);
  return max_at_once_;
}

std::shared_ptr<SourceControl> MakeControl(std::vector<std::byte> image, SourceScript script) {
  return std::make_shared<SourceControl>(std::move(image), std::move(script));
}

ScriptedProvider::ScriptedProvider(const std::vector<std::shared_ptr<SourceControl>>& controls)
    : only_when_needed_(true) {
  for (const std::shared_ptr<SourceControl>& control : controls) batches_.push_back({.controls = {control}});
}

absl::StatusOr<MoreSources> ScriptedProvider::Next(const RequestContext& context,
                                                   std::span<const SourceFailure> ended, bool needed) {
  TC_RETURN_IF_ERROR(context.Check("scripted provider"));
  absl::MutexLock lock(&mutex_);
  ++calls_;
  failures_.insert(failures_.end(), ended.begin(), ended.end());
  MoreSources more;
  if (only_when_needed_ && !needed) return more;
  if (next_ == batches_.size()) {
    if (needed) return absl::NotFoundError("no scripted source is left");
    return more;
  }
  const SourceBatch& batch = batches_[next_++];
  for (const std::shared_ptr<SourceControl>& control : batch.controls) {
    more.sources.push_back(control->MakeSource());
  }
  more.look_again = batch.look_again;
  return more;
}

void ScriptedProvider::Finished(const absl::Status& status, std::span<const SourceFailure> ended) {
  absl::MutexLock lock(&mutex_);
  failures_.insert(failures_.end(), ended.begin(), ended.end());
  finished_.push_back(status);
}

int ScriptedProvider::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

std::vector<SourceFailure> ScriptedProvider::failures() const {
  absl::MutexLock lock(&mutex_);
  return failures_;
}

std::vector<absl::Status> ScriptedProvider::finished() const {
  absl::MutexLock lock(&mutex_);
  return finished_;
}

absl::StatusOr<std::unique_ptr<ChunkSource>> NextOf(SourceProvider& provider, const RequestContext& context,
                                                    const SourceFailure* failure) {
  const std::span<const SourceFailure> ended(failure, failure == nullptr ? 0 : 1);
  TC_ASSIGN_OR_RETURN(MoreSources more, provider.Next(context, ended, /*needed=*/true));
  CHECK_EQ(more.sources.size(), 1u);
  return std::move(more.sources.front());
}

}  // namespace tensorcast::testing
