// The helper process. On the daemon's requests it opens replicas, joins communicators and broadcasts.
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

// The devices and the library of the helper. The library is destroyed first.
struct HelperTools {
  std::unique_ptr<DeviceRuntime> devices;
  std::unique_ptr<CollectiveLibrary> library;
};

// Runs the helper. Owns `socket`, which is connected to the daemon. Calls `make_tools`, which may take long;
// if it fails, sends its error to the daemon. Blocks until the daemon closes its end of the socket. Returns
// an error if `make_tools` failed, if the daemon breaks the protocol, or if the daemon is not the parent of
// this process.
absl::Status Serve(int socket, absl::AnyInvocable<absl::StatusOr<HelperTools>() &&> make_tools);

}  // namespace tensorcast::helper
