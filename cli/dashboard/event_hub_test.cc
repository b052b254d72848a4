#include "cli/dashboard/event_hub.h"

#include <gmock/gmock.h>

#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "base/testing/eventually.h"

namespace tensorcast::dashboard::event_hub_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kHang = absl::Seconds(60);

// A source with documents that the test sets. It counts the polls.
class EventHubTest : public ::testing::Test {
 protected:
  void Set(nlohmann::json document) {
    const absl::MutexLock lock(&mutex_);
    document_ = std::move(document);
  }
  void Fail(absl::Status error) {
    const absl::MutexLock lock(&mutex_);
    error_ = std::move(error);
  }
  // Until each poll that began before this call has ended.
  void AwaitPoll() {
    const int had = polls_;
    ASSERT_TRUE(tensorcast::testing::Eventually([&] { return polls_ > had + 1; }));
  }

  absl::Mutex mutex_;
  nlohmann::json document_ ABSL_GUARDED_BY(mutex_) = {{"rows", {1, 2, 3, 4, 5, 6, 7, 8, 9}},
                                                      {"text", std::string(200, 'x')}};
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> polls_ = 0;
  EventHub hub_{[this](const std::string&, const Query&) -> absl::StatusOr<nlohmann::json> {
                  const absl::MutexLock lock(&mutex_);
                  ++polls_;
                  if (!error_.ok()) return error_;
                  return document_;
                },
                [](const std::string&) { return absl::Milliseconds(1); }};
};

TEST_F(EventHubTest, FirstEvent_IsTheDocument) {
  const auto tab = hub_.Watch("nodes", {});
  EXPECT_THAT(tab->Next(kHang), StartsWith("event: document\ndata: {\"rows\":[1,2"));
}

TEST_F(EventHubTest, Change_IsAPatchForTabsThatAreUpToDate) {
  const auto tab = hub_.Watch("nodes", {});
  tab->Next(kHang);
  Set({{"rows", {1, 2, 3, 4, 5, 6, 7, 8, 10}}, {"text", std::string(200, 'x')}});
  EXPECT_EQ(tab->Next(kHang),
            "event: patch\ndata: [{\"op\":\"replace\",\"path\":\"/rows/8\",\"value\":10}]\n\n");
  AwaitPoll();
  EXPECT_EQ(tab->Next(absl::ZeroDuration()), "") << "without a change there is no event";
}

TEST_F(EventHubTest, LargeChange_IsTheWholeDocument) {
  const auto tab = hub_.Watch("nodes", {});
  tab->Next(kHang);
  Set({{"other", std::string(300, 'y')}});
  EXPECT_THAT(tab->Next(kHang), StartsWith("event: document\ndata: {\"other\":\"yyy"));
}

TEST_F(EventHubTest, SlowTab_GetsTheNewestDocumentAlone) {
  const auto slow = hub_.Watch("nodes", {});
  slow->Next(kHang);
  const auto fast = hub_.Watch("nodes", {});
  fast->Next(kHang);
  for (int i = 1; i <= 3; ++i) {
    Set({{"rows", {i}}, {"text", std::string(200, 'x')}});
    ASSERT_NE(fast->Next(kHang), "");
  }
  EXPECT_THAT(slow->Next(kHang), AllOf(StartsWith("event: document"), HasSubstr("\"rows\":[3]")));
  EXPECT_EQ(slow->Next(absl::ZeroDuration()), "");
}

TEST_F(EventHubTest, ManyTabs_ShareOnePoller) {
  std::vector<std::unique_ptr<EventHub::Tab>> tabs;
  for (int i = 0; i < 64; ++i) tabs.push_back(hub_.Watch("nodes", {{"zone", "a"}}));
  for (const auto& tab : tabs) EXPECT_THAT(tab->Next(kHang), StartsWith("event: document"));
  EXPECT_EQ(hub_.pollers(), 1u);
  const auto other = hub_.Watch("nodes", {{"zone", "b"}});
  EXPECT_EQ(hub_.pollers(), 2u);
}

TEST_F(EventHubTest, ViewWithoutATab_IsNotPolled) {
  EXPECT_EQ(hub_.pollers(), 0u);
  auto tab = hub_.Watch("nodes", {});
  tab->Next(kHang);
  EXPECT_EQ(hub_.pollers(), 1u);
  tab.reset();
  EXPECT_EQ(hub_.pollers(), 0u) << "its thread has ended, too";
}

TEST_F(EventHubTest, FailedPoll_IsOneProblemUntilADocumentComes) {
  Fail(absl::UnavailableError("the store is away"));
  const auto tab = hub_.Watch("nodes", {});
  EXPECT_EQ(tab->Next(kHang),
            "event: problem\ndata: {\"error\":{\"code\":\"UNAVAILABLE\",\"details\":[],"
            "\"message\":\"the store is away\"}}\n\n");
  AwaitPoll();
  EXPECT_EQ(tab->Next(absl::ZeroDuration()), "");
  Fail(absl::OkStatus());
  EXPECT_THAT(tab->Next(kHang), StartsWith("event: document"));
}

TEST_F(EventHubTest, SameDocumentAfterAProblem_IsSentAgain) {
  const auto tab = hub_.Watch("nodes", {});
  tab->Next(kHang);
  Fail(absl::UnavailableError("the store is away"));
  EXPECT_THAT(tab->Next(kHang), StartsWith("event: problem"));
  Fail(absl::OkStatus());
  EXPECT_THAT(tab->Next(kHang), AnyOf(StartsWith("event: document"), StartsWith("event: patch\ndata: []")))
      << "the page is current again";
}

}  // namespace
}  // namespace tensorcast::dashboard::event_hub_test
