// Uses the credentials of the first configured provider, and asks the providers again before the credentials
// expire. One caller at a time asks the providers. Meanwhile other callers get the current keys, or wait if
// the current keys have expired. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "objects/credentials/credential_providers.h"
#include "objects/credentials/credentials.h"

namespace tensorcast::objects {

class CredentialChain final : public CredentialSource {
 public:
  explicit CredentialChain(std::vector<CredentialProvider> providers,
                           std::function<absl::Time()> wall_clock = absl::Now);

  absl::StatusOr<std::shared_ptr<const Credentials>> Get(const RequestContext& context) override;
  void Refuse(const Credentials& refused) override;

 private:
  absl::StatusOr<std::shared_ptr<const Credentials>> Ask(const RequestContext& context) const;

  const std::vector<CredentialProvider> providers_;
  const std::function<absl::Time()> wall_clock_;  // since credentials expire at a calendar time
  absl::Mutex mutex_;
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const Credentials> current_ ABSL_GUARDED_BY(mutex_);    // null: no provider is configured
  absl::Time good_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // current_ may be used until then
  absl::Time ask_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

// A chain of environment, profile, web identity, container and instance credentials, in this order.
std::shared_ptr<CredentialSource> MakeDefaultCredentials(std::shared_ptr<HttpClient> http,
                                                         const Environment& environment);

}  // namespace tensorcast::objects
