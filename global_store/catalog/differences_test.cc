#include "global_store/catalog/differences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "global_store/catalog/catalog.h"

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Bases = std::set<std::string, std::less<>>;

bool Always(const DifferenceEdge&) { return true; }

std::vector<std::string> IdsOf(const std::vector<DifferenceEdge>& path) {
  std::vector<std::string> ids;
  for (const DifferenceEdge& edge : path) ids.push_back(edge.artifact_id);
  return ids;
}

uint64_t BytesOf(const std::vector<DifferenceEdge>& path) {
  uint64_t bytes = 0;
  for (const DifferenceEdge& edge : path) bytes += edge.image_bytes;
  return bytes;
}

class CheapestPathTest : public ::testing::Test {
 protected:
  // "ab" leads from a to b.
  void Add(const std::string& ends, uint64_t bytes) {
    differences_.Add({.artifact_id = ends,
                      .base_id = ends.substr(0, 1),
                      .target_id = ends.substr(1, 1),
                      .image_bytes = bytes});
  }
  std::vector<std::string> Path(const Bases& bases, std::string_view target, uint64_t max_bytes = 1000) {
    return IdsOf(CheapestPath(differences_, bases, target, max_bytes, Always));
  }
  Differences differences_;
};

TEST_F(CheapestPathTest, CheapestPath_IsInTheOrderOfApplication) {
  Add("ab", 10);
  Add("bc", 10);
  Add("cd", 10);
  EXPECT_THAT(Path({"a"}, "d"), ElementsAre("ab", "bc", "cd"));
  EXPECT_THAT(Path({"a", "c"}, "d"), ElementsAre("cd"));
  EXPECT_THAT(Path({"x"}, "d"), IsEmpty());
  EXPECT_THAT(Path({"d", "c"}, "d"), IsEmpty()) << "the target itself is there";
  EXPECT_THAT(Path({}, "d"), IsEmpty());
}

TEST_F(CheapestPathTest, CheapestPath_HasTheFewestBytes) {
  Add("ad", 50);
  Add("ab", 10);
  Add("bd", 30);
  Add("bc", 10);
  Add("cd", 10);
  EXPECT_THAT(Path({"a"}, "d"), ElementsAre("ab", "bc", "cd"));
  Add("ac", 20);
  EXPECT_THAT(Path({"a"}, "d"), ElementsAre("ac", "cd")) << "as many bytes by fewer edges";
}

TEST_F(CheapestPathTest, PathOfAsManyBytesAsTheImage_IsNone) {
  Add("ab", 10);
  Add("bc", 10);
  EXPECT_THAT(Path({"a"}, "c", 21), SizeIs(2));
  EXPECT_THAT(Path({"a"}, "c", 20), IsEmpty());
}

TEST_F(CheapestPathTest, CheapestPath_HasAtMostEightEdges) {
  for (char at = 'a'; at < 'k'; ++at) Add({at, static_cast<char>(at + 1)}, 1);
  EXPECT_THAT(Path({"a"}, "i"), SizeIs(kMaxPathEdges));
  EXPECT_THAT(Path({"a"}, "j"), IsEmpty());
  EXPECT_THAT(Path({"a", "c"}, "k"), SizeIs(8));
}

TEST_F(CheapestPathTest, EdgesThatAreNotUsable_AreLeftOut) {
  Add("ac", 50);
  Add("ab", 10);
  Add("bc", 10);
  const auto without_bc = [](const DifferenceEdge& edge) { return edge.artifact_id != "bc"; };
  EXPECT_THAT(IdsOf(CheapestPath(differences_, {"a"}, "c", 1000, without_bc)), ElementsAre("ac"));
}

TEST_F(CheapestPathTest, SumThatOverflows_IsNotCheap) {
  Add("ab", UINT64_MAX - 5);
  Add("bc", 10);
  EXPECT_THAT(Path({"a"}, "c", UINT64_MAX), IsEmpty());
}

// All paths of at most kMaxPathEdges edges, without a thought.
std::optional<uint64_t> MinBytes(const std::vector<DifferenceEdge>& edges, const Bases& bases,
                                 const std::string& target, size_t left = kMaxPathEdges) {
  if (bases.contains(target)) return 0;
  std::optional<uint64_t> min_bytes;
  if (left == 0) return min_bytes;
  for (const DifferenceEdge& edge : edges) {
    if (edge.target_id != target) continue;
    const std::optional<uint64_t> before = MinBytes(edges, bases, edge.base_id, left - 1);
    if (before.has_value()) min_bytes = std::min(min_bytes.value_or(UINT64_MAX), *before + edge.image_bytes);
  }
  return min_bytes;
}

