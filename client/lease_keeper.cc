#include "client/lease_keeper.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/replica/replica.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"

namespace tensorcast::client {
namespace {

// How often it looks. There is no hurry: the daemon keeps the memory for clients that were attached until
// they are back or gone.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(500);
constexpr absl::Duration kTimeout = absl::Seconds(5);

}  // namespace

LeaseKeeper::~LeaseKeeper() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  stop_.Cancel();
  if (!thread.joinable()) return;
  // A child that was forked has the object, and no such thread.
  getpid() == process_ ? thread.join() : thread.detach();
}

void LeaseKeeper::Watch(const std::shared_ptr<ClaimedReplica>& claimed) {
  absl::MutexLock lock(&mutex_);
  watched_.push_back(claimed);
  if (thread_.joinable() || stopping_) return;
  process_ = getpid();
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    // The replica stays readable. The next one that is watched tries again.
    LOG(WARNING) << "start the thread that renews leases after a restart of the daemon: " << error.what()
                 << "; get the artifacts again after such a restart";
  }
}

// A watched replica is in one of three states: it has its lease; it lost its lease, and the daemon cannot be
// reached (asked again with each round); or it is over, and leaves the list.
void LeaseKeeper::Run() {
  while (true) {
    std::vector<std::weak_ptr<ClaimedReplica>> watched;
    {
      absl::MutexLock lock(&mutex_);
      const auto stopping = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_; };
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping), kCheckInterval)) return;
      // Out of the shared list, so that no lock is held across the calls below; Watch adds to it meanwhile.
      watched.swap(watched_);
    }
    // Kept: what still has its lease, and what lost it while the daemon was away. Dropped: replicas that
    // their owner has let go, and those with a lease that no daemon can give back.
    std::erase_if(watched, [this](const std::weak_ptr<ClaimedReplica>& one) { return IsOver(one); });
    absl::MutexLock lock(&mutex_);
    std::ranges::move(watched, std::back_inserter(watched_));
  }
}

// The replica is held only for moments, and not across the calls to the daemon: an owner that releases it
// meanwhile unmaps it at once, and not when the calls end.
bool LeaseKeeper::IsOver(const std::weak_ptr<ClaimedReplica>& watched) {
  std::string artifact_id;
  {
    const std::shared_ptr<ClaimedReplica> claimed = watched.lock();
    if (claimed == nullptr) return true;
    if (!claimed->lost()) return false;
    artifact_id = claimed->artifact_id();  // of live weights: that of the last commit
  }
  if (!TakeAgain(artifact_id, watched).ok()) return false;
  const std::shared_ptr<ClaimedReplica> claimed = watched.lock();
  return claimed == nullptr || claimed->lost();
}

// Two steps, as for a get: AttachReplica gives a ticket, and the ticket is claimed. TakeOver then checks that
// the new lease is on the very memory that is mapped here, and refuses any other.
absl::Status LeaseKeeper::TakeAgain(const std::string& artifact_id,
                                    const std::weak_ptr<ClaimedReplica>& watched) {
  RequestContext context;
  context.deadline = SteadyNow() + kTimeout;
  context.cancellation = stop_;
  const RequestContext operation = OperationContext(context);
  v1::AttachReplicaRequest request;
  request.set_artifact_id(artifact_id);
  *request.mutable_location() = rpc::ToProto(Location{LocationKind::kCpu, 0});
  const absl::StatusOr<v1::AttachReplicaResponse> attached =
      rpc::CallUnary(link_->daemon(), &v1::StoreDaemon::Stub::AttachReplica, operation, request,
                     {.retry_for = absl::ZeroDuration(), .what = "take a lease again"});
  absl::Status taken = attached.status();
  if (attached.ok()) {
    auto again =
        ClaimedReplica::Claim(attached->handle_socket(), attached->ticket(), operation.deadline, stop_);
    const std::shared_ptr<ClaimedReplica> claimed = watched.lock();
    if (claimed == nullptr) return absl::OkStatus();
    taken = again.ok() ? claimed->TakeOver(*std::move(again)) : again.status();
  }
  // Anything else is for good.
  if (absl::IsUnavailable(taken) || absl::IsDeadlineExceeded(taken) || absl::IsCancelled(taken)) return taken;
  LOG_IF(WARNING, !taken.ok()) << "take a lease on " << artifact_id
                               << " again after a restart of the daemon: " << taken
                               << "; the memory stays readable; get the artifact again";
  return absl::OkStatus();
}

}  // namespace tensorcast::client
