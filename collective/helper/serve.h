// The helper process: on the daemon's requests it opens replicas, joins communicators and broadcasts.
//
// One thread serves the requests. The kernel kills the process when its daemon ends. Requests have no
// deadline here: the daemon kills a helper that does not answer in time.
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

// Takes `socket`, which leads to the daemon. Makes the tools, which may take long; if that fails, the daemon
// gets the reason. Serves until the daemon closes its end. Returns an error if there are no tools, or if the
// daemon breaks the protocol or is not a parent of this process.
absl::Status Serve(int socket, absl::AnyInvocable<absl::StatusOr<HelperTools>() &&> make_tools);

}  // namespace tensorcast::helper
