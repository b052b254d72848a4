#include "daemon/sources/pull_source.h"

#include <atomic>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/status.h"

namespace tensorcast::daemon {
namespace {

// Enough to keep a connection busy while finished chunks are verified; each is a whole chunk (1 to 16 MiB),
// and more only delays the first.
constexpr int kFetchesInFlight = 4;

class PullSource : public ChunkSource {
 public:
  PullSource(SourceInfo info, std::unique_ptr<transport::Pull> pull, Cancellation revoked,
             absl::Duration peer_timeout)
      : info_(std::move(info)), pull_(std::move(pull)), on_revoked_(revoked.OnCancel([this] {
          revoked_ = true;
          pull_->Cancel();
        })) {
    pull_->SetSilenceLimit(peer_timeout);
  }

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return kFetchesInFlight; }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_RETURN_IF_ERROR(context.Check("pull of a chunk"));
    struct Waiting {
      absl::Notification done;
      transport::FetchResult result;
    } waiting;
    const transport::FetchId fetch =
        pull_->Fetch(request.range.offset, {request.destination.begin(), request.destination.end()},
                     context.deadline, [&waiting](const transport::FetchResult& result) {
                       waiting.result = result;
                       waiting.done.Notify();
                     });
    auto on_cancel = context.cancellation.OnCancel([this, fetch] { pull_->CancelFetch(fetch); });
    // Until then the memory may still be written to, cancelled or not.
    waiting.done.WaitForNotification();
    if (waiting.result.ok()) {
      const std::optional<Digest>& xxh3 = *waiting.result;
      return xxh3.has_value() ? std::make_optional(ChunkDigests{.xxh3 = *xxh3, .blake3 = std::nullopt})
                              : std::nullopt;
    }
    TC_RETURN_IF_ERROR(context.Check("pull of a chunk"));
    if (revoked_) {
      return absl::AbortedError(absl::StrCat("the grant was revoked: ", waiting.result.status().message()));
    }
    return Annotate(waiting.result.status(), absl::StrCat("pull from ", info_.name));
  }

 private:
  const SourceInfo info_;
  std::atomic<bool> revoked_ = false;
  std::unique_ptr<transport::Pull> pull_;
  Cancellation::Registration on_revoked_;  // destroyed before the pull that its callback uses
};

}  // namespace

std::unique_ptr<ChunkSource> MakePullSource(SourceInfo info, std::unique_ptr<transport::Pull> pull,
                                            Cancellation revoked, absl::Duration peer_timeout) {
  return std::make_unique<PullSource>(std::move(info), std::move(pull), std::move(revoked), peer_timeout);
}

}  // namespace tensorcast::daemon
