// Starts a helper process, sends it one request at a time, and keeps the communicators that the process has
// formed from this node's GPUs. If an answer is late, is an error or cannot be read, the link kills the
// process. When Ask, AskFor or CommunicatorOf returns an error, the process no longer maps daemon memory.
//
// Thread-compatible, but Interrupt may be called during another call. The destructor kills the process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collective/helper/child_process.h"
#include "collective/helper/messages.h"

namespace tensorcast::helper {

class HelperLink {
 public:
  // `argv`: see ChildProcess::Start. `forming_timeout`: the max time to load the library, and to form or
  // leave a communicator.
  HelperLink(std::vector<std::string> argv, absl::Duration forming_timeout)
      : argv_(std::move(argv)), forming_timeout_(forming_timeout) {}

  // Starts the process. AwaitHello must follow before any request. REQUIRES: no process runs.
  absl::Status Start();
  // Blocks until the process has loaded the library, and returns the version of the library. After an error
  // the process still counts as running: the caller must call End or Kill.
  absl::StatusOr<std::string> AwaitHello();
  // Starts another process if the previous one has ended, and then returns the version of its library;
  // nullopt if the previous process still runs.
  absl::StatusOr<std::optional<std::string>> EnsureRuns();

  bool ended() const { return child_ == nullptr; }  // false until EnsureRuns or Ask notices the end
  absl::Status CheckRuns() const;                   // FAILED_PRECONDITION if the process has ended

  // Sends a request and waits for its answer. REQUIRES: not ended().
  absl::StatusOr<Reply> Ask(const Request& request, absl::Duration timeout);
  // As Ask, but an answer of another kind than `Answer` ends the process and returns an error.
  template <class Answer>
  absl::StatusOr<Answer> AskFor(const Request& request, absl::Duration timeout);
  // The communicator of these devices, in rank order: a kept one, or a new one.
  absl::StatusOr<uint32_t> CommunicatorOf(const std::vector<std::string>& device_uuids);

  enum class How { kDied, kKilled };
  // Kills the process if it still runs; logs and counts its end. REQUIRES: not ended().
  void End(How how, const absl::Status& why);
  // Kills the process after AwaitHello has failed, if no other process is to replace it. REQUIRES: not
  // ended().
  void Kill() { child_->Kill(); }
  // Kills the process, so that a call that waits for its answer soon returns an error.
  void Interrupt();

 private:
  struct Kept {
    uint32_t number = 0;
    uint64_t used = 0;
  };
  absl::Status EndForWrongKind();

  const std::vector<std::string> argv_;
  const absl::Duration forming_timeout_;
  std::unique_ptr<ChildProcess> child_;  // null: it has ended, and was reaped
  // The kept communicators, by the UUIDs of their devices in rank order.
  std::map<std::vector<std::string>, Kept> communicators_;
  uint64_t uses_ = 0;
};

template <class Answer>
absl::StatusOr<Answer> HelperLink::AskFor(const Request& request, absl::Duration timeout) {
  absl::StatusOr<Reply> reply = Ask(request, timeout);
  if (!reply.ok()) return reply.status();
  if (auto* const answer = std::get_if<Answer>(&*reply)) return std::move(*answer);
  return EndForWrongKind();
}

}  // namespace tensorcast::helper
