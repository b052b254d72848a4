#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::groups_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Location kGpu0 = {LocationKind::kGpu, 0};
constexpr Location kGpu1 = {LocationKind::kGpu, 1};
const GroupRoot kRoot = {.communicator_id = "id", .rank = 0, .node_name = "name-a", .replica_id = "r"};

class Groups : public DirectoryTest {
 protected:
  // An artifact x, and nodes with two GPUs each that can broadcast.
  void Prepare(const std::vector<std::string>& nodes, uint64_t image_bytes = uint64_t{8} << 30) {
    directory_.Apply({.artifacts = {{.artifact_id = "x", .image_bytes = image_bytes}}}, now_);
    for (const std::string& node : nodes) {
      NodeFacts facts = SomeNode(node);
      facts.devices = {{.ordinal = 0, .uuid = "0"}, {.ordinal = 1, .uuid = "1"}};
      Register(facts);
      directory_.membership().SetBroadcasts(node, {.nccl_version = "2.28.9"});
    }
  }
  absl::StatusOr<TaskPlan> Plan(const std::vector<std::string>& nodes, TaskLane lane = TaskLane::kAuto,
                                const std::vector<Location>& locations = {kGpu0, kGpu1}) {
    TaskRequest request{.request_id = absl::StrCat("w", ++requests_), .artifact_id = "x", .lane = lane};
    for (const std::string& node : nodes) {
      for (const Location& location : locations) request.targets.push_back({node, location});
    }
    return directory_.tasks().Prepare(request, wall_now());
  }
  // The id of the group; empty: the tasks make none.
  std::string Replicate(const std::vector<std::string>& nodes, TaskLane lane = TaskLane::kAuto,
                        const std::vector<Location>& locations = {kGpu0, kGpu1}) {
    const auto plan = Plan(nodes, lane, locations);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return "";
    directory_.Apply(plan->facts, now_);
    if (!plan->group.has_value()) return "";
    directory_.tasks().groups().Add(*plan->group);
    return plan->group->group_id;
  }
  std::string WhyNot(const std::vector<std::string>& nodes,
                     const std::vector<Location>& locations = {kGpu0, kGpu1}) {
    const absl::Status refused = Plan(nodes, TaskLane::kNccl, locations).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(refused.message());
  }
  absl::StatusOr<std::optional<GroupRoot>> Join(const std::string& node, const std::string& group,
                                                const std::optional<GroupRoot>& root = std::nullopt) {
    return directory_.tasks().groups().Join(Id(node), group, root, now_);
  }

  int requests_ = 0;
};

TEST_F(Groups, Group_FormsWhenAllItsNodesJoined) {
  Prepare({"a", "b", "c"});
  const std::string id = Replicate({"a", "b", "c"});
  ASSERT_NE(id, "");
  const std::vector<NodeGroup> of_b = directory_.tasks().groups().Of("b", now_);
  ASSERT_THAT(of_b, SizeIs(1));
  EXPECT_EQ(of_b[0].world_size, 6u);
  EXPECT_FALSE(of_b[0].has_root);
  ASSERT_THAT(of_b[0].ranks, SizeIs(2));
  EXPECT_EQ(of_b[0].ranks[1].rank, 3u);
  EXPECT_EQ(of_b[0].ranks[1].location, kGpu1);
  EXPECT_TRUE(directory_.tasks().groups().Of("a", now_)[0].has_root);

  EXPECT_EQ(Join("b", id).value(), std::nullopt);
  EXPECT_THAT(directory_.tasks().groups().Of("b", now_), IsEmpty()) << "it knows";
  EXPECT_EQ(Join("a", id, kRoot).value(), std::nullopt);
  EXPECT_EQ(Join("c", id).value()->communicator_id, "id");
  EXPECT_EQ(Join("b", id).value()->replica_id, "r");
  EXPECT_TRUE(absl::IsNotFound(Join("b", "w9").status()));
}

TEST_F(Groups, TasksOfGroup_AreHandedOutTogether) {
  const std::vector<Location> gpus = {{LocationKind::kGpu, 0}, {LocationKind::kGpu, 1},
                                      {LocationKind::kGpu, 2}, {LocationKind::kGpu, 3},
                                      {LocationKind::kGpu, 4}, {LocationKind::kGpu, 5}};
  Prepare({});
  for (const std::string node : {"a", "b", "c"}) {
    NodeFacts facts = SomeNode(node);
    for (const Location& gpu : gpus) facts.devices.push_back({.ordinal = gpu.device});
    Register(facts);
    directory_.membership().SetBroadcasts(node, {.nccl_version = "2.28.9"});
  }
  ASSERT_GT(gpus.size(), options_.tasks.at_once);
  ASSERT_NE(Replicate({"a", "b", "c"}, TaskLane::kAuto, gpus), "");
  EXPECT_THAT(directory_.tasks().Take(Id("b"), now_).value(), SizeIs(gpus.size()));
}

