// The node's answers to heartbeats, on a real engine.
#include "daemon/app/node_agent.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "daemon/service/service_fixture.h"

namespace tensorcast::daemon::node_agent_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Answers once the test lets it, or refuses after a time that only a hang takes.
class HeldGuard final : public EvictionGuard {
 public:
  absl::Status MayEvict(const ReplicaInfo&) override {
    if (answer.WaitForNotificationWithTimeout(absl::Seconds(10))) return absl::OkStatus();
    return absl::DeadlineExceededError("the test did not let it answer");
  }
  absl::Notification answer;
};

class NodeAgentTest : public ServiceTest {
 public:
  void SetUp() override {
    auto held = std::make_unique<HeldGuard>();
    guard_ = held.get();
    eviction_guard = std::move(held);
    ServiceTest::SetUp();
    tasks_ = std::make_unique<ReplicationTasks>(
        [](const RequestContext&, const v1::ReplicationTask&, const OnProgress&) { return absl::OkStatus(); },
        [] {});
    agent_ = std::make_unique<NodeAgent>(NodeAgent::Options{.engine = engine.get(),
                                                            .servings = servings.get(),
                                                            .grants = &grants,
                                                            .publications = &publications,
                                                            .tasks = tasks_.get(),
                                                            .groups = groups.get(),
                                                            .status = status.get()});
  }

 protected:
  HeldGuard* guard_ = nullptr;
  std::unique_ptr<ReplicationTasks> tasks_;
  std::unique_ptr<NodeAgent> agent_;
};

// The guard may wait for the link's thread, which calls OnHeartbeat.
TEST_F(NodeAgentTest, EvictionByHeartbeat_DoesNotHoldUpTheLink) {
  v1::HeartbeatResponse response;
  response.add_evict_replicas(MakeReplica());
  for (int beat = 0; beat < 2; ++beat) agent_->OnHeartbeat(response);
  EXPECT_THAT(engine->ListReplicas(), SizeIs(1));
  guard_->answer.Notify();
  agent_.reset();  // waits for the eviction
  EXPECT_THAT(engine->ListReplicas(), IsEmpty());
}

}  // namespace
}  // namespace tensorcast::daemon::node_agent_test
