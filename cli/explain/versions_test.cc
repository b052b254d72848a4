#include "cli/explain/versions.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

namespace tensorcast::explain::versions_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Key MakeKey() {
  v1::Key key;
  key.set_name("policy");
  key.set_artifact_id("c");
  key.set_revision(7);
  for (const auto& [artifact, revision] : {std::pair("b", 6), std::pair("a", 4)}) {
    v1::KeyVersion& version = *key.add_earlier();
    version.set_artifact_id(artifact);
    version.set_revision(static_cast<uint64_t>(revision));
  }
  return key;
}

v1::Artifact MakeArtifact(const std::string& id, const std::vector<std::string>& nodes,
                          const std::string& base = "") {
  v1::Artifact artifact;
  artifact.set_artifact_id(id);
  for (const std::string& node : nodes) {
    v1::Replica& replica = *artifact.add_replicas();
    replica.set_node_id(node);
    replica.set_state(v1::REPLICA_STATE_READY);
  }
  if (!base.empty()) {
    v1::Difference& difference = *artifact.add_differences();
    difference.set_artifact_id(absl::StrCat(base, "-", id));
    difference.set_base_id(base);
    difference.set_target_id(id);
    difference.set_image_bytes(3 << 20);
  }
  return artifact;
}

const std::map<std::string, std::string> kNames = {
    {"id-0", "node-0"}, {"id-1", "node-1"}, {"id-2", "node-2"}};

TEST(Versions, NodeWithSeveralVersions_CountsWithNewestOne) {
  const KeyVersions versions = VersionsOf(
      MakeKey(),
      {MakeArtifact("c", {"id-0"}), MakeArtifact("b", {"id-0", "id-1"}), MakeArtifact("a", {"id-1", "id-2"})},
      kNames);
  ASSERT_EQ(versions.nodes.size(), 3u);
  EXPECT_EQ(versions.nodes[0].node, "node-2") << "the one furthest behind comes first";
  EXPECT_EQ(versions.nodes[0].behind, 3u);
  EXPECT_EQ(versions.nodes[1].behind, 1u);
  EXPECT_EQ(versions.nodes[2].node, "node-0");
  EXPECT_EQ(versions.nodes[2].behind, 0u);
}

TEST(Versions, ReplicaThatFills_IsNotAVersionThatNodeHas) {
  v1::Artifact newest = MakeArtifact("c", {"id-0"});
  newest.mutable_replicas(0)->set_state(v1::REPLICA_STATE_FILLING);
  const KeyVersions versions = VersionsOf(MakeKey(), {newest, MakeArtifact("b", {"id-0"})}, kNames);
  ASSERT_EQ(versions.nodes.size(), 1u);
  EXPECT_EQ(versions.nodes[0].behind, 1u);
}

TEST(Versions, NodeThatIsNotRegistered_IsLeftOut) {
  EXPECT_THAT(VersionsOf(MakeKey(), {MakeArtifact("c", {"id-of-one-that-left"})}, kNames).nodes, IsEmpty());
}

TEST(Versions, Differences_AreNamedByTheRevisionsTheyAreBetween) {
  const KeyVersions versions = VersionsOf(
      MakeKey(), {MakeArtifact("c", {}, "b"), MakeArtifact("b", {}, "a"), MakeArtifact("a", {}, "gone")},
      kNames);
  std::vector<std::string> edges;
  for (const KeptDifference& difference : versions.differences) {
    edges.push_back(absl::StrCat(difference.base_revision, "-", difference.target_revision));
  }
  EXPECT_THAT(edges, ElementsAre("6-7", "4-6")) << "the base of the oldest is kept no more";
}

TEST(Versions, VersionsText_HasARowForEachNodeAndTheDifferences) {
  const KeyVersions versions =
      VersionsOf(MakeKey(), {MakeArtifact("c", {"id-0"}, "b"), MakeArtifact("b", {"id-1"})}, kNames);
  EXPECT_EQ(VersionsText({versions}, 10), R"(
versions of policy, now at revision 7
node    revision  behind
node-1         6       1
node-0         7       -
  stored differences: 6 -> 7 (3.00 MiB)
)");
  EXPECT_THAT(VersionsText({versions}, 1), HasSubstr("and 1 more nodes, which are not further behind"));
  EXPECT_EQ(VersionsText({}, 10), "");
}

}  // namespace
}  // namespace tensorcast::explain::versions_test
