// The daemon's end of its helper process. The helper broadcasts between the GPUs of this node, or of several
// nodes, with a library that may hang or abort the process that it runs in.
//
// The constructor starts the process. If the process has ended, Open and Reserve start another one. After a
// timeout or an error the daemon kills the process. When a method returns an error of the process, the
// process has ended and no longer maps memory of the daemon. The process keeps the eight communicators of
// this node's GPUs that were used last. A communicator with ranks on other nodes ends with its group
// (WideBroadcastGroup). Only one group is open at a time.
//
// Thread-safe, but one thread at a time may use a group. Groups must be destroyed before this object. The
// destructor kills the process; an end of the process before that is logged and counted.
#pragma once

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
#include "collective/helper/helper_link.h"
#include "core/device/device_broadcaster.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

struct HelperOptions {
  // The arguments with which this program runs as a helper (serve.h), the program's name first. Empty: this
  // node has no broadcasts.
  std::vector<std::string> argv;
  // daemon.nccl: "auto", "off" or the path of a library. A path that is not a file is a configuration error.
  std::string nccl = "auto";
  // Max time to load the library, and max time to form a communicator on this node.
  absl::Duration forming_timeout = absl::Seconds(60);
  // Max time for any other answer. One request broadcasts at most 2,048 ranges; callers must keep their total
  // size small enough for this time.
  absl::Duration progress_timeout = absl::Seconds(10);
  // Max time to form or leave a communicator with ranks on other nodes.
  absl::Duration wide_forming_timeout = absl::Seconds(20);
  // After a group of this node's GPUs could not form, the daemon tries no group of any kind for this time,
  // because each attempt costs its caller up to forming_timeout.
  absl::Duration pause_after_failure = absl::Minutes(10);

  void FromConfig(ConfigReader& config);
  void Validate(Findings& findings) const;
  bool names_library() const { return nccl != "auto" && nccl != "off"; }
};

class HelperProcess final : public DeviceBroadcaster {
 public:
  // `devices` must outlive this object. Starts the process, and does not wait until the process has loaded
  // the library.
  HelperProcess(DeviceRuntime* devices, HelperOptions options);
  ~HelperProcess() override;

  // True while the library is loaded, no group is open, and no pause after a failure is in progress.
  bool available() const override;
  absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr> allocations) override;
  absl::StatusOr<std::string> version() const override;
  absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> Reserve(const RequestContext& context) override;

 private:
  class OpenMemories;
  class Group;
  class WideGroup;
  enum class State { kStarting, kIdle, kInUse, kUnavailable };
  static std::string_view WhyNot(State state);  // says why no group can be opened in this state
  // UNAVAILABLE during the pause after a failure.
  absl::Status CheckPause() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Only the thread that made the state kStarting or kInUse may call this, and use link_.
  absl::Status EnsureChild();
  void SetState(State state);
  void SetUnavailable(const absl::Status& why);
  void SetLibrary(std::string version);

  DeviceRuntime* const devices_;
  const HelperOptions options_;
  helper::HelperLink link_;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  SteadyTime not_before_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();  // when a group may open
  std::string library_ ABSL_GUARDED_BY(mutex_);                                 // its version
  absl::Status unavailable_ ABSL_GUARDED_BY(mutex_);                            // the reason of kUnavailable
  std::thread starting_;
};

}  // namespace tensorcast
