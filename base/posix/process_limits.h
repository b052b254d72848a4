// The system's limits for this process. They are checked before it starts, because libraries abort with a
// poor message when they are refused a thread or a descriptor, and the process stays below them while it
// serves.
//
// A process that serves unauthenticated peers keeps enough file descriptors as follows. It raises the limit
// as far as possible, reserves the last descriptors for its own work, and holds one back for the moment when
// none is left. Code that opens a descriptor for a peer's request (a connection, memory handed over) closes
// it at once when IsReserved. The kernel gives out the lowest free number, so a high number says that all
// below are in use anywhere in the process: listeners need not know each other.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

struct ProcessNeeds {
  const char* who = "";       // "a daemon", for the message
  int descriptors = 0;        // to serve at all; connections need more
  int threads = 0;            // at most at a time
  uint64_t memory_bytes = 0;  // pools and the like, beyond what every process needs
};

// RESOURCE_EXHAUSTED names the limit that is too low, its value, and how to raise it. Each thread counts with
// the address space of its stack.
absl::Status CheckProcessLimits(const ProcessNeeds& needs);

// From now on, a process that is refused memory (its address-space limit is reached, or overcommit is off)
// reports so on stderr and exits with this code instead of aborting.
inline constexpr int kOutOfMemoryExitCode = 71;
void ExitWhenOutOfMemory();

// Raises this process's soft limit of descriptors to the hard limit, at most to a million, since some
// libraries keep a table of all possible descriptors. Call it before creating objects that read the limit,
// and before starting other processes, which inherit the limit of that moment.
absl::Status RaiseDescriptorLimit();

// The process's limit of descriptors now.
int DescriptorLimit();
// The number of descriptors at the top that are reserved for files, outgoing connections, telemetry and the
// process's own memory: an eighth of the limit, at most 1024.
int DescriptorReserve();

// The kind of caller that needs a descriptor. Each kind leaves a sixteenth of the limit, at most 512, to the
// kind before it: callers on the network cannot shut out those of this host, and these cannot shut out the
// process's own user.
enum class DescriptorUser { kOwnUser, kLocalUser, kNetwork };

// Whether a descriptor that was just opened belongs to the reserve that this kind of caller may not use.
bool IsReserved(int fd, DescriptorUser user);

// Holds one descriptor back. Thread-compatible.
class SpareDescriptor {
 public:
  SpareDescriptor() { Restore(); }

  // Accepts a connection of a listener when the process has no descriptor left, so that the peer gets an
  // answer instead of waiting in the listener's queue. Close the connection before Restore. Returns an empty
  // UniqueFd when there is nothing to accept or another thread took the descriptor first.
  UniqueFd Accept(int listener);
  // Takes a descriptor again; false while none is free.
  bool Restore();

 private:
  UniqueFd spare_;
};

}  // namespace tensorcast
