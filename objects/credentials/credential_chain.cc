#include "objects/credentials/credential_chain.h"

#include <algorithm>

#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::objects {
namespace {

// Keys are replaced this long before they end, or when a quarter of their time is left.
constexpr absl::Duration kAhead = absl::Minutes(5);
// The pause after an attempt to replace keys has failed, while the old keys are still good.
constexpr absl::Duration kRetryPause = absl::Seconds(10);
// How long it is believed that there are no credentials.
constexpr absl::Duration kNoneFor = absl::Minutes(1);

}  // namespace

CredentialChain::CredentialChain(std::vector<CredentialProvider> providers,
                                 std::function<absl::Time()> wall_clock)
    : providers_(std::move(providers)), wall_clock_(std::move(wall_clock)) {}

absl::StatusOr<std::shared_ptr<const Credentials>> CredentialChain::Get(const RequestContext& context) {
  {
    // Taking and releasing the mutex makes the waiting call look at its condition again.
    const auto wake = context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex_); });
    absl::MutexLock lock(&mutex_);
    while (true) {
      TC_RETURN_IF_ERROR(context.Check("get credentials"));
      const absl::Time now = wall_clock_();
      // Keys that are still good are given while another caller asks, so a slow metadata service does not
      // stop the reads.
      if (now < ask_again_ || (asking_ && now < good_until_)) return current_;
      if (!asking_) break;
      const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !asking_ || context.cancellation.IsCancelled();
      };
      mutex_.AwaitWithTimeout(absl::Condition(&changed), TimeLeft(context.deadline));
    }
    // The providers wait for servers, so they are asked without the mutex; `asking_` keeps others from
    // asking.
    asking_ = true;
  }
  absl::StatusOr<std::shared_ptr<const Credentials>> found = Ask(context);

  absl::MutexLock lock(&mutex_);
  asking_ = false;
  const absl::Time now = wall_clock_();
  if (found.ok()) {
    current_ = *found;
    // Short-lived keys are replaced late: five minutes ahead of keys that live for six would mean asking all
    // the time.
    good_until_ = current_ == nullptr ? now + kNoneFor : current_->expires;
    ask_again_ = current_ == nullptr ? good_until_ : good_until_ - std::min(kAhead, (good_until_ - now) / 4);
    return current_;
  }
  // The error is of this caller alone: a caller that waits asks again, within its own deadline.
  if (now >= good_until_) return found.status();
  ask_again_ = std::min(good_until_, now + kRetryPause);
  return current_;
}

void CredentialChain::Refuse(const Credentials& refused) {
  absl::MutexLock lock(&mutex_);
  if (current_.get() != &refused) return;  // replaced meanwhile
  good_until_ = ask_again_ = absl::InfinitePast();
}

absl::StatusOr<std::shared_ptr<const Credentials>> CredentialChain::Ask(const RequestContext& context) const {
  // The first provider that is configured decides, also by an error: reading with the keys of a later one
  // would hide the mistake and could read as another user.
  for (const CredentialProvider& provider : providers_) {
    TC_ASSIGN_OR_RETURN(std::optional<Credentials> found, provider(context));
    if (found.has_value()) return std::make_shared<const Credentials>(*std::move(found));
  }
  return std::shared_ptr<const Credentials>();
}

std::shared_ptr<CredentialSource> MakeDefaultCredentials(std::shared_ptr<HttpClient> http,
                                                         const Environment& environment) {
  return std::make_shared<CredentialChain>(std::vector<CredentialProvider>{
      EnvironmentCredentials(environment), ProfileCredentials(environment),
      WebIdentityCredentials(http, environment), ContainerCredentials(http, environment),
      InstanceCredentials(http, environment)});
}

}  // namespace tensorcast::objects
