// A source's connections by themselves, over channels that take everything and send nothing.
#include "transport/pull/source_connection.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/testing/eventually.h"
#include "transport/testing/test_image.h"

namespace tensorcast::transport::pull::source_connection_test {
namespace {

constexpr uint64_t kBytes = 1000;

class IdleChannel final : public MessageChannel {
 public:
  explicit IdleChannel(TaskQueue* queue) : queue_(queue) {}

  TaskQueue& queue() override { return *queue_; }
  bool OnThread() const override { return true; }
  void Send(const Frame&) override {}
  void SendPiece(const Data&, ConstHostSpan, std::shared_ptr<void>) override {}
  bool has_room() const override { return true; }
  size_t queued_frames() const override { return 0; }
  void Flush() override {}
  void End(std::optional<Frame>, std::function<void()> ended) override { ended(); }
  uint64_t NextRequestId() override { return 0; }

 private:
  TaskQueue* const queue_;
};

class SourceConnectionTest : public ::testing::Test {
 protected:
  std::shared_ptr<SourceConnection> Connect() {
    auto connection = std::make_shared<SourceConnection>(&queue_, &threads_, SourceLimits{}, serving_);
    EXPECT_EQ(serving_->Join(connection), absl::OkStatus());
    connection->Start(std::make_shared<IdleChannel>(&queue_));
    return connection;
  }
  absl::Duration asked() { return serving_->counter().stats().asked; }

  TestMemory memory_{kBytes};
  TaskQueue queue_{[] {}};
  ServingThreads threads_{1};
  const std::shared_ptr<SourceServing> serving_ = std::make_shared<SourceServing>(
      NewPullId(), std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory_.span(0, kBytes)}),
      /*receiver=*/"");
};

TEST_F(SourceConnectionTest, ConnectionThatLeaves_SettlesOnlyItsOwnBytes) {
  const auto leaving = Connect();
  const auto other = Connect();
  for (const auto& connection : {leaving, other}) {
    ASSERT_EQ(connection->OnFrame(Request{.id = 1, .offset = 0, .bytes = kBytes}), absl::OkStatus());
    connection->Refill();
  }
  leaving->OnDenied(absl::PermissionDeniedError("denied"));
  leaving->OnSent(kBytes);  // the piece that was under way
  EXPECT_EQ(serving_->counter().stats().bytes, kBytes);
  const absl::Duration before = asked();
  EXPECT_TRUE(::tensorcast::testing::Eventually([&] { return asked() > before; }, absl::Seconds(5)))
      << "the other connection still owes its bytes";
  other->OnSent(kBytes);
  EXPECT_EQ(serving_->counter().stats().bytes, 2 * kBytes);
  const absl::Duration after = asked();
  EXPECT_EQ(asked(), after);
  for (const auto& connection : {leaving, other}) connection->End(absl::CancelledError("over"));
}

}  // namespace
}  // namespace tensorcast::transport::pull::source_connection_test
