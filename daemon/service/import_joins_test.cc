#include "daemon/service/import_joins.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "global_store/imports/import_claims.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon::import_joins_test {
namespace {

using ::testing::HasSubstr;

// The claims of a global store, and nodes that ask it.
class ImportJoinsTest : public ::testing::Test {
 protected:
  ImportJoins::Claim ClaimOf(const std::string& node) {
    return [this, node](const RequestContext& context,
                        const v1::ClaimImportRequest& request) -> absl::StatusOr<v1::ClaimImportResponse> {
      if (silent_) {
        ++unheard_;
        absl::Notification cancelled;
        const auto wake = context.cancellation.OnCancel([&cancelled] { cancelled.Notify(); });
        cancelled.WaitForNotificationWithTimeout(TimeLeft(context.deadline));
        return absl::UnavailableError("silent");
      }
      absl::MutexLock lock(&mutex_);
      if (!down_.ok()) return down_;
      v1::ClaimImportResponse response;
      if (request.ended()) {
        claims_.End(node, 1, request.import_id(), request.artifact_id(), now_);
        return response;
      }
      const auto answer = claims_.Claim(node, 1, request.import_id(), now_);
      response.set_granted(answer.granted);
      response.set_artifact_id(answer.artifact_id);
      response.set_reading_node(answer.reading_node_id);
      *response.mutable_retry_after() = rpc::ToProto(absl::Milliseconds(20));
      if (answer.granted) now_ += absl::Seconds(1);  // a claim that is not renewed would run out
      return response;
    };
  }
  static ImportJoins::Joined Join(ImportJoins& joins, const RequestContext& context = {}) {
    auto joined = joins.Join(context, "import", [](const std::string&) {});
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? *std::move(joined) : ImportJoins::Joined();
  }

  std::atomic<bool> silent_ = false;  // the store takes calls and does not answer
  std::atomic<int> unheard_ = 0;
  absl::Mutex mutex_;
  absl::Status down_;
  SteadyTime now_ = SteadyTime() + absl::Hours(1);
  global_store::ImportClaims claims_;
  ImportJoins a_{ClaimOf("a")};
  ImportJoins b_{ClaimOf("b")};
};

TEST_F(ImportJoinsTest, EightImportsOnTwoNodes_OneReads) {
  std::atomic<int> reads = 0, waits = 0, taken = 0;
  std::vector<std::thread> imports;
  for (int i = 0; i < 8; ++i) {
    imports.emplace_back([&, i] {
      auto joined = (i % 2 == 0 ? a_ : b_).Join({}, "import", [&waits](const std::string&) { ++waits; });
      ASSERT_TRUE(joined.ok()) << joined.status();
      if (joined->turn == nullptr) {
        EXPECT_EQ(joined->artifact_id, "tc2:made");
        ++taken;
        return;
      }
      ++reads;
      EXPECT_TRUE(testing::Eventually([&] { return waits >= 7; }));
      joined->turn->Made("tc2:made");
    });
  }
  for (std::thread& import : imports) import.join();
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(taken, 7);
}

TEST_F(ImportJoinsTest, FailedImport_LetsTheNextRead) {
  for (ImportJoins* const joins : {&a_, &b_}) {
    ImportJoins::Joined first = Join(a_);
    ASSERT_NE(first.turn, nullptr);
    std::atomic<bool> waits = false;
    ImportJoins::Joined next;
    std::thread waiting(
        [&] { next = *joins->Join({}, "import", [&](const std::string&) { waits = true; }); });
    EXPECT_TRUE(testing::Eventually([&] { return waits.load(); }));
    first.turn.reset();  // it made nothing
    waiting.join();
    EXPECT_NE(next.turn, nullptr);
  }
}

TEST_F(ImportJoinsTest, ReadingNode_KeepsItsClaim) {
  const auto reading = Join(a_);
  // The clock passes a claim's life with each renewal.
  EXPECT_TRUE(testing::Eventually([&] {
    absl::MutexLock lock(&mutex_);
    return now_ > SteadyTime() + absl::Hours(1) + absl::Seconds(20);
  }));
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(claims_.Claim("b", 1, "import", now_).reading_node_id, "a");
}

TEST_F(ImportJoinsTest, StoreThatIsAway_DoesNotKeepAnImport) {
  down_ = absl::UnavailableError("away");
  EXPECT_NE(Join(a_).turn, nullptr);
}

TEST_F(ImportJoinsTest, SilentStore_HoldsAnEndForASecond) {
  ImportJoins::Joined reading = Join(a_);
  silent_ = true;
  EXPECT_TRUE(testing::Eventually([&] { return unheard_ > 0; })) << "a renewal is under way";
  const SteadyTime begun = SteadyNow();
  reading.turn.reset();
  EXPECT_LT(SteadyNow() - begun, absl::Seconds(3));
}

TEST_F(ImportJoinsTest, CancelledImport_WaitsNoLonger) {
  const auto reading = Join(a_);
  for (ImportJoins* const joins : {&a_, &b_}) {
    const RequestContext context = RequestContext::Background();
    std::string waited_for;
    const absl::Status ended = joins
                                   ->Join(context, "import",
                                          [&](const std::string& what) {
                                            waited_for = what;
                                            context.cancellation.Cancel();
                                          })
                                   .status();
    EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
    EXPECT_THAT(waited_for, HasSubstr("import of these objects"));
  }
}

}  // namespace
}  // namespace tensorcast::daemon::import_joins_test
