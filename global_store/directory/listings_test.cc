// Pages of listings, and what a page costs.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "global_store/directory/directory_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::global_store::listings_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Listings : public DirectoryTest {
 protected:
  static std::vector<std::string> IdsOf(const NodePage& page) {
    std::vector<std::string> ids;
    for (const NodeView& node : page.nodes) ids.push_back(node.facts.node_id);
    return ids;
  }
};

TEST_F(Listings, Artifact_CountsItsReplicasUnlessTheyAreAskedFor) {
  Register("a");
  Publish("x");
  ReplicaInfo filling = SomeReplica("r2", "x");
  filling.state = ReplicaState::kFilling;
  Update("a", {SomeReplica("r1", "x"), filling, SomeReplica("r3", "x")});
  const ArtifactPage counted = ListArtifacts(directory_, "", {}, {});
  ASSERT_THAT(counted.artifacts, SizeIs(1));
  EXPECT_EQ(counted.artifacts[0].ready_replicas, 2u);
  EXPECT_THAT(counted.artifacts[0].replicas, IsEmpty());
  const ArtifactPage listed = ListArtifacts(directory_, "", {}, {.replicas = true});
  ASSERT_THAT(listed.artifacts, SizeIs(1));
  EXPECT_EQ(listed.artifacts[0].ready_replicas, 2u);
  EXPECT_THAT(listed.artifacts[0].replicas, SizeIs(3));
}

TEST_F(Listings, Replicas_ContinueOnTheNextPageWhereThePageIsFull) {
  constexpr size_t kReplicas = 150'000;
  Register("a");
  for (const char* id : {"w", "x", "y"}) Publish(id);
  std::vector<ReplicaInfo> replicas;
  for (size_t i = 0; i < kReplicas; ++i) replicas.push_back(SomeReplica(absl::StrCat("r", i), "x"));
  Update("a", replicas);
  Update("a", {SomeReplica("of-w", "w"), SomeReplica("of-y", "y")});

  const PageBounds bounds{.entries = 1000, .bytes = size_t{1} << 20};
  std::set<std::string> seen;
  std::vector<std::string> artifacts;
  std::string after;
  size_t pages = 0;
  do {
    const ArtifactPage page = ListArtifacts(directory_, after, bounds, {.replicas = true});
    ASSERT_FALSE(page.artifacts.empty());
    size_t bytes = 0;
    for (const ArtifactView& artifact : page.artifacts) {
      if (artifacts.empty() || artifacts.back() != artifact.record.artifact_id) {
        artifacts.push_back(artifact.record.artifact_id);
      }
      for (const ReplicaInfo& replica : artifact.replicas) {
        EXPECT_TRUE(seen.insert(replica.id).second) << "twice: " << replica.id;
        bytes += replica.id.size() + replica.artifact_id.size() + replica.node_id.size();
      }
    }
    EXPECT_LE(bytes, bounds.bytes);
    after = page.next;
    ASSERT_LT(++pages, 100u);
  } while (!after.empty());
  EXPECT_GT(pages, 5u);
  EXPECT_EQ(seen.size(), kReplicas + 2);
  EXPECT_THAT(artifacts, ElementsAre("w", "x", "y"));
  // Counted, all of it is one page.
  const ArtifactPage counted = ListArtifacts(directory_, "", bounds, {});
  EXPECT_THAT(counted.artifacts, SizeIs(3));
  EXPECT_EQ(counted.next, "");
  EXPECT_EQ(counted.artifacts[1].ready_replicas, kReplicas);
}

TEST_F(Listings, NextArtifactPage_SkipsDeletedArtifact) {
  Register("a");
  for (const char* id : {"x", "y"}) Publish(id);
  Update("a", {SomeReplica("r1", "x"), SomeReplica("r2", "x"), SomeReplica("r3", "y")});
  const ArtifactPage first = ListArtifacts(directory_, "", {.bytes = 1}, {.replicas = true});
  ASSERT_THAT(first.artifacts, SizeIs(1));
  EXPECT_THAT(first.artifacts[0].replicas, SizeIs(1)) << "an entry is on each page, whatever its size";
  Delete("x");
  const ArtifactPage next = ListArtifacts(directory_, first.next, {}, {.replicas = true});
  ASSERT_THAT(next.artifacts, SizeIs(1));
  EXPECT_EQ(next.artifacts[0].record.artifact_id, "y");
  EXPECT_THAT(next.artifacts[0].replicas, SizeIs(1));
}

