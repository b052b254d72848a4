#include "daemon/sources/opening.h"

#include <system_error>
#include <utility>

#include "absl/log/check.h"

namespace tensorcast::daemon {

Opening::Opening(Plan plan) : plan_(std::move(plan)), since_(SteadyNow()) {
  result_.source = absl::InternalError("the source was not opened");
  // An opening has a thread of its own, since a peer that hangs blocks it for the whole timeout.
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    Run();  // no thread is left: the others wait for this one
  }
}

Opening::~Opening() {
  Cancel();
  if (thread_.joinable()) thread_.join();
}

void Opening::Run() {
  RequestContext context = plan_.context;
  context.cancellation = cancellation_;
  // The lock is not held here: this may take long, and the transfer's thread looks whether it is over.
  GrantOpening opened = plan_.opener->Open(context, plan_.grant, *plan_.manifest, plan_.lane, plan_.revoked);
  {
    absl::MutexLock lock(&mutex_);
    result_ = std::move(opened);
    took_ = SteadyNow() - since_;
    over_ = true;
  }
  // The end is told last: the transfer's thread then takes the result, and may destroy this object once this
  // thread has ended.
  plan_.on_over();
}

bool Opening::over() const {
  absl::MutexLock lock(&mutex_);
  return over_;
}

bool Opening::AwaitEnd(SteadyTime until) const {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&over_), TimeLeft(until));
}

// The result holds the opened source, so the caller owns it from now on. An opening that is never taken
// closes its source when it is destroyed.
GrantOpening Opening::Take() {
  absl::MutexLock lock(&mutex_);
  CHECK(over_) << "an opening that is under way was taken";
  return std::move(result_);
}

absl::Duration Opening::took() const {
  absl::MutexLock lock(&mutex_);
  return took_;
}

}  // namespace tensorcast::daemon
