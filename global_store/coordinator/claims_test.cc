#include "global_store/coordinator/claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tensorcast::global_store::claims_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ClaimedNames Bind(const std::string& key, const std::string& artifact) {
  return NamesOf({.keys = {{.name = key, .artifact_id = artifact}}}, {});
}
ClaimedNames Delete(const std::string& artifact) {
  return NamesOf({.artifacts = {{.artifact_id = artifact, .deleted = true}}}, {});
}

TEST(Claims, NamesOf_ClaimsWrittenAndReferencedNames) {
  const ClaimedNames bind = Bind("k", "a");
  EXPECT_THAT(bind.writes, ElementsAre("key k"));
  EXPECT_THAT(bind.reads, ElementsAre("artifact a"));
  // A publication writes the artifact that its key refers to.
  const ClaimedNames publish =
      NamesOf({.artifacts = {{.artifact_id = "a"}}, .keys = {{.name = "k", .artifact_id = "a"}}}, {"a"});
  EXPECT_THAT(publish.writes, ElementsAre("artifact a", "key k"));
  EXPECT_THAT(publish.reads, IsEmpty());
  // One that changes no fact is about an artifact all the same.
  EXPECT_THAT(NamesOf({}, {"a"}).reads, ElementsAre("artifact a"));
  const ClaimedNames task = NamesOf({.tasks = {{.artifact_id = "a", .node_id = "n"}}}, {});
  EXPECT_EQ(task.writes.size(), 1u);
  EXPECT_THAT(task.reads, ElementsAre("artifact a", "node n"));
  EXPECT_THAT(NamesOf({.nodes = {{.node_id = "n", .name = "x"}}}, {}).writes,
              ElementsAre("name x", "node n"));
}

TEST(Claims, DeletedKey_ClaimsItsArtifactAlone) {
  const ClaimedNames unbind = NamesOf({.keys = {{.name = "k", .artifact_id = "a", .deleted = true}}}, {});
  EXPECT_THAT(unbind.writes, ElementsAre("artifact a", "key k"));
  EXPECT_THAT(unbind.reads, IsEmpty());
}

TEST(Claims, NewDifference_ClaimsWhatItIsBetween) {
  const ClaimedNames publish = NamesOf(
      {.artifacts = {{.artifact_id = "a"}, {.artifact_id = "d", .base_id = "b", .target_id = "a"}}}, {"a"});
  EXPECT_THAT(publish.writes, ElementsAre("artifact a", "artifact d"));
  EXPECT_THAT(publish.reads, ElementsAre("artifact b"));
  Claims claims;
  claims.Take(publish);
  EXPECT_FALSE(claims.AreFree(Delete("b"))) << "the difference would lie between what is gone";
}

TEST(Claims, Claims_AllowManyReadersOrOneWriterOfName) {
  Claims claims;
  claims.Take(Bind("k1", "a"));
  EXPECT_FALSE(claims.AreFree(Bind("k1", "b"))) << "two writers";
  EXPECT_FALSE(claims.AreFree(Delete("a"))) << "a writer beside a reader";
  ASSERT_TRUE(claims.AreFree(Bind("k2", "a"))) << "two readers";
  claims.Take(Bind("k2", "a"));
  claims.Release(Bind("k1", "a"));
  EXPECT_FALSE(claims.AreFree(Delete("a"))) << "one still reads";
  claims.Release(Bind("k2", "a"));
  EXPECT_TRUE(claims.empty());
  claims.Take(Delete("a"));
  EXPECT_FALSE(claims.AreFree(Bind("k1", "a"))) << "a reader beside a writer";
  EXPECT_TRUE(claims.AreFree(Bind("k1", "b")));
  claims.Release(Delete("a"));
  EXPECT_TRUE(claims.empty());
}

}  // namespace
}  // namespace tensorcast::global_store::claims_test
