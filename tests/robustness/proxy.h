// A proxy between two processes, such as daemons: takes the connections of one, the receiver, and hands on
// what either end says, with a fault in what the other says, the source. Real sockets on loopback; a thread
// for each connection. Thread-safe.
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
    kDelay,        // each 16 KiB come a millisecond later
    kSingleBytes,  // everything, both ways, one byte a packet
    kEnd,          // the connection ends in good order (FIN)
    kReset,        // or with a reset (RST)
    kSwallow,      // nothing comes any more, and the connection stays open
    kTrickle,      // a byte comes every two seconds
    kReplace,      // `bytes` stand where others were
    kFlip,         // one bit is another
  };
  Kind kind = Kind::kNone;
  uint64_t after = 0;   // from this byte of a connection on, for all but the first three
  int connections = 1;  // that it happens to; those that follow are left alone
  std::string bytes;
};

class Proxy {
 public:
  Proxy();
  // Closes every connection.
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // Where receivers connect to: "127.0.0.1:port".
  const std::string& address() const { return address_; }
  // Connections that come before this is called wait for it.
  void ForwardTo(int port) { ForwardTo(absl::StrCat("127.0.0.1:", port)); }
  void ForwardTo(const std::string& address) ABSL_LOCKS_EXCLUDED(mutex_);
  // Cut: nothing passes, and neither end is told, until it heals. Then all that was said arrives.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);
  void Heal() ABSL_LOCKS_EXCLUDED(mutex_);
  // For connections from now on.
  void Set(const ProxyFault& fault) ABSL_LOCKS_EXCLUDED(mutex_);
  // How many connections the last Set has happened to.
  int faults_done() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Connection;

  void Accept() ABSL_LOCKS_EXCLUDED(mutex_);
  // The fault of one connection more; kNone where it is none's any more.
  ProxyFault TakeFault() ABSL_LOCKS_EXCLUDED(mutex_);
  void Happened() ABSL_LOCKS_EXCLUDED(mutex_);
  std::string Target() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return target_;
  }
  // False when it is to end.
  bool AwaitPassage() ABSL_LOCKS_EXCLUDED(mutex_);

  UniqueFd listener_;
  UniqueFd stop_;  // readable once it is to end
  std::string address_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string target_ ABSL_GUARDED_BY(mutex_);
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  ProxyFault fault_ ABSL_GUARDED_BY(mutex_);
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  int happened_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::thread> connections_;  // the accepting thread's
  std::thread accepting_;
};

}  // namespace tensorcast
