// The system's limits for this process. A process checks them when it starts, because libraries abort with a
// poor message when the system refuses them a thread or a descriptor. Functions are thread-safe.
//
// A process that serves unauthenticated peers must not run out of file descriptors:
// - It raises the limit as far as possible (RaiseDescriptorLimit).
// - It reserves the highest descriptors for its own work. Code that opens a descriptor for a peer's request
//   closes the descriptor at once if IsReserved is true. The kernel assigns the lowest free number, so a high
//   number means that all lower numbers are in use.
// - It holds one descriptor back for the moment when none is left (SpareDescriptor).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

struct ProcessNeeds {
  const char* who = "";       // "a daemon", for the message
  int descriptors = 0;        // needed without any connection
  int threads = 0;            // max at the same time
  uint64_t memory_bytes = 0;  // pools and the like, beyond what every process needs
};

// RESOURCE_EXHAUSTED if a limit is too low; the message names the limit, its value, and how to raise it. The
// check of the address space counts the stack of each thread.
absl::Status CheckProcessLimits(const ProcessNeeds& needs);

// After a call of ExitWhenOutOfMemory, a failed memory allocation makes the process write a message to stderr
// and exit with this code.
inline constexpr int kOutOfMemoryExitCode = 71;
void ExitWhenOutOfMemory();

// Raises this process's soft limit of descriptors to the hard limit, but to at most 2^20. Call it before
// creating objects that read the limit, and before starting other processes, which inherit the limit.
absl::Status RaiseDescriptorLimit();

// The process's limit of descriptors now.
int DescriptorLimit();
// How many of the highest descriptors are reserved for files, outgoing connections, telemetry and the
// process's own memory: an eighth of the limit, at most 1024.
int DescriptorReserve();

// The kind of peer that needs a descriptor. Each kind leaves a sixteenth of the limit, at most 512
// descriptors, to the kind listed before it. So network peers cannot use up the descriptors of local peers.
enum class DescriptorUser { kOwnUser, kLocalUser, kNetwork };

// Whether a descriptor that was just opened belongs to the reserve that this kind of peer may not use.
bool IsReserved(int fd, DescriptorUser user);

// Holds one descriptor back. Thread-compatible.
class SpareDescriptor {
 public:
  SpareDescriptor() { Restore(); }

  // When the process has no other descriptor left, accepts a connection with the spare descriptor, so that
  // the peer gets an answer. Close the connection, then call Restore. Returns an empty UniqueFd if there is
  // nothing to accept or another thread took the descriptor first.
  UniqueFd Accept(int listener);
  // Opens the spare descriptor again; false if no descriptor is free.
  bool Restore();

 private:
  UniqueFd spare_;
};

}  // namespace tensorcast
