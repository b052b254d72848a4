// A server that no longer leads: callers do not trust its answers, and it notices before it answers.
#include "rpc/epoch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "rpc/call.h"
#include "rpc/rpc_test_service.h"

namespace tensorcast::rpc::epoch_test {
namespace {

using ::testing::HasSubstr;
using Stub = v1::GlobalStore::Stub;

constexpr CallOptions Once(EpochFence* fence) { return {.retry_for = absl::ZeroDuration(), .fence = fence}; }

TEST(Epoch, Epoch_RoundTripsAndOtherTextIsRefused) {
  const Epoch epoch{.cluster = 0xabc, .number = 12};
  EXPECT_EQ(epoch.ToText(), "0000000000000abc-12");
  EXPECT_EQ(ParseEpoch(epoch.ToText()), epoch);
  for (const char* other : {"", "12", "0000000000000abc", "0000000000000abc-", "0000000000000abc-x",
                            "0000000000000abc-012", "0000000000000abc--1", "0000000000000ABC-12",
                            "0000000000000abc-12 ", "0000000000000abc-18446744073709551616"}) {
    EXPECT_EQ(ParseEpoch(other), std::nullopt) << other;
  }
}

// A server of each epoch, all alive at once.
class Fence : public ::testing::Test {
 protected:
  absl::StatusOr<v1::BindKeyResponse> Call(const Epoch& epoch, const absl::Status& answer = {}) {
    Executor executor;
    TestGlobalStore service(&executor);
    service.bind_key = [&](auto&&...) { return answer; };
    auto server = Server::Start({.listen = {"127.0.0.1:0"}, .services = {&service}, .epoch = epoch});
    CHECK_OK(server.status());
    const auto stub = v1::GlobalStore::NewStub(MakeChannel((*server)->addresses()[0]));
    return CallUnary(*stub, &Stub::BindKey, Within(absl::Seconds(30)), {}, Once(&fence_));
  }

  EpochFence fence_;
};

TEST_F(Fence, AnswerOfEarlierEpoch_IsUnavailable) {
  EXPECT_TRUE(Call({.cluster = 1, .number = 3}).ok());
  EXPECT_TRUE(Call({.cluster = 1, .number = 3}).ok());
  EXPECT_TRUE(Call({.cluster = 1, .number = 5}).ok());
  const absl::Status late = Call({.cluster = 1, .number = 4}).status();
  EXPECT_TRUE(absl::IsUnavailable(late)) << late;
  EXPECT_THAT(late.message(), HasSubstr("has epoch 4, but a newer leader with epoch 5 has replaced"));
  EXPECT_TRUE(Call({.cluster = 1, .number = 5}).ok());
}

TEST_F(Fence, ErrorOfEarlierEpoch_IsUnavailable) {
  EXPECT_TRUE(absl::IsNotFound(Call({.cluster = 1, .number = 5}, absl::NotFoundError("none")).status()));
  const absl::Status late = Call({.cluster = 1, .number = 4}, absl::NotFoundError("none")).status();
  EXPECT_TRUE(absl::IsUnavailable(late)) << late;
}

TEST_F(Fence, EpochOfOtherCluster_IsAccepted) {
  EXPECT_TRUE(Call({.cluster = 1, .number = 5}).ok());
  EXPECT_TRUE(Call({.cluster = 2, .number = 1}).ok());
  EXPECT_TRUE(Call({}).ok()) << "one that says none is none of several";
  EXPECT_TRUE(Call({.cluster = 2, .number = 1}).ok());
}

TEST(Admission, AdmissionEndsDuringCall_CallIsUnavailable) {
  std::atomic<bool> leads{true};
  Executor executor;
  TestGlobalStore service(&executor);
  service.bind_key = [&](auto&&...) {
    leads = false;
    return absl::OkStatus();
  };
  auto server =
      Server::Start({.listen = {"127.0.0.1:0"}, .services = {&service}, .admit = [&]() -> absl::Status {
                       if (leads) return absl::OkStatus();
                       return absl::UnavailableError("leads no more");
                     }});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = v1::GlobalStore::NewStub(MakeChannel((*server)->addresses()[0]));
  const absl::Status answer =
      CallUnary(*stub, &Stub::BindKey, Within(absl::Seconds(30)), {}, Once(nullptr)).status();
  EXPECT_TRUE(absl::IsUnavailable(answer)) << answer;
  EXPECT_THAT(answer.message(), HasSubstr("leads no more"));
}

}  // namespace
}  // namespace tensorcast::rpc::epoch_test