TEST_F(Listings, DescribeArtifact_ContinuesReplicasAfterPreviousPage) {
  Register("a");
  Register("b");
  Publish("x");
  Update("a", {SomeReplica("r1", "x"), SomeReplica("r2", "x")});
  Update("b", {SomeReplica("r1", "x")});
  std::vector<std::string> names;
  std::string after;
  do {
    const auto view = DescribeArtifact(directory_, "x", after, {.bytes = 1});
    ASSERT_TRUE(view.ok()) << view.status();
    for (const ReplicaInfo& replica : view->replicas) {
      names.push_back(absl::StrCat(replica.node_id, "/", replica.id));
    }
    after = view->more_replicas_after;
  } while (!after.empty());
  EXPECT_THAT(names, ElementsAre("a/r1", "a/r2", "b/r1"));
}

TEST_F(Listings, Nodes_ComeInPages) {
  for (const char* id : {"a", "b", "c"}) Register(id);
  const NodePage first = ListNodes(directory_.membership(), "", {.entries = 2}, now_);
  EXPECT_THAT(IdsOf(first), ElementsAre("a", "b"));
  const NodePage last = ListNodes(directory_.membership(), first.next, {.entries = 2}, now_);
  EXPECT_THAT(IdsOf(last), ElementsAre("c"));
  EXPECT_EQ(last.next, "");
  EXPECT_THAT(ListNodes(directory_.membership(), "", {.bytes = 1}, now_).nodes, SizeIs(1));
}

TEST_F(Listings, NodesByName_AreLookedUpAndComeInPages) {
  for (const char* id : {"a", "b", "c"}) Register(id);
  const std::set<std::string, std::less<>> names = {"name-a", "name-c", "unknown"};
  EXPECT_THAT(IdsOf(FindNodesNamed(directory_.membership(), names, "", {}, now_)), ElementsAre("a", "c"));
  const NodePage first = FindNodesNamed(directory_.membership(), names, "", {.entries = 1}, now_);
  EXPECT_THAT(IdsOf(first), ElementsAre("a"));
  EXPECT_THAT(IdsOf(FindNodesNamed(directory_.membership(), names, first.next, {}, now_)), ElementsAre("c"));
}

TEST_F(Listings, NodesById_AreLookedUpAndComeInPages) {
  for (const char* id : {"a", "b", "c"}) Register(id);
  const std::set<std::string, std::less<>> asked = {"a", "c", "name-b"};
  NodePage page;
  std::vector<std::string> found;
  do {
    page = FindNodesNamed(directory_.membership(), asked, page.next, {.entries = 1}, now_);
    for (const std::string& id : IdsOf(page)) found.push_back(id);
  } while (!page.next.empty());
  EXPECT_THAT(found, ElementsAre("a", "c", "b"));
}

TEST_F(Listings, NodeThatIsNamedByNameAndId_IsListedOnce) {
  for (const char* id : {"a", "b", "z"}) Register(id);
  const std::set<std::string, std::less<>> asked = {"a", "name-a", "name-z", "z"};
  EXPECT_THAT(IdsOf(FindNodesNamed(directory_.membership(), asked, "", {}, now_)), ElementsAre("a", "z"));
  const NodePage first = FindNodesNamed(directory_.membership(), asked, "", {.entries = 1}, now_);
  EXPECT_THAT(IdsOf(FindNodesNamed(directory_.membership(), asked, first.next, {}, now_)), ElementsAre("z"));
}

TEST_F(Listings, DrainingNodes_AreCounted) {
  for (const char* id : {"a", "b", "c"}) Register(id);
  ASSERT_TRUE(directory_.DrainNode("b", true).ok());
  EXPECT_EQ(directory_.membership().CountDraining(), 1u);
}

}  // namespace
}  // namespace tensorcast::global_store::listings_test
