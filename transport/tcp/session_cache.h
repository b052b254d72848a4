// Stores the last TLS session with each source. The next pull from the source resumes that session, without
// signatures and certificate chains. Thread-safe.
#pragma once

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "transport/tcp/byte_stream.h"

namespace tensorcast::transport::tcp {

class SessionCache {
 public:
  // The last session with `source`, or none.
  TlsSession Find(const std::string& source) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(source);
    return found == sessions_.end() ? TlsSession() : found->second;
  }

  // Stores the session of a new connection to `source`. An empty TlsSession removes the stored session;
  // callers pass one after a connection failed.
  void Keep(const std::string& source, TlsSession session) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (session.session == nullptr) {
      sessions_.erase(source);
      return;
    }
    if (sessions_.size() >= kMaxSources && !sessions_.contains(source)) sessions_.erase(sessions_.begin());
    sessions_[source] = std::move(session);
  }

 private:
  // A session takes a few KiB. At the limit, an arbitrary session is dropped.
  static constexpr size_t kMaxSources = 1024;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, TlsSession> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::transport::tcp
