// The daemon's end of its helper process: broadcasts between the GPUs of this node, or of several, by a
// library that may hang or abort the process that it runs in.
//
// The constructor starts the process. If the process has ended, the next group starts it again. After a
// timeout, an error or a crash, the daemon kills the process; when it reports the error, the process's
// mappings of the daemon's memory are gone. The process keeps the eight communicators used last, one for each
// set of GPUs; a communicator with ranks on other nodes ends with its group. Only one group is open at a
// time: two groups on the same GPUs could wait for each other.
//
// Thread-safe. Destroying it kills the process. Each earlier end of the process is logged and counted.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/config_reader.h"
#include "base/steady_time.h"
#include "collective/helper/child_process.h"
#include "collective/helper/messages.h"
#include "core/device/device_broadcaster.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

struct HelperOptions {
  // Of this program: its name, and what makes it a helper (serve.h). Empty: nothing broadcasts.
  std::vector<std::string> argv;
  std::string nccl =
      "auto";  // as daemon.nccl: auto, off, or a path, where a library that is missing is an error
  // For the library to be loaded, and for a communicator to form.
  absl::Duration forming_timeout = absl::Seconds(60);
  // For any other answer. One is asked for at most 2,048 ranges, which the caller keeps small.
  absl::Duration progress_timeout = absl::Seconds(10);
  // For a communicator with ranks on other nodes to form, each of which may have gone just then.
  absl::Duration wide_forming_timeout = absl::Seconds(20);
  // After a group that could not form: what is wrong with a driver or a library stays wrong for longer than
  // one request, and each attempt would cost its askers up to forming_timeout.
  absl::Duration pause_after_failure = absl::Minutes(10);

  void FromConfig(ConfigReader& config);
  void Validate(Findings& findings) const;
  bool names_library() const { return nccl != "auto" && nccl != "off"; }
};

class HelperProcess final : public DeviceBroadcaster {
 public:
  // `devices` must outlive it. Starts the process and does not wait for it.
  HelperProcess(DeviceRuntime* devices, HelperOptions options);
  ~HelperProcess() override;

  // Whether the library could be loaded, no group is open, and none has failed to form a while ago.
  bool available() const override;
  absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr> allocations) override;
  absl::StatusOr<std::string> version() const override;
  absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> Reserve(const RequestContext& context) override;

 private:
  class OpenMemories;
  class Group;
  class WideGroup;
  struct Kept {
    uint32_t number = 0;
    uint64_t used = 0;
  };
  enum class State { kStarting, kIdle, kInUse, kUnavailable };
  static std::string_view WhyNot(State state);  // another group can be opened

  // These are for the thread that made the state kStarting or kInUse.
  absl::Status EnsureChild();
  absl::Status CheckRuns() const;  // FAILED_PRECONDITION once the process of a group has ended
  absl::Status StartChild();
  absl::Status AwaitHello();
  // The answer to a request. After an error the process has ended.
  absl::StatusOr<helper::Reply> Ask(const helper::Request& request, absl::Duration timeout);
  // Likewise, and of this kind.
  template <class Answer>
  absl::StatusOr<Answer> AskFor(const helper::Request& request, absl::Duration timeout);
  absl::StatusOr<uint32_t> CommunicatorOf(const std::vector<std::string>& device_uuids);
  enum class How { kDied, kKilled };
  void End(How how, const absl::Status& why);
  void SetState(State state);
  void SetUnavailable(const absl::Status& why);

  DeviceRuntime* const devices_;
  const HelperOptions options_;
  std::unique_ptr<helper::ChildProcess> child_;  // null: it has ended, and was reaped
  // By the UUIDs of their devices, in rank order.
  std::map<std::vector<std::string>, Kept> communicators_;
  uint64_t uses_ = 0;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  SteadyTime not_before_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();  // groups
  std::string library_ ABSL_GUARDED_BY(mutex_);                                 // its version
  absl::Status unavailable_ ABSL_GUARDED_BY(mutex_);                            // why, in that state
  std::thread starting_;
};

}  // namespace tensorcast