TEST(CheapestPath, RandomGraphs_GiveTheBytesOfBruteForce) {
  std::mt19937_64 random(33);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  int found = 0;
  int longest = 0;
  for (int round = 0; round < 2000; ++round) {
    Differences differences;
    std::vector<DifferenceEdge> edges;
    const uint64_t ends = 3 + below(10);
    const uint64_t count = below(16);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t base = below(ends);
      const uint64_t target = (base + 1 + below(ends - 1)) % ends;
      edges.push_back({absl::StrCat("d", i), absl::StrCat(base), absl::StrCat(target), below(20)});
      differences.Add(edges.back());
    }
    // Some have no source.
    std::vector<DifferenceEdge> usable;
    std::set<std::string> names;
    for (const DifferenceEdge& edge : edges) {
      if (below(8) == 0) continue;
      usable.push_back(edge);
      names.insert(edge.artifact_id);
    }
    Bases bases;
    for (uint64_t i = below(3); i > 0; --i) bases.insert(absl::StrCat(below(ends)));
    const std::string target = absl::StrCat(below(ends));
    const uint64_t max_bytes = 1 + below(60);
    const std::vector<DifferenceEdge> path =
        CheapestPath(differences, bases, target, max_bytes,
                     [&](const DifferenceEdge& edge) { return names.contains(edge.artifact_id); });
    const std::optional<uint64_t> min_bytes = MinBytes(usable, bases, target);
    if (bases.contains(target) || !min_bytes.has_value() || *min_bytes >= max_bytes) {
      ASSERT_THAT(path, IsEmpty()) << round;
      continue;
    }
    ASSERT_FALSE(path.empty()) << round;
    ASSERT_EQ(BytesOf(path), *min_bytes) << round;
    ASSERT_LE(path.size(), kMaxPathEdges);
    EXPECT_TRUE(bases.contains(path.front().base_id));
    EXPECT_EQ(path.back().target_id, target);
    for (size_t i = 0; i + 1 < path.size(); ++i) EXPECT_EQ(path[i].target_id, path[i + 1].base_id);
    ++found;
    longest = std::max(longest, static_cast<int>(path.size()));
  }
  EXPECT_GT(found, 200);
  EXPECT_GT(longest, 3) << "the graphs have no long paths, and prove little";
}

// Differences among the versions of keys.
class KeptDifferencesTest : public ::testing::Test {
 protected:
  static constexpr absl::Time kNow = absl::UnixEpoch();

  static ArtifactRecord Difference(const std::string& base, const std::string& target) {
    return {.artifact_id = absl::StrCat(base, "-", target),
            .kind = ArtifactKind::kDifference,
            .image_bytes = 10,
            .base_id = base,
            .target_id = target};
  }
  void Apply(const DurableFacts& facts) {
    for (const ArtifactRecord& record : facts.artifacts) catalog_.Apply(record);
    for (const KeyRecord& record : facts.keys) catalog_.Apply(record);
  }
  // The artifact, made from `base` if there is one, under the key if there is one.
  absl::Status Put(const std::string& artifact, const std::string& base = "", const std::string& key = "k") {
    std::optional<BindRequest> bind;
    if (!key.empty()) bind = {.key = key, .artifact_id = artifact};
    std::optional<ArtifactRecord> difference;
    if (!base.empty()) difference = Difference(base, artifact);
    const auto plan =
        catalog_.PreparePublish({.artifact_id = artifact, .image_bytes = 100}, bind, kNow, difference);
    if (plan.ok()) Apply(plan->facts);
    return plan.status();
  }
  void PutVersions(int count) {
    for (int i = 1; i <= count; ++i) {
      ASSERT_TRUE(Put(absl::StrCat("v", i), i == 1 ? "" : absl::StrCat("v", i - 1)).ok());
    }
  }
  std::vector<std::string> Kept() const {
    std::vector<std::string> kept;
    for (const auto& [id, artifact] : catalog_.artifacts()) {
      if (artifact.kept_difference) kept.push_back(id);
    }
    EXPECT_EQ(catalog_.kept_differences(), kept.size());
    EXPECT_EQ(catalog_.kept_difference_bytes(), 10 * kept.size());
    return kept;
  }

  Catalog catalog_{Retention{.keep = 2, .difference_versions = 4}};
};

TEST_F(KeptDifferencesTest, Key_KeepsDifferencesBetweenItsLastVersions) {
  PutVersions(6);
  EXPECT_THAT(Kept(), ElementsAre("v3-v4", "v4-v5", "v5-v6"));
  EXPECT_TRUE(catalog_.IsReleased("v1-v2"));
  EXPECT_TRUE(catalog_.IsReleased("v3")) << "its image is kept no longer";
  ASSERT_TRUE(Put("v7", "v6").ok());
  EXPECT_THAT(Kept(), ElementsAre("v4-v5", "v5-v6", "v6-v7"));
}

