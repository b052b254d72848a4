#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "client/session.h"

namespace tensorcast::client {
namespace {

class PendingGetImpl final : public PendingGet {
 public:
  PendingGetImpl(std::shared_ptr<Core> core, const RequestContext& context, std::string_view artifact,
                 const GetOptions& options)
      : cancel_with_caller_(
            context.cancellation.OnCancel([cancellation = cancellation_] { cancellation.Cancel(); })) {
    RequestContext own = context;
    own.cancellation = cancellation_;
    thread_ = std::thread([this, core = std::move(core), own, artifact = std::string(artifact), options] {
      Done(RunGet(*core, own, artifact, options));
    });
  }

  ~PendingGetImpl() override {
    Cancel();
    thread_.join();
  }

  absl::StatusOr<std::unique_ptr<Replica>> Wait(absl::Time deadline) override {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &PendingGetImpl::IsDone), TimeLeft(deadline));
    if (!IsDone())
      return absl::DeadlineExceededError("the get is still running; wait for it again, or cancel it");
    if (spent_) return absl::FailedPreconditionError("this get was waited for already; its result is gone");
    spent_ = true;
    return *std::exchange(result_, absl::CancelledError("spent"));
  }

  void Cancel() override { cancellation_.Cancel(); }

 private:
  bool IsDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_.has_value(); }

  void Done(absl::StatusOr<std::unique_ptr<Replica>> result) {
    absl::MutexLock lock(&mutex_);
    result_ = std::move(result);
  }

  const Cancellation cancellation_;
  const Cancellation::Registration cancel_with_caller_;
  absl::Mutex mutex_;
  std::optional<absl::StatusOr<std::unique_ptr<Replica>>> result_ ABSL_GUARDED_BY(mutex_);
  bool spent_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<PendingGet> StartGetThread(std::shared_ptr<Core> core, const RequestContext& context,
                                           std::string_view artifact, const GetOptions& options) {
  return std::make_unique<PendingGetImpl>(std::move(core), context, artifact, options);
}

}  // namespace tensorcast::client
