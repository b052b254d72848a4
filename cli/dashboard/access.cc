#include "cli/dashboard/access.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/ids.h"
#include "base/text.h"

namespace tensorcast::dashboard {
namespace {

// So many random bits cannot be guessed: attempts that fail need no count.
constexpr size_t kSecretBytes = 32;

}  // namespace

std::string Access::Add(absl::Duration life, size_t max, std::vector<Secret>* secrets) {
  const SteadyTime now = now_();
  std::erase_if(*secrets, [&](const Secret& secret) { return secret.until <= now; });
  // The oldest goes, so that a new login works however many tokens lie unused.
  if (secrets->size() >= max) secrets->erase(secrets->begin());
  Secret& secret = secrets->emplace_back();
  secret.text = RandomHex(kSecretBytes);
  secret.until = now + life;
  return secret.text;
}

std::vector<Access::Secret>::iterator Access::Find(std::string_view text, std::vector<Secret>* secrets) {
  // Every secret is compared, and each in constant time: how long it takes says nothing about the secrets.
  auto found = secrets->end();
  const SteadyTime now = now_();
  for (auto secret = secrets->begin(); secret != secrets->end(); ++secret) {
    const bool equal = text.size() == secret->text.size() &&
                       CRYPTO_memcmp(text.data(), secret->text.data(), text.size()) == 0;
    if (equal && secret->until > now) found = secret;
  }
  return found;
}

std::string Access::NewToken() {
  const absl::MutexLock lock(&mutex_);
  return Add(kTokenLife, kMaxTokens, &tokens_);
}

// One lock covers the search, the removal and the new session, so that of two browsers with the same token
// only one gets a session.
std::optional<std::string> Access::Redeem(std::string_view token) {
  const absl::MutexLock lock(&mutex_);
  const auto found = Find(token, &tokens_);
  if (found == tokens_.end()) return std::nullopt;
  // A token is good once: an address that stays in a browser's history or in a log gives nothing away.
  tokens_.erase(found);
  return Add(kSessionLife, kMaxSessions, &sessions_);
}

bool Access::HasSession(std::string_view secret) {
  const absl::MutexLock lock(&mutex_);
  return Find(secret, &sessions_) != sessions_.end();
}

std::vector<std::string> AllowedHosts(const std::vector<std::string>& names, uint16_t port, bool tls) {
  std::vector<std::string> hosts;
  for (const std::string& name : names) {
    HostPort address;
    address.host = name;
    address.port = port;
    const std::string host = absl::AsciiStrToLower(FormatHostPort(address));
    hosts.push_back(host);
    // A browser leaves out the port that its scheme has anyway.
    if (port == (tls ? 443 : 80)) hosts.push_back(host.substr(0, host.rfind(':')));
  }
  return hosts;
}

std::string LocalPath(std::string_view wanted) {
  // A browser would take "//host" and "/\host" for another server.
  const bool local = absl::StartsWith(wanted, "/") && !absl::StartsWith(wanted, "//") &&
                     !absl::StrContains(wanted, '\\') && IsPrintable(wanted);
  return local ? std::string(wanted) : "/";
}

}  // namespace tensorcast::dashboard