TEST_F(KeptDifferencesTest, DifferenceOfAReleasedVersion_IsKeptWithoutThatVersion) {
  PutVersions(4);
  Apply({.artifacts = {Catalog::ReleaseOf("v2", kNow)}});
  EXPECT_THAT(Kept(), ElementsAre("v1-v2", "v2-v3", "v3-v4"));
  EXPECT_THAT(IdsOf(CheapestPath(catalog_.differences(), {"v1"}, "v4", 100, Always)),
              ElementsAre("v1-v2", "v2-v3", "v3-v4"));
}

TEST_F(KeptDifferencesTest, DeletedArtifact_TakesItsDifferencesWithIt) {
  PutVersions(4);
  Apply(*catalog_.PrepareDeleteArtifact("v3", kNow));
  EXPECT_THAT(Kept(), ElementsAre("v1-v2"));
  EXPECT_TRUE(catalog_.IsDeleted("v2-v3"));
  EXPECT_TRUE(catalog_.IsDeleted("v3-v4"));
}

TEST_F(KeptDifferencesTest, DeletedKey_ReleasesItsDifferences) {
  PutVersions(3);
  Apply(catalog_.PrepareDeleteKey("k", std::nullopt, kNow)->facts);
  EXPECT_THAT(Kept(), IsEmpty());
  EXPECT_TRUE(catalog_.IsReleased("v2-v3"));
  EXPECT_FALSE(catalog_.IsReleased("v3"));
}

TEST_F(KeptDifferencesTest, Rollback_KeepsDifferencesToTheVersionGoneBackTo) {
  PutVersions(3);
  Apply(catalog_.PrepareBindKey({.key = "k", .artifact_id = "v2"}, kNow)->facts);
  EXPECT_THAT(Kept(), ElementsAre("v1-v2", "v2-v3"));
  EXPECT_THAT(catalog_.ResolveKey("k")->past, ElementsAre("v1"));
}

TEST_F(KeptDifferencesTest, DifferenceBetweenKeys_IsKeptWhileBothHaveTheirVersion) {
  ASSERT_TRUE(Put("base", "", "other").ok());
  ASSERT_TRUE(Put("tuned", "base").ok());
  EXPECT_THAT(Kept(), ElementsAre("base-tuned"));
  for (const char* const next : {"o1", "o2", "o3", "o4"}) ASSERT_TRUE(Put(next, "", "other").ok());
  EXPECT_THAT(Kept(), IsEmpty());
}

TEST_F(KeptDifferencesTest, DifferenceOfArtifactsThatNoKeyNames_IsKeptWithThem) {
  ASSERT_TRUE(Put("a", "", "").ok());
  ASSERT_TRUE(Put("b", "a", "").ok());
  EXPECT_THAT(Kept(), ElementsAre("a-b"));
  Apply(*catalog_.PrepareDeleteArtifact("a", kNow));
  EXPECT_THAT(Kept(), IsEmpty());
}

TEST_F(KeptDifferencesTest, RepeatedPublish_ChangesNothing) {
  PutVersions(2);
  const auto again = catalog_.PreparePublish({.artifact_id = "v2", .image_bytes = 100}, std::nullopt, kNow,
                                             Difference("v1", "v2"));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->existed && again->difference_existed);
  EXPECT_TRUE(again->facts.artifacts.empty());
  EXPECT_THAT(Kept(), ElementsAre("v1-v2"));
}

TEST_F(KeptDifferencesTest, InvalidDifference_IsRefusedWithItsTarget) {
  ASSERT_TRUE(Put("v1").ok());
  const absl::Status no_base = Put("v2", "gone");
  EXPECT_TRUE(absl::IsFailedPrecondition(no_base)) << no_base;
  EXPECT_THAT(no_base.message(), HasSubstr("publish without the difference"));
  const auto publish = [&](const ArtifactRecord& difference) {
    return catalog_.PreparePublish({.artifact_id = "v2"}, std::nullopt, kNow, difference).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(publish(Difference("v1", "v3"))));
  ArtifactRecord tensors = Difference("v1", "v2");
  tensors.kind = ArtifactKind::kTensors;
  EXPECT_TRUE(absl::IsInvalidArgument(publish(tensors)));
  ASSERT_TRUE(Put("v1b", "v1").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(publish(Difference("v1-v1b", "v2")))) << "the base is a difference";
  EXPECT_EQ(catalog_.Find("v2"), nullptr);
}

