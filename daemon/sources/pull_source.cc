#include "daemon/sources/pull_source.h"

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"

namespace tensorcast::daemon {
namespace {

// Enough to keep a connection busy while finished chunks are verified; each is a whole chunk (1 to 16 MiB),
// and more only delays the first.
constexpr int kFetchesInFlight = 4;

// Translates between the engine's fetches and those of a pull. A fetch holds no thread: `done` comes on a
// thread of the transport, which also may come before StartFetch has returned. The pull ends every fetch with
// a result, at the latest when it is destroyed.
class PullSource : public ChunkSource {
 public:
  PullSource(SourceInfo info, transport::Transport* lane, std::unique_ptr<transport::Pull> pull,
             const Cancellation& revoked, absl::Duration peer_timeout, DeviceObserver on_device,
             std::shared_ptr<PulledBytes> pulled)
      : info_(std::move(info)),
        lane_(lane),
        on_device_(std::move(on_device)),
        pulled_(std::move(pulled)),
        pull_(std::move(pull)),
        // A revoked grant ends every fetch of the pull at once; DigestsOf then says why.
        on_revoked_(revoked.OnCancel([this] {
          revoked_ = true;
          pull_->Cancel();
        })) {
    pull_->SetSilenceLimit(peer_timeout);
  }

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return kFetchesInFlight; }
  bool blocks() const override { return false; }
  std::shared_ptr<const Availability> availability() const override { return pull_->availability(); }

  // The registration stays as long as the pull may write to the memory, hence the order of the members.
  absl::Status PrepareDevice(DevicePtr image, uint64_t bytes) override {
    if (lane_->memory() == transport::LaneMemory::kHost) return ChunkSource::PrepareDevice(image, bytes);
    absl::StatusOr<std::shared_ptr<void>> registered = lane_->RegisterDevice(image, bytes);
    on_device_(registered.status());
    TC_RETURN_IF_ERROR(registered.status());
    registered_ = *std::move(registered);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    absl::Notification over;
    absl::StatusOr<std::optional<ChunkDigests>> digests;
    StartFetch(context, request, [&](absl::StatusOr<std::optional<ChunkDigests>> result) {
      digests = std::move(result);
      over.Notify();
    });
    // Until then the memory may still be written to, cancelled or not.
    over.WaitForNotification();
    return digests;
  }

  void StartFetch(const RequestContext& context, const ChunkRequest& request,
                  const ChunkDone& done) override {
    if (absl::Status wanted = context.Check("pull a chunk"); !wanted.ok()) return done(std::move(wanted));
    const auto fetch = std::make_shared<RunningFetch>();
    const ByteRange& range = request.range;
    // The bytes are counted before the request leaves: what a source serves is never more than what was asked
    // for (Conservation).
    pulled_->asked += range.bytes;
    transport::FetchDone ended = [this, context, done, fetch,
                                  bytes = range.bytes](const transport::FetchResult& result) {
      fetch->End();
      if (result.ok()) pulled_->arrived += bytes;
      done(DigestsOf(context, result));
    };
    const transport::FetchId id =
        request.device ? pull_->FetchToDevice(range.offset, request.device, range.bytes, context.deadline,
                                              std::move(ended))
                       : pull_->Fetch(range.offset, {request.destination.begin(), request.destination.end()},
                                      context.deadline, std::move(ended));
    // Registered after the fetch began, since the id is known only then. Where the fetch has ended meanwhile,
    // RunningFetch drops the registration.
    fetch->CancelWith(context.cancellation.OnCancel([this, id] { pull_->CancelFetch(id); }));
  }

 private:
  // Keeps its cancellation registered until it ended, which may be before that is registered.
  class RunningFetch {
   public:
    void CancelWith(Cancellation::Registration cancelled) {
      absl::MutexLock lock(&mutex_);
      if (!ended_) cancelled_ = std::move(cancelled);
    }
    void End() {
      Cancellation::Registration over;  // goes after the lock
      absl::MutexLock lock(&mutex_);
      ended_ = true;
      over = std::move(cancelled_);
    }

   private:
    absl::Mutex mutex_;
    bool ended_ ABSL_GUARDED_BY(mutex_) = false;
    Cancellation::Registration cancelled_ ABSL_GUARDED_BY(mutex_);
  };

  absl::StatusOr<std::optional<ChunkDigests>> DigestsOf(const RequestContext& context,
                                                        const transport::FetchResult& result) const {
    if (result.ok()) {
      const std::optional<Digest>& xxh3 = *result;
      return xxh3.has_value() ? std::make_optional(ChunkDigests{.xxh3 = *xxh3, .blake3 = std::nullopt})
                              : std::nullopt;
    }
    // The end of the request itself comes first, since it cancels the fetch.
    TC_RETURN_IF_ERROR(context.Check("pull a chunk"));
    if (revoked_) {
      return absl::AbortedError(absl::StrCat("pull from ", info_.name, ": the grant was revoked (",
                                             result.status().message(), "); request another grant"));
    }
    return Annotate(result.status(), absl::StrCat("source ", info_.name));
  }

  const SourceInfo info_;
  std::atomic<bool> revoked_ = false;
  transport::Transport* const lane_;
  const DeviceObserver on_device_;
  const std::shared_ptr<PulledBytes> pulled_;
  std::shared_ptr<void> registered_;  // what PrepareDevice was given; goes when the pull writes no more
  std::unique_ptr<transport::Pull> pull_;
  Cancellation::Registration on_revoked_;  // destroyed before the pull that its callback uses
};

}  // namespace

std::unique_ptr<ChunkSource> MakePullSource(SourceInfo info, transport::Transport* lane,
                                            std::unique_ptr<transport::Pull> pull,
                                            const Cancellation& revoked, absl::Duration peer_timeout,
                                            DeviceObserver on_device, std::shared_ptr<PulledBytes> pulled) {
  return std::make_unique<PullSource>(std::move(info), lane, std::move(pull), revoked, peer_timeout,
                                      std::move(on_device), std::move(pulled));
}

}  // namespace tensorcast::daemon
