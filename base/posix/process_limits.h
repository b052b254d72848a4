// The system's limits of a process: checked before it begins, because libraries abort with a poor message
// when refused a thread or a descriptor; and kept from being reached while the process serves.
//
// How a process that serves unauthenticated peers keeps enough file descriptors: it raises the limit as far
// as possible, keeps the last descriptors for its own work, and holds one back for the moment when none is
// left. Code that takes a descriptor for a peer's request (a connection, memory handed over) gives it back at
// once when IsReserved. The kernel hands out the lowest free number, so a number that high says that all
// below are in use by some part of the process: no listener has to know the
// others.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

struct ProcessNeeds {
  const char* who = "";       // "a daemon", for the message
  int descriptors = 0;        // to serve at all; connections come on top
  int threads = 0;            // at most at a time
  uint64_t memory_bytes = 0;  // pools and the like, beside what every process needs
};

// RESOURCE_EXHAUSTED says which limit is too low, what it is and how to raise it. Threads count by the
// address space of their stacks.
absl::Status CheckProcessLimits(const ProcessNeeds& needs);

// From here on a process that is refused memory (by its limit of address space, or with overcommitting
// switched off) says so on stderr and ends with this exit code, instead of by an abort.
inline constexpr int kOutOfMemoryExitCode = 71;
void ExitWhenOutOfMemory();

// Raises the soft limit of this process's descriptors to the hard one; not by more than a million, since some
// libraries keep a table of all that there could be. To be called before what looks at the limit is
// made, and before other processes are started: they have the limit of that moment.
absl::Status RaiseDescriptorLimit();

// Of the process, at this moment.
int DescriptorLimit();
// The last so many descriptors are for files, connections to others, telemetry and memory of the process's
// own: an eighth of the limit, and at most 1024.
int DescriptorReserve();

// The caller that needs a descriptor. Each kind leaves a sixteenth of the limit, and at most 512, to the kind
// before it: callers on the network cannot shut out this host's, nor these the process's own user.
enum class DescriptorUser { kOwnUser, kLocalUser, kNetwork };

// Whether a descriptor that was opened just now is one that this kind of caller has to leave alone.
bool IsReserved(int fd, DescriptorUser user);

// Holds a descriptor back. Thread-compatible.
class SpareDescriptor {
 public:
  SpareDescriptor() { Restore(); }

  // Accepts a connection of a listener when the process has no descriptor left, so that the peer can be told
  // so instead of waiting in the listener's queue. The connection must be closed before Restore. Not
  // set when there is nothing to accept, or another thread was faster to take the descriptor.
  UniqueFd Accept(int listener);
  // Takes a descriptor again; false when there still is none.
  bool Restore();

 private:
  UniqueFd spare_;
};

}  // namespace tensorcast
