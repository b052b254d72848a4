#include "core/source/detached_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace tensorcast::detached_source_test {
namespace {

// Gives the byte 'x', once `go_on` says so.
class HangingSource final : public ChunkSource {
 public:
  struct Control {
    absl::Notification begun;
    absl::Notification go_on;
    absl::Notification destroyed;
  };
  explicit HangingSource(std::shared_ptr<Control> control) : control_(std::move(control)) {}
  ~HangingSource() override { control_->destroyed.Notify(); }

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return 1; }
  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext&,
                                                    const ChunkRequest& request) override {
    control_->begun.Notify();
    control_->go_on.WaitForNotification();
    for (const HostSpan& part : request.destination) std::memset(part.data(), 'x', part.size());
    return std::nullopt;
  }

 private:
  const std::shared_ptr<Control> control_;
  const SourceInfo info_{.type = SourceType::kDisk, .lane = "disk", .name = "/slow/model"};
};

class DetachedSourceTest : public ::testing::Test {
 protected:
  absl::Status Fetch(const RequestContext& context) {
    const HostSpan parts[] = {HostSpan(bytes_).first(3), HostSpan(bytes_).subspan(3)};
    return source_->Fetch(context, {.chunk = 0, .range = {0, bytes_.size()}, .destination = parts}).status();
  }

  const std::shared_ptr<HangingSource::Control> control_ = std::make_shared<HangingSource::Control>();
  std::vector<std::byte> bytes_ = std::vector<std::byte>(8, std::byte{'-'});
  std::unique_ptr<DetachedSource> source_ =
      std::make_unique<DetachedSource>(std::make_shared<HangingSource>(control_));
};

TEST_F(DetachedSourceTest, Fetch_FillsEveryPartOfTheDestination) {
  control_->go_on.Notify();
  const absl::Status fetched = Fetch({});
  ASSERT_TRUE(fetched.ok()) << fetched;
  EXPECT_EQ(bytes_, std::vector<std::byte>(8, std::byte{'x'}));
}

TEST_F(DetachedSourceTest, CancelledFetch_ReturnsAndWritesNothingLater) {
  const RequestContext context;
  std::thread canceller([&] {
    control_->begun.WaitForNotification();
    context.cancellation.Cancel();
  });
  EXPECT_EQ(Fetch(context).code(), absl::StatusCode::kCancelled);
  canceller.join();
  source_.reset();
  EXPECT_FALSE(control_->destroyed.HasBeenNotified());
  control_->go_on.Notify();
  control_->destroyed.WaitForNotification();
  EXPECT_EQ(bytes_, std::vector<std::byte>(8, std::byte{'-'}));
}

TEST_F(DetachedSourceTest, SlowDetachedFetch_ReportsItsWaitAndItsEnd) {
  std::vector<std::string> told;
  source_->ObserveWaits([&](const std::string& what) {
    told.push_back(what);
    if (!what.empty()) control_->go_on.Notify();
  });
  ASSERT_TRUE(Fetch({}).ok());
  ASSERT_EQ(told.size(), 2);
  EXPECT_NE(told[0].find("/slow/model"), std::string::npos) << told[0];
  EXPECT_EQ(told[1], "");
}

}  // namespace
}  // namespace tensorcast::detached_source_test