TEST_F(KeptDifferencesTest, DifferencePublishedAlone_IsBetweenTensors) {
  const auto publish = [&](const ArtifactRecord& difference) {
    return catalog_.PreparePublish(difference, std::nullopt, kNow).status();
  };
  EXPECT_TRUE(publish(Difference("unknown", "v2")).ok()) << "its ends may be published later";
  PutVersions(2);
  EXPECT_TRUE(publish(Difference("v1", "v2")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(publish(Difference("v1", "v1-v2")))) << "its target is a difference";
  EXPECT_TRUE(absl::IsInvalidArgument(publish(Difference("v1-v2", "v1")))) << "its base is a difference";
  EXPECT_TRUE(absl::IsInvalidArgument(publish(Difference("v1", "v1")))) << "it has one end";
}

TEST_F(KeptDifferencesTest, PopularBase_LosesItsDifferencesInParts) {
  ASSERT_TRUE(Put("base", "", "").ok());
  for (int i = 0; i < 1500; ++i) ASSERT_TRUE(Put(absl::StrCat("tuned", i), "base", "").ok());
  size_t deleted = 0;
  while (true) {
    const auto part = catalog_.PrepareDeleteManyDifferences("base", kNow);
    ASSERT_TRUE(part.ok()) << part.status();
    if (part->empty()) break;
    EXPECT_LE(part->artifacts.size(), 100u);
    deleted += part->artifacts.size();
    Apply(*part);
    ASSERT_NE(catalog_.Find("base"), nullptr) << "it goes last";
  }
  const auto last = catalog_.PrepareDeleteArtifact("base", kNow);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_LE(last->artifacts.size(), 101u);
  EXPECT_EQ(deleted + last->artifacts.size(), 1501u);
  Apply(*last);
  EXPECT_THAT(Kept(), IsEmpty());
}

TEST_F(KeptDifferencesTest, BoundBase_KeepsItsDifferences) {
  ASSERT_TRUE(Put("base").ok());
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Put(absl::StrCat("tuned", i), "base", "").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(catalog_.PrepareDeleteManyDifferences("base", kNow).status()));
}

TEST_F(KeptDifferencesTest, DifferenceOfWrongBytes_GoesAlone) {
  PutVersions(3);
  Apply(*catalog_.PrepareDeleteDifference("v1-v2", kNow));
  EXPECT_THAT(Kept(), ElementsAre("v2-v3"));
  EXPECT_NE(catalog_.Find("v2"), nullptr);
  EXPECT_TRUE(absl::IsNotFound(catalog_.PrepareDeleteDifference("v1-v2", kNow).status()));
  EXPECT_TRUE(absl::IsNotFound(catalog_.PrepareDeleteDifference("v2", kNow).status())) << "it is a version";
}

TEST_F(KeptDifferencesTest, BindingADifference_IsRefused) {
  PutVersions(2);
  EXPECT_TRUE(
      absl::IsInvalidArgument(catalog_.PrepareBindKey({.key = "x", .artifact_id = "v1-v2"}, kNow).status()));
}

TEST_F(KeptDifferencesTest, LoadedFacts_KeepTheSameDifferences) {
  PutVersions(6);
  DurableFacts stored;
  for (const auto& [id, artifact] : catalog_.artifacts()) stored.artifacts.push_back(artifact.record);
  stored.keys = catalog_.ListKeys("", "", 10);
  Catalog next{Retention{.keep = 2, .difference_versions = 4}};
  for (const ArtifactRecord& record : stored.artifacts) next.Apply(record);
  for (const KeyRecord& record : stored.keys) next.Apply(record);
  EXPECT_EQ(next.kept_differences(), 3u);
  EXPECT_EQ(next.released(), catalog_.released());
  // What is kept no longer by the configuration stays an end of differences.
  Catalog smaller{Retention{.keep = 1, .difference_versions = 4}};
  for (const ArtifactRecord& record : stored.artifacts) smaller.Apply(record);
  for (const KeyRecord& record : stored.keys) smaller.Apply(record);
  EXPECT_THAT(smaller.ResolveKey("k")->earlier, IsEmpty());
  EXPECT_THAT(smaller.ResolveKey("k")->past, ElementsAre("v5", "v4", "v3"));
  EXPECT_EQ(smaller.kept_differences(), 3u);
  smaller.Apply(Catalog::ReleaseOf("v5", kNow));
  Catalog restarted{Retention{.keep = 1, .difference_versions = 4}};
  for (const ArtifactRecord& record : stored.artifacts) {
    if (record.artifact_id != "v5") restarted.Apply(record);
  }
  for (const KeyRecord& record : stored.keys) restarted.Apply(record);
  EXPECT_EQ(restarted.kept_differences(), 3u) << "the version went, and its differences stay";
  // A configuration with fewer applies at once.
  Catalog fewer{Retention{.keep = 2, .difference_versions = 2}};
  for (const ArtifactRecord& record : stored.artifacts) fewer.Apply(record);
  for (const KeyRecord& record : stored.keys) fewer.Apply(record);
  EXPECT_EQ(fewer.kept_differences(), 1u);
}

}  // namespace
}  // namespace tensorcast::global_store
