// Decides which requests the dashboard answers. A browser logs in with a one-time token of this host's user.
// The Host header of a request must name this server. Both checks are needed because every local user and
// every web page can reach a loopback port.
//
// Thread-safe. The memory is bounded: the oldest tokens and sessions are dropped.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::dashboard {

inline constexpr absl::Duration kTokenLife = absl::Minutes(15);
inline constexpr absl::Duration kSessionLife = absl::Hours(12);
inline constexpr size_t kMaxTokens = 64;
inline constexpr size_t kMaxSessions = 256;

class Access {
 public:
  explicit Access(std::function<SteadyTime()> now = SteadyNow) : now_(std::move(now)) {}

  // 256 random bits in hexadecimal digits, valid for one Redeem within kTokenLife.
  std::string NewToken() ABSL_LOCKS_EXCLUDED(mutex_);
  // The secret of a new session, for the cookie; nullopt for a token that is unknown, used or expired.
  std::optional<std::string> Redeem(std::string_view token) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasSession(std::string_view secret) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Secret {
    std::string text;
    SteadyTime until;
  };
  // Adds a secret. First drops the expired secrets and, if `max` secrets are left, the oldest.
  std::string Add(absl::Duration life, size_t max, std::vector<Secret>* secrets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The position of `text`, or secrets->end(). Compares with every secret, each in constant time.
  std::vector<Secret>::iterator Find(std::string_view text, std::vector<Secret>* secrets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<SteadyTime()> now_;
  absl::Mutex mutex_;
  std::vector<Secret> tokens_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::vector<Secret> sessions_ ABSL_GUARDED_BY(mutex_);
};

// The allowed values of the Host header: "host:port" in lower case. Also "host" for port 80 without TLS, or
// 443 with TLS. A page of another site sends that site's name, even if the name resolves to this host (DNS
// rebinding).
std::vector<std::string> AllowedHosts(const std::vector<std::string>& names, uint16_t port, bool tls);

// The path to which a login redirects: `wanted` if it is a path of this server, else "/". A browser would
// treat "//host", "/\host" and "https:" as another server.
std::string LocalPath(std::string_view wanted);

}  // namespace tensorcast::dashboard
