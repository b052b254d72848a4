// Keys for an S3-compatible store, and the source that gives them. The keys of a role expire; the source
// replaces them in time. Sources are thread-safe. Error messages name the place of a key, never the key
// itself.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "objects/http/secret.h"

namespace tensorcast::objects {

struct Credentials {
  std::string access_key_id;  // not secret: each signed request has it
  Secret secret_access_key;
  Secret session_token;  // only with the keys of a role; else empty
  absl::Time expires = absl::InfiniteFuture();
};

class CredentialSource {
 public:
  virtual ~CredentialSource() = default;
  // Null: no credentials are configured, and requests are anonymous. UNAVAILABLE: credentials are configured,
  // but their provider does not give them now.
  virtual absl::StatusOr<std::shared_ptr<const Credentials>> Get(const RequestContext& context) = 0;
  // Called after a server said that these credentials have expired: the next Get asks for new ones.
  virtual void Refuse(const Credentials& /*refused*/) {}
};

// Always gives the same keys: a client's own keys for its import. PERMISSION_DENIED after they have expired.
class FixedCredentials final : public CredentialSource {
 public:
  explicit FixedCredentials(Credentials credentials)
      : credentials_(std::make_shared<const Credentials>(std::move(credentials))) {}
  absl::StatusOr<std::shared_ptr<const Credentials>> Get(const RequestContext& /*context*/) override {
    if (absl::Now() < credentials_->expires) return credentials_;
    return absl::PermissionDeniedError(
        absl::StrCat("use the client's session credentials: the credentials expired at ",
                     absl::FormatTime(credentials_->expires), "; sign in again and import again"));
  }

 private:
  const std::shared_ptr<const Credentials> credentials_;
};

}  // namespace tensorcast::objects
