// The last TLS session with each source. The next pull from it resumes that session, and so does without
// signatures and chains of certificates, which take longer than a small pull's bytes.
//
// Each stream itself checks the name of the other end, and whether it is still let in. The authority that
// signed its certificate is not checked again: so a session is good for the context that it was made by, and
// a change of this end's files ends them all. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

// OpenSSL's SSL_CTX and SSL_SESSION.
struct ssl_ctx_st;
struct ssl_session_st;

namespace tensorcast::transport::tcp {

class SessionCache {
 public:
  using Context = std::shared_ptr<ssl_ctx_st>;
  using Session = std::shared_ptr<ssl_session_st>;

  // Null where there is none, or it was made by another context.
  Session Find(const std::string& source, const Context& context) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(source);
    return found == sessions_.end() || found->second.context != context ? nullptr : found->second.session;
  }

  // What came of a connection to `source` that was made by `context`, or by a later one: null where it
  // failed.
  void Keep(const std::string& source, Context context, Session session) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (session == nullptr) {
      sessions_.erase(source);
      return;
    }
    if (sessions_.size() >= kMaxSources && !sessions_.contains(source)) sessions_.erase(sessions_.begin());
    sessions_[source] = {std::move(context), std::move(session)};
  }

 private:
  struct Entry {
    Context context;
    Session session;
  };
  // A few KiB each.
  static constexpr size_t kMaxSources = 1024;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::transport::tcp
