// A proxy between two processes, such as daemons: accepts the connections of the receiver, and forwards the
// bytes of both ends, with a fault in those of the other end, the source. Real sockets on loopback; a thread
// per connection. Thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

struct ProxyFault {
  enum class Kind {
    kNone,
    kDelay,        // each 16 KiB arrive a millisecond later
    kSingleBytes,  // all bytes, both ways, in packets of one byte
    kEnd,          // the connection ends normally (FIN)
    kReset,        // the connection ends with a reset (RST)
    kSwallow,      // no more bytes arrive, and the connection stays open
    kTrickle,      // one byte arrives every two seconds
    kReplace,      // `bytes` replace others
    kFlip,         // one bit is flipped
  };
  Kind kind = Kind::kNone;
  uint64_t after = 0;   // from this byte of a connection on; not used by the first three
  int connections = 1;  // number of affected connections; later ones have no fault
  std::string bytes;
};

class Proxy {
 public:
  Proxy();
  // Closes every connection.
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // The address for receivers: "127.0.0.1:port".
  const std::string& address() const { return address_; }
  // Earlier connections wait for this call.
  void ForwardTo(int port) { ForwardTo(absl::StrCat("127.0.0.1:", port)); }
  void ForwardTo(const std::string& address) ABSL_LOCKS_EXCLUDED(mutex_);
  // Cut: no byte passes, and neither end is told, until Heal. Then all bytes arrive.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);
  void Heal() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the fault for connections from now on.
  void Set(const ProxyFault& fault) ABSL_LOCKS_EXCLUDED(mutex_);
  // The number of connections with the fault of the last Set.
  int faults_done() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Connection;

  void Accept() ABSL_LOCKS_EXCLUDED(mutex_);
  // The fault for one more connection; kNone when no more are to be affected.
  ProxyFault TakeFault() ABSL_LOCKS_EXCLUDED(mutex_);
  void Happened() ABSL_LOCKS_EXCLUDED(mutex_);
  std::string Target() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return target_;
  }
  // Waits until bytes may pass; false when the proxy ends.
  bool AwaitPassage() ABSL_LOCKS_EXCLUDED(mutex_);

  UniqueFd listener_;
  UniqueFd stop_;  // readable once the proxy is to end
  std::string address_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string target_ ABSL_GUARDED_BY(mutex_);
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  ProxyFault fault_ ABSL_GUARDED_BY(mutex_);
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  int happened_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::thread> connections_;  // used by the accepting thread
  std::thread accepting_;
};

}  // namespace tensorcast