TEST_F(Groups, Group_IsMadeByDefaultOnlyWhereItIsFaster) {
  Prepare({"a", "b", "c", "d"});
  EXPECT_EQ(Replicate({"a"}), "") << "one node";
  EXPECT_EQ(Replicate({"b", "c"}), "") << "a source sends it twice at most";
  EXPECT_EQ(Replicate({"a", "b", "c", "d"}, TaskLane::kPull), "");
  directory_.membership().SetBroadcasts("d", {.why_not = "no"});
  Update("a", {SomeReplica("ra", "x", LocationKind::kGpu)});
  EXPECT_EQ(Replicate({"d"}), "");
}

TEST_F(Groups, SmallArtifact_IsBroadcastOnlyOnRequest) {
  Prepare({"a", "b", "c"}, 1 << 20);
  EXPECT_EQ(Replicate({"a", "b"}, TaskLane::kAuto, {kGpu0}), "");
  EXPECT_NE(Replicate({"a", "b", "c"}, TaskLane::kNccl, {kGpu1}), "");
}

TEST_F(Groups, NodeWithoutBroadcasts_IsLeftOutAndNcclLaneSaysWhy) {
  Prepare({"a", "b", "c", "d"});
  directory_.membership().SetBroadcasts("d", {.why_not = "security.trusted_fabric is not set"});
  EXPECT_THAT(WhyNot({"a", "d"}), HasSubstr("name-d: security.trusted_fabric is not set"));
  EXPECT_THAT(WhyNot({"a", "b"}, {{}}), HasSubstr("is not a GPU"));
  EXPECT_THAT(WhyNot({"a"}), HasSubstr("are on one node"));
  directory_.membership().SetBroadcasts("c", {.nccl_version = "2.20.5"});
  EXPECT_THAT(WhyNot({"a", "c"}), HasSubstr("NCCL 2.20.5"));
  directory_.membership().SetBroadcasts("c", {.nccl_version = "2.28.9"});
  ASSERT_NE(Replicate({"a", "b", "c", "d"}), "");
  EXPECT_THAT(directory_.tasks().groups().Of("d", now_), IsEmpty());
  EXPECT_EQ(directory_.tasks().groups().Of("a", now_)[0].world_size, 6u);
}

TEST_F(Groups, ReadyDeviceReplica_IsRootOfTheGroup) {
  Prepare({"a", "b", "c"});
  Update("c", {SomeReplica("r", "x", LocationKind::kGpu)});
  ASSERT_NE(Replicate({"a", "b"}), "");
  const std::vector<NodeGroup> of_c = directory_.tasks().groups().Of("c", now_);
  ASSERT_THAT(of_c, SizeIs(1));
  EXPECT_TRUE(of_c[0].has_root);
  ASSERT_THAT(of_c[0].ranks, SizeIs(1));
  EXPECT_EQ(of_c[0].ranks[0].rank, 4u);
  EXPECT_FALSE(directory_.tasks().groups().Of("a", now_)[0].has_root);
}

TEST_F(Groups, NodeWithHostReplica_GetsTheRootOfTheGroup) {
  Prepare({"a", "b", "c"});
  Update("b", {SomeReplica("r", "x")});
  ASSERT_NE(Replicate({"a", "b", "c"}), "");
  EXPECT_TRUE(directory_.tasks().groups().Of("b", now_)[0].has_root);
  EXPECT_FALSE(directory_.tasks().groups().Of("a", now_)[0].has_root);
}

TEST_F(Groups, RootRankOfOtherNode_IsRefused) {
  Prepare({"a", "b", "c"});
  const std::string id = Replicate({"a", "b", "c"});
  GroupRoot wrong = kRoot;
  for (const uint32_t rank : {2u, 6u}) {  // of b; of none
    wrong.rank = rank;
    EXPECT_TRUE(absl::IsInvalidArgument(Join("a", id, wrong).status())) << rank;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Join("a", id).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Join("b", id, kRoot).status()));
  EXPECT_TRUE(Join("a", id, kRoot).ok());
}

