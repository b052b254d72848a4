// Keys for an S3-compatible store, and where they come from. Keys of a role end; a source gives others before
// they do. Sources are thread-safe. Messages name the place of a key, never the key.
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
  std::string access_key_id;  // public: it stands in each signed request
  Secret secret_access_key;
  Secret session_token;  // empty: the keys are not a role's
  absl::Time expires = absl::InfiniteFuture();
};

class CredentialSource {
 public:
  virtual ~CredentialSource() = default;
  // Null: there are none here, and requests are anonymous. UNAVAILABLE: there are, and they cannot be had
  // now.
  virtual absl::StatusOr<std::shared_ptr<const Credentials>> Get(const RequestContext& context) = 0;
  // A server said that these have expired: the next Get gives others where there are others.
  virtual void Refuse(const Credentials& /*refused*/) {}
};

// The same keys for as long as they are held: those that a client brings with its import. PERMISSION_DENIED
// once they have expired.
class FixedCredentials final : public CredentialSource {
 public:
  explicit FixedCredentials(Credentials credentials)
      : credentials_(std::make_shared<const Credentials>(std::move(credentials))) {}
  absl::StatusOr<std::shared_ptr<const Credentials>> Get(const RequestContext& /*context*/) override {
    if (absl::Now() < credentials_->expires) return credentials_;
    return absl::PermissionDeniedError(absl::StrCat("the client's session credentials expired at ",
                                                    absl::FormatTime(credentials_->expires),
                                                    "; sign in again and import again"));
  }

 private:
  const std::shared_ptr<const Credentials> credentials_;
};

}  // namespace tensorcast::objects
