// What the helper process does: opens the daemon's replicas, joins communicators, broadcasts, as it is told.
//
// One thread of requests. The kernel ends the process with its daemon. Nothing has a deadline here: a helper
// that does not answer in time is killed by its daemon.
#pragma once

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collective/communicator.h"
#include "core/device/device_runtime.h"

namespace tensorcast::helper {

// What it works with. The library ends first.
struct HelperTools {
  std::unique_ptr<DeviceRuntime> devices;
  std::unique_ptr<CollectiveLibrary> library;
};

// `socket`: to the daemon; it is taken. Makes the tools, which can take its time and fail: the daemon is told
// why. Serves until the daemon closes its end. An error: there were no tools, or the daemon broke the
// protocol, or is not a parent of this process.
absl::Status Serve(int socket, absl::AnyInvocable<absl::StatusOr<HelperTools>() &&> make_tools);

}  // namespace tensorcast::helper
