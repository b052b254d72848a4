#include "objects/credentials/credential_chain.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace tensorcast::objects {
namespace {

// Gives keys "1", "2" and so on, each good for an hour.
class CredentialChainTest : public ::testing::Test {
 protected:
  std::string Get() {
    const auto keys = chain_.Get({});
    if (!keys.ok()) return std::string(keys.status().message());
    return *keys == nullptr ? "none" : (*keys)->access_key_id;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  absl::Status failure_;
  bool none_ = false;
  int asked_ = 0;
  CredentialChain chain_{{[](const RequestContext&) { return std::nullopt; },
                          [this](const RequestContext&) -> absl::StatusOr<std::optional<Credentials>> {
                            ++asked_;
                            if (!failure_.ok()) return failure_;
                            if (none_) return std::nullopt;
                            return Credentials{.access_key_id = absl::StrCat(asked_),
                                               .secret_access_key = Secret("s"),
                                               .expires = now_ + absl::Hours(1)};
                          }},
                         [this] { return now_; }};
};

TEST_F(CredentialChainTest, Keys_AreReplacedBeforeTheyExpire) {
  EXPECT_EQ(Get(), "1");
  now_ += absl::Minutes(50);
  EXPECT_EQ(Get(), "1");
  now_ += absl::Minutes(6);
  EXPECT_EQ(Get(), "2");
}

TEST_F(CredentialChainTest, FailedReplacement_KeepsKeysThatAreGood) {
  EXPECT_EQ(Get(), "1");
  failure_ = absl::UnavailableError("away");
  now_ += absl::Minutes(56);
  EXPECT_EQ(Get(), "1");
  EXPECT_EQ(Get(), "1");
  EXPECT_EQ(asked_, 2);  // and pauses
  now_ += absl::Minutes(5);
  EXPECT_EQ(Get(), "away");
  failure_ = absl::OkStatus();
  EXPECT_EQ(Get(), "4");
}

TEST_F(CredentialChainTest, RefusedKeys_AreReplacedOnce) {
  const auto first = *chain_.Get({});
  chain_.Refuse(*first);
  EXPECT_EQ(Get(), "2");
  chain_.Refuse(*first);  // late: another reader's refusal of the keys before
  EXPECT_EQ(Get(), "2");
}

TEST_F(CredentialChainTest, Absence_IsBelievedForAMinute) {
  none_ = true;
  EXPECT_EQ(Get(), "none");
  EXPECT_EQ(Get(), "none");
  EXPECT_EQ(asked_, 1);
  none_ = false;
  now_ += absl::Minutes(2);
  EXPECT_EQ(Get(), "2");
}

TEST(CredentialChain, OneCaller_AsksWhileOthersWait) {
  absl::Notification asked, go_on;
  std::atomic<int> calls = 0;
  CredentialChain chain({[&](const RequestContext&) -> absl::StatusOr<std::optional<Credentials>> {
    if (++calls == 1) {
      asked.Notify();
      go_on.WaitForNotification();
    }
    return Credentials{.access_key_id = "a", .secret_access_key = Secret("s")};
  }});
  std::thread first([&] { EXPECT_TRUE(chain.Get({}).ok()); });
  asked.WaitForNotification();
  RequestContext cancelled;
  cancelled.cancellation.Cancel();
  EXPECT_EQ(chain.Get(cancelled).status().code(), absl::StatusCode::kCancelled);
  std::thread second([&] { EXPECT_TRUE(chain.Get({}).ok()); });
  go_on.Notify();
  first.join();
  second.join();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tensorcast::objects
