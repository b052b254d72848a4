#include "daemon/service/import_joins.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kClaimTimeout = absl::Seconds(5);
// Of a put that is done but for its claim, while the global store does not answer.
constexpr absl::Duration kEndTimeout = absl::Seconds(1);
constexpr absl::Duration kMinPause = absl::Milliseconds(20);

absl::Duration PauseOf(const v1::ClaimImportResponse& response) {
  return std::max(rpc::FromProto(response.retry_after()), kMinPause);
}

}  // namespace

// Two steps, in this order: within this daemon one import at a time goes on, by the table; that one asks the
// global store for the claim, until it gets the claim or an artifact. So a node makes one claim however many
// of its clients import the same objects.
absl::StatusOr<ImportJoins::Joined> ImportJoins::Join(
    const RequestContext& context, const std::string& import_id,
    const std::function<void(const std::string&)>& on_wait) {
  Import* counted = nullptr;  // stays while it is counted
  bool waits = false;
  {
    absl::MutexLock lock(&mutex_);
    counted = &imports_[import_id];
    ++counted->imports;
    waits = counted->reading;
  }
  // The lock is not held here, since the callback may take its time.
  if (waits) on_wait("another import of these objects on this node");
  {
    // Taking and leaving the mutex makes Await look at its condition again.
    const auto wake = context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
    absl::MutexLock lock(&mutex_);
    Import& import = *counted;
    const auto can_go_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !import.reading || !import.artifact_id.empty() || context.cancellation.IsCancelled();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&can_go_on), TimeLeft(context.deadline));
    const absl::Status ended = context.Check("wait for an import of the same objects");
    const std::string artifact_id = import.artifact_id;
    // The artifact is passed on within this daemon while imports of the id overlap. The last of them forgets
    // it; later ones ask the global store.
    if (!ended.ok() || !artifact_id.empty()) {
      if (--import.imports == 0) imports_.erase(import_id);
      if (!ended.ok()) return ended;
      return Joined{.turn = nullptr, .artifact_id = artifact_id};
    }
    // From here on the other imports of this node wait for the end of this one (Leave).
    import.reading = true;
  }
  // From here on its end lets the next import of this node go on.
  auto turn = std::make_unique<ReadingTurn>(this, import_id);
  while (true) {
    RequestContext call = context;
    call.deadline = std::min(context.deadline, SteadyNow() + kClaimTimeout);
    v1::ClaimImportRequest request;
    request.set_import_id(import_id);
    const absl::StatusOr<v1::ClaimImportResponse> answer = claim_(call, std::move(request));
    TC_RETURN_IF_ERROR(context.Check("wait for an import of the same objects"));
    if (!answer.ok()) {
      LOG(WARNING) << "This import reads its objects itself, since the global store did not tell whether "
                      "another node reads them: "
                   << answer.status();
      return Joined{.turn = std::move(turn), .artifact_id = ""};
    }
    if (answer->granted()) {
      turn->KeepClaim(PauseOf(*answer));
      return Joined{.turn = std::move(turn), .artifact_id = ""};
    }
    if (!answer->artifact_id().empty()) {
      // The turn ends with this call, and gives the artifact to the imports of this node that wait.
      turn->Made(answer->artifact_id());
      return Joined{.turn = nullptr, .artifact_id = answer->artifact_id()};
    }
    on_wait(absl::StrCat("the import of these objects by ", answer->reading_node()));
    TC_RETURN_IF_ERROR(rpc::SleepFor(context, PauseOf(*answer), "wait for an import of the same objects"));
  }
}

void ImportJoins::ReadingTurn::KeepClaim(absl::Duration interval) {
  claimed_ = true;
  const auto renew = [this, interval] {
    // A renewal that fails is left to the next one: a claim lives for three intervals.
    while (!ended_.WaitForNotificationWithTimeout(interval)) {
      v1::ClaimImportRequest request;
      request.set_import_id(import_id_);
      RequestContext call = RequestContext::Background(kClaimTimeout);
      call.cancellation = renewal_;
      joins_.claim_(call, std::move(request)).status().IgnoreError();
    }
    renewed_.Notify();
  };
  try {
    renewing_ = std::thread(renew);
  } catch (const std::system_error& error) {
    // The import goes on. When its claim expires, another node may read the same objects.
    LOG(WARNING)
        << "The claim of an import is not renewed, so another node may read the same objects: this daemon "
           "cannot start a thread ("
        << error.what() << "); raise the limit of threads (`ulimit -u`)";
  }
}

ImportJoins::ReadingTurn::~ReadingTurn() {
  ended_.Notify();
  // The last renewal and the end share one deadline.
  RequestContext call = RequestContext::Background(kEndTimeout);
  // Only a turn that has a claim renews it.
  if (renewing_.joinable()) {
    // A renewal that the store heard after the end would be a new claim, so it goes first, where it can.
    if (!renewed_.WaitForNotificationWithTimeout(kEndTimeout)) renewal_.Cancel();
    renewing_.join();
  }
  if (claimed_) {
    v1::ClaimImportRequest request;
    request.set_import_id(import_id_);
    request.set_ended(true);
    request.set_artifact_id(artifact_id_);
    // Where it is not heard, the claim runs out.
    joins_.claim_(call, std::move(request)).status().IgnoreError();
  }
  joins_.Leave(import_id_, artifact_id_);
}

void ImportJoins::Leave(const std::string& import_id, const std::string& artifact_id) {
  absl::MutexLock lock(&mutex_);
  const auto import = imports_.find(import_id);
  import->second.reading = false;
  import->second.artifact_id = artifact_id;
  if (--import->second.imports == 0) imports_.erase(import);
}

}  // namespace tensorcast::daemon
