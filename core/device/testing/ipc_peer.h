// A second process for tests of IPC handles. It runs this test binary again with a role. Test binaries that
// link ipc_peer.cc get their main() from it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/device/testing/device_bytes.h"

namespace tensorcast::testing {

// "fake" (two devices of 64 MiB) or "cuda".
absl::StatusOr<std::unique_ptr<DeviceRuntime>> MakeRuntime(std::string_view backend);

// The other process. Killed and reaped when destroyed.
class IpcPeer {
 public:
  // Roles:
  //   import  opens the handle, expects Pattern(1) there, writes Pattern(2), closes it, prints "done"
  //   export  allocates, writes Pattern(1), prints its handle, and keeps the memory until its input ends
  //   stale   as export, but frees the memory and allocates again before it prints the first handle
  static absl::StatusOr<std::unique_ptr<IpcPeer>> Start(std::string_view backend, std::string_view role,
                                                        const IpcHandle& handle = {});
  ~IpcPeer();

  pid_t pid() const { return pid_; }
  // The next line that the process prints; "" if it ended without one. Its errors are in the log of the test.
  std::string ReadLine();
  // Closes the input of the process, waits for its end, and returns its exit code; -1 if a signal ended it.
  int Finish();
  void Kill();

 private:
  IpcPeer(pid_t pid, int input, int output) : pid_(pid), input_(input), output_(output) {}
  int Reap();

  pid_t pid_;
  int input_;
  int output_;
};

std::string HandleToText(const IpcHandle& handle);
IpcHandle HandleFromText(std::string_view text);

}  // namespace tensorcast::testing
