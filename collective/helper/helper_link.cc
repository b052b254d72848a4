#include "collective/helper/helper_link.h"

#include <algorithm>
#include <cstddef>

#include "absl/log/log.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::helper {
namespace {

// A communicator takes tens of megabytes of each of its GPUs.
constexpr size_t kMaxKept = 8;

}  // namespace

absl::Status HelperLink::CheckRuns() const {
  if (child_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "broadcast: the helper process of this group has ended; no action is needed, transfers go on "
      "without the group");
}

void HelperLink::Interrupt() {
  if (child_ != nullptr) child_->Interrupt();
}

absl::StatusOr<std::optional<std::string>> HelperLink::EnsureRuns() {
  if (child_ != nullptr && !child_->running()) {
    End(How::kDied, absl::UnavailableError(
                        "use the helper process: the process ended while it was idle; no action is needed, "
                        "the daemon starts another process"));
  }
  if (child_ != nullptr) return std::nullopt;
  // A thread may start a process here, since nothing of this one runs in it (ChildProcess::Start).
  TC_RETURN_IF_ERROR(Start());
  absl::StatusOr<std::string> library = AwaitHello();
  if (!library.ok()) {
    End(How::kKilled, library.status());
    return library.status();
  }
  return *std::move(library);
}

absl::Status HelperLink::Start() {
  TC_ASSIGN_OR_RETURN(child_, ChildProcess::Start(argv_));
  return absl::OkStatus();
}

absl::StatusOr<std::string> HelperLink::AwaitHello() {
  TC_ASSIGN_OR_RETURN(const std::string message, child_->Receive(SteadyNow() + forming_timeout_));
  TC_ASSIGN_OR_RETURN(const Reply reply, DecodeReply(message));
  const auto* const hello = std::get_if<Hello>(&reply);
  if (hello == nullptr || hello->version != kVersion) {
    return absl::InternalError(
        "start the helper process: the process does not use this daemon's protocol version; install daemon "
        "and helper from one build");
  }
  return hello->library;
}

// Requests have no numbers, so an answer that comes too late would be taken for the next request's.
// Whatever is not answered in time, or by an error, ends the process: the next group starts another one.
absl::StatusOr<Reply> HelperLink::Ask(const Request& request, absl::Duration timeout) {
  const absl::Status asked = child_->Send(EncodeRequest(request));
  const absl::StatusOr<std::string> message =
      asked.ok() ? child_->Receive(SteadyNow() + timeout) : absl::StatusOr<std::string>(asked);
  if (!message.ok()) {
    End(absl::IsDeadlineExceeded(message.status()) ? How::kKilled : How::kDied, message.status());
    return message.status();
  }
  absl::StatusOr<Reply> answer = DecodeReply(*message);
  // An error of the library can leave a hang behind.
  if (!answer.ok()) End(How::kKilled, answer.status());
  return answer;
}

absl::Status HelperLink::EndForWrongKind() {
  absl::Status strange = absl::InternalError(
      "ask the helper process: the answer does not match the request; install daemon and helper from one "
      "build");
  End(How::kKilled, strange);
  return strange;
}

// Communicators form slowly, so the last few stay. The one that has not been used for longest makes room.
absl::StatusOr<uint32_t> HelperLink::CommunicatorOf(const std::vector<std::string>& device_uuids) {
  if (const auto kept = communicators_.find(device_uuids); kept != communicators_.end()) {
    kept->second.used = ++uses_;
    return kept->second.number;
  }
  if (communicators_.size() >= kMaxKept) {
    // A communicator has left before another one forms: its memory on the GPUs is free then.
    const auto oldest =
        std::ranges::min_element(communicators_, {}, [](const auto& entry) { return entry.second.used; });
    TC_RETURN_IF_ERROR(
        AskFor<uint32_t>(LeaveRequest{.communicator = oldest->second.number}, forming_timeout_).status());
    communicators_.erase(oldest);
  }
  JoinRequest join{.world_size = static_cast<uint32_t>(device_uuids.size())};
  for (const std::string& uuid : device_uuids) {
    join.ranks.push_back({.rank = static_cast<uint32_t>(join.ranks.size()), .device_uuid = uuid});
  }
  TC_ASSIGN_OR_RETURN(const uint32_t communicator, AskFor<uint32_t>(join, forming_timeout_));
  communicators_[device_uuids] = {.number = communicator, .used = ++uses_};
  return communicator;
}

// The communicators end with the process. Groups that are open see in ended() that it has ended.
void HelperLink::End(How how, const absl::Status& why) {
  child_->Kill();
  LOG(WARNING) << "helper process " << child_->pid() << " for broadcasts "
               << (how == How::kDied ? "died" : "was killed")
               << "; the daemon starts another process for the next broadcast: " << why;
  // Counted by how it ended: a process that died did so by itself, a killed one was given up by the daemon.
  otel::metrics::kNcclHelperEnds.Add(1, {how == How::kDied ? "died" : "killed"});
  communicators_.clear();
  child_.reset();
}

}  // namespace tensorcast::helper
