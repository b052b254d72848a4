#include "daemon/service/wishes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/steady_time.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kOnlyAHang = absl::Seconds(20);

// Materialisations that end when the test says so, or when they are cancelled.
class WishesTest : public ::testing::Test {
 protected:
  absl::Status Materialize(const RequestContext& context, const v1::Wish& wish,
                           const OnProgress& on_progress) {
    on_progress({.bytes_done = 3, .bytes_total = 7});
    const auto noted = context.cancellation.OnCancel([this, id = wish.wish_id()] {
      absl::MutexLock lock(&mutex_);
      cancelled_.insert(id);
    });
    absl::MutexLock lock(&mutex_);
    running_.insert(wish.wish_id());
    const auto over = [&] {
      return outcomes_.contains(wish.wish_id()) || cancelled_.contains(wish.wish_id());
    };
    mutex_.Await(absl::Condition(&over));
    running_.erase(wish.wish_id());
    const auto outcome = outcomes_.find(wish.wish_id());
    return outcome != outcomes_.end() ? outcome->second : absl::CancelledError("nobody wants it");
  }
  void AwaitRunning(const std::set<std::string>& ids) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return running_ == ids; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&reached), kOnlyAHang));
  }
  void EndWith(const std::string& id, const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    const int before = ended_;
    outcomes_[id] = status;
    const auto told = [&] { return ended_ > before; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&told), kOnlyAHang));
  }
  std::vector<v1::WishReport> Report() {
    v1::HeartbeatRequest heartbeat;
    wishes_.Report(&heartbeat);
    return {heartbeat.wishes().begin(), heartbeat.wishes().end()};
  }
  static std::vector<std::string> IdsOf(const std::vector<v1::WishReport>& reports) {
    std::vector<std::string> ids;
    for (const v1::WishReport& report : reports) ids.push_back(report.wish_id());
    return ids;
  }
  void Answer(const std::vector<std::string>& ids) {
    v1::HeartbeatResponse response;
    for (const std::string& id : ids) response.add_wishes()->set_wish_id(id);
    wishes_.Answered(response);
  }

  absl::Mutex mutex_;
  std::set<std::string> running_;
  std::set<std::string> cancelled_;
  std::map<std::string, absl::Status> outcomes_;
  int ended_ = 0;
  Wishes wishes_{[this](const RequestContext& context, const v1::Wish& wish, const OnProgress& on_progress) {
                   return Materialize(context, wish, on_progress);
                 },
                 [this] {
                   absl::MutexLock lock(&mutex_);
                   ++ended_;
                 }};
};

TEST_F(WishesTest, EachIsWorkedOnOnceAndToldUntilItsEndWasHeard) {
  Answer({"a", "b"});
  AwaitRunning({"a", "b"});
  Answer({"a", "b"});
  AwaitRunning({"a", "b"});
  std::vector<v1::WishReport> reports = Report();
  ASSERT_THAT(IdsOf(reports), ElementsAre("a", "b"));
  EXPECT_EQ(reports[0].bytes(), 3u);
  EXPECT_EQ(reports[0].bytes_total(), 7u);
  EXPECT_FALSE(reports[0].ended());

  EndWith("a", absl::OkStatus());
  EndWith("b", absl::ResourceExhaustedError("the pool is full"));
  // It ended after the report that is answered here.
  Answer({"a", "b"});
  for (int lost = 0; lost < 2; ++lost) {
    reports = Report();
    ASSERT_THAT(IdsOf(reports), ElementsAre("a", "b"));
    EXPECT_TRUE(reports[0].ended());
    EXPECT_FALSE(reports[0].has_error());
    EXPECT_EQ(rpc::FromProto(reports[1].error()), absl::ResourceExhaustedError("the pool is full"));
  }
  Answer({});
  EXPECT_THAT(Report(), IsEmpty());
}

TEST_F(WishesTest, WhatIsLeftOutIsCancelledAndNotReported) {
  Answer({"a", "b"});
  AwaitRunning({"a", "b"});
  Answer({"b"});
  AwaitRunning({"b"});
  EXPECT_THAT(IdsOf(Report()), ElementsAre("b"));
}

TEST_F(WishesTest, WhatAStopCutsShortIsNotReportedAsFailed) {
  Answer({"a", "b"});
  AwaitRunning({"a", "b"});
  wishes_.Drain();
  Answer({"a", "b", "c"});
  EXPECT_THAT(IdsOf(Report()), ElementsAre("a", "b"));
  EndWith("b", absl::OkStatus());
  wishes_.Stop();
  EXPECT_THAT(IdsOf(Report()), ElementsAre("b"));
  Answer({"c"});
  EXPECT_THAT(Report(), IsEmpty());
  AwaitRunning({});
}

}  // namespace
}  // namespace tensorcast::daemon
