// Stores the last TLS session with each source. The next pull from the source resumes that session. The
// handshake then needs no signatures and certificate chains, which take longer than the transfer of a small
// image.
//
// Each stream still checks the peer's name, the expiry of its certificate and the denied names. But a resumed
// session does not check the certificate authority again. A session is therefore used only with the TLS
// context that made it. New certificate files at this end make a new context and so end all sessions.
// Thread-safe.
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

  // The session with `source`; null if there is none, or another context made it.
  Session Find(const std::string& source, const Context& context) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(source);
    return found == sessions_.end() || found->second.context != context ? nullptr : found->second.session;
  }

  // Stores the session of a new connection to `source`, which was made with `context` or a newer one. Null
  // removes the stored session; callers pass it after a connection failed.
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
  // Each session takes a few KiB. At the limit, the session of any other source is dropped.
  static constexpr size_t kMaxSources = 1024;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::transport::tcp
