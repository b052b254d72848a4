// Asks providers one after another, keeps what the first of them gives, and asks again before it expires: a
// read that takes hours goes on with new keys. One caller asks at a time; others go on with the keys that are
// still good, or wait. Thread-safe.
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
  const std::function<absl::Time()> wall_clock_;  // credentials expire at a time of day
  absl::Mutex mutex_;
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const Credentials> current_ ABSL_GUARDED_BY(mutex_);    // null: there are none
  absl::Time good_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // current_ may be given
  absl::Time ask_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

// Environment, profile, web identity, container, instance: the order of AWS's own tools.
std::shared_ptr<CredentialSource> MakeDefaultCredentials(std::shared_ptr<HttpClient> http,
                                                         const Environment& environment);

}  // namespace tensorcast::objects