TEST_F(Groups, GroupThatDoesNotFormInTime_IsAborted) {
  Prepare({"a", "b", "c"});
  const std::string id = Replicate({"a", "b", "c"});
  EXPECT_THAT(directory_.tasks().groups().Of("b", now_), SizeIs(1));
  EXPECT_TRUE(Join("b", id).ok());
  now_ += options_.tasks.groups.forming;
  EXPECT_THAT(directory_.tasks().groups().Of("c", now_), IsEmpty());
  EXPECT_TRUE(absl::IsAborted(Join("a", id, kRoot).status()));
  EXPECT_TRUE(absl::IsAborted(Join("b", id).status()));
}

TEST_F(Groups, GroupMemberThatLeaves_AbortsGroupForAll) {
  Prepare({"a", "b", "c"});
  const std::string first = Replicate({"a", "b", "c"}, TaskLane::kAuto, {kGpu0});
  EXPECT_TRUE(Join("b", first).ok());
  EXPECT_THAT(WhyNot({"a", "b"}, {kGpu1}), HasSubstr("takes part in the broadcast of x"));
  EXPECT_TRUE(
      directory_.tasks().groups().End(Id("c"), first, absl::UnavailableError("no helper"), now_).ok());
  EXPECT_THAT(std::string(Join("b", first).status().message()),
              HasSubstr("name-c ended the group (UNAVAILABLE: no helper"));
  const std::string second = Replicate({"a", "b", "c"}, TaskLane::kAuto, {kGpu1});
  ASSERT_NE(second, "") << "no node is in one any more";
  Register("c", 2);
  EXPECT_TRUE(absl::IsAborted(Join("b", second).status()));
}

TEST_F(Groups, FailedGroup_IsNotRepeatedDuringPauseUnlessRequested) {
  Prepare({"a", "b", "c", "d", "e", "f"});
  const auto fail = [&](const std::vector<std::string>& nodes, const absl::Status& why) {
    const std::string id = Replicate(nodes, TaskLane::kAuto, {kGpu0});
    ASSERT_NE(id, "");
    for (const std::string& node : nodes) {
      ASSERT_TRUE(Join(node, id, node == nodes[0] ? std::optional(kRoot) : std::nullopt).ok());
    }
    ASSERT_TRUE(directory_.tasks().groups().End(Id(nodes[1]), id, why, now_).ok());
  };
  fail({"d", "e", "f"}, absl::CancelledError("a receiver left"));
  fail({"a", "b", "c"}, absl::UnavailableError("no route to host"));
  const auto makes_one = [this](const std::vector<std::string>& nodes, TaskLane lane) {
    return Plan(nodes, lane, {kGpu1}).value().group.has_value();
  };
  EXPECT_FALSE(makes_one({"b", "c", "d"}, TaskLane::kAuto)) << "b and c cannot";
  EXPECT_TRUE(makes_one({"c", "d", "e"}, TaskLane::kAuto)) << "these have not failed together";
  EXPECT_TRUE(makes_one({"a", "b"}, TaskLane::kNccl));

  now_ += options_.tasks.groups.pause;
  directory_.Tick(now_);  // the nodes were not heard from for so long
  Prepare({"a", "b", "c"});
  EXPECT_TRUE(makes_one({"a", "b", "c"}, TaskLane::kAuto));
}

TEST_F(Groups, AbortedGroupUnknownToNodes_IsForgotten) {
  Prepare({"a", "b", "c"});
  const std::string id = Replicate({"a", "b", "c"});
  Register("c", 2);
  EXPECT_TRUE(absl::IsAborted(Join("b", id).status()));
  directory_.Tick(now_);
  EXPECT_TRUE(absl::IsNotFound(Join("b", id).status()));
}

TEST_F(Groups, Group_EndsWithItsTasks) {
  Prepare({"a", "b", "c"});
  const std::string id = Replicate({"a", "b", "c"}, TaskLane::kAuto, {kGpu0});
  for (const std::string node : {"b", "c"}) ASSERT_TRUE(Join(node, id).ok());
  ASSERT_TRUE(Join("a", id, kRoot).ok());
  directory_.Tick(now_);
  EXPECT_THAT(WhyNot({"a", "b"}, {kGpu1}), HasSubstr("takes part"));
  for (const std::string node : {"a", "b", "c"}) {
    const std::vector<TaskRecord> taken = directory_.tasks().Take(Id(node), now_).value();
    for (const TaskRecord& task : taken) {
      ASSERT_TRUE(
          directory_.tasks().Note(Id(node), {{.task_id = task.task_id, .ended = absl::OkStatus()}}).ok());
    }
  }
  directory_.Apply(directory_.tasks().PrepareSettle(wall_now()), now_);
  directory_.Tick(now_);
  EXPECT_NE(Replicate({"a", "b"}, TaskLane::kNccl, {kGpu1}), "");
}

}  // namespace
}  // namespace tensorcast::global_store::groups_test
