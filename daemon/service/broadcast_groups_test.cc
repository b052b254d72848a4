#include "daemon/service/broadcast_groups.h"

#include "daemon/service/service_fixture.h"

namespace tensorcast::daemon::broadcast_groups_test {
namespace {

using ::testing::HasSubstr;

class BroadcastGroupsTest : public ServiceTest {
 protected:
  BroadcastGroups Make(bool trusted_fabric) {
    return BroadcastGroups({.node_name = "me",
                            .global_store = &store,
                            .link = link.get(),
                            .engine = engine.get(),
                            .trusted_fabric = trusted_fabric});
  }
  static v1::HeartbeatRequest Report(const BroadcastGroups& groups) {
    v1::HeartbeatRequest heartbeat;
    groups.Report(&heartbeat);
    return heartbeat;
  }
};

TEST_F(BroadcastGroupsTest, NodeWithoutBroadcasts_ReportsWhy) {
  EXPECT_EQ(Report(Make(false)).nccl_version(), "");
  EXPECT_THAT(Report(Make(false)).no_nccl(), HasSubstr("security.trusted_fabric: true"));
  EXPECT_THAT(Report(Make(true)).no_nccl(), HasSubstr("daemon.nccl is off"));
}

TEST_F(BroadcastGroupsTest, GroupThatNodeCannotJoin_IsRefusedOnce) {
  BroadcastGroups groups = Make(true);
  v1::HeartbeatResponse response;
  v1::BroadcastGroup* const group = response.add_groups();
  group->set_group_id("g");
  group->set_artifact_id("tc2:x");
  group->set_world_size(4);
  group->add_ranks()->mutable_location()->set_kind(v1::LOCATION_KIND_GPU);
  group->mutable_forming()->set_seconds(60);
  groups.Answered(response);
  ASSERT_TRUE(store.Await([](FakeGlobalStore& told) { return told.joined.size() == 1; }));
  groups.Answered(response);
  response.clear_groups();
  groups.Answered(response);
  engine.reset();  // ends what was begun
  store.With([](FakeGlobalStore& told) {
    ASSERT_EQ(told.joined.size(), 1u);
    EXPECT_EQ(told.joined[0].group_id(), "g");
    EXPECT_THAT(told.joined[0].error().message(), HasSubstr("no helper"));
  });
}

}  // namespace
}  // namespace tensorcast::daemon::broadcast_groups_test
