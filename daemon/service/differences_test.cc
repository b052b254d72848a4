// Puts with a base, and gets of what they stored, on one node: difference_maker and difference_paths.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/difference/difference_artifact.h"
#include "core/replica/transfer_report.h"
#include "daemon/service/versions_fixture.h"
#include "daemon/service/wrong_differences.h"

namespace tensorcast::daemon::differences_test {
namespace {

using enum LocationKind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DifferencesTest : public VersionsTest {
 protected:
  // In which all bytes differ.
  std::string WriteOther() {
    return Write("other", testing::MakeTestArtifact(2, {kMinChunkBytes, kMinChunkBytes, kMinChunkBytes}));
  }
  absl::StatusOr<v1::MaterializeReplicaResult> Get(const std::string& artifact_id, bool advance = false) {
    v1::MaterializeReplicaRequest request;
    request.set_artifact_id(artifact_id);
    request.set_advance(advance);
    return materializer->Materialize(context, request, nullptr);
  }
};

TEST_F(DifferencesTest, PutWithBase_PublishesBothInOneCall) {
  const auto base = PutVersion(WriteVersion(0), "none");
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_EQ(base->no_difference(), "");
  const auto next = PutVersion(WriteVersion(1), "auto");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->no_difference(), "");
  EXPECT_EQ(next->difference().base_id(), base->artifact_id());
  EXPECT_EQ(next->difference().target_id(), next->artifact_id());
  EXPECT_LT(next->difference().image_bytes() * 10, next->replica().image_bytes());
  EXPECT_THAT(store.published_differences, ElementsAre(next->difference().artifact_id()));
  ASSERT_THAT(store.published, SizeIs(2));
  const auto& [artifact_id, published] = store.published[1];
  EXPECT_EQ(artifact_id, next->artifact_id());
  EXPECT_EQ(published.key(), "policy");
  EXPECT_EQ(published.difference_replica().artifact_id(), next->difference().artifact_id());
  const auto manifest = engine->FindManifest(next->difference().artifact_id());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto ends = EndsOf(**manifest);
  ASSERT_TRUE(ends.ok()) << ends.status();
  EXPECT_EQ(ends->base, base->artifact_id());
  EXPECT_EQ(ends->target, next->artifact_id());
}

TEST_F(DifferencesTest, PutWithNoUsableBase_IsWholeAndSaysWhy) {
  const auto first = PutVersion(WriteVersion(0), "auto");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->no_difference(), "key policy is not bound yet");
  const auto same = PutVersion(WriteVersion(0), "auto");
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->no_difference(), "the new version is the base itself");
  const auto dense = PutVersion(WriteOther(), "auto");
  ASSERT_TRUE(dense.ok()) << dense.status();
  EXPECT_EQ(dense->no_difference(), "the difference is larger than half of the new version");
  const auto unbound = PutVersion(WriteVersion(2), "auto", /*required=*/false, /*key=*/"");
  ASSERT_TRUE(unbound.ok()) << unbound.status();
  EXPECT_THAT(unbound->no_difference(), HasSubstr("needs a key"));
  EvictAll(first->artifact_id());
  const auto evicted = PutVersion(WriteVersion(3), first->artifact_id());
  ASSERT_TRUE(evicted.ok()) << evicted.status();
  EXPECT_THAT(evicted->no_difference(), HasSubstr("is not in this node's host memory"));
  EXPECT_THAT(store.published_differences, IsEmpty());
}

TEST_F(DifferencesTest, BaseOnDisk_IsBroughtForPutWhereAnotherNodeHasIt) {
  const auto base = PutVersion(WriteVersion(0), "none", /*required=*/false, "policy", /*durable=*/true);
  ASSERT_TRUE(base.ok()) << base.status();
  const std::string& base_id = base->artifact_id();
  const auto manifest = engine->FindManifest(base_id);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  Evict(base_id, kCpu);
  const auto replica = [](const std::string& node, v1::LocationKind kind) {
    v1::Replica held;
    held.set_node_id(node);
    held.mutable_location()->set_kind(kind);
    return held;
  };
  store.With([&](FakeGlobalStore& it) {
    it.manifests[base_id] = (*manifest)->bytes();
    it.replicas = {replica("me", v1::LOCATION_KIND_DISK), replica("other", v1::LOCATION_KIND_DISK)};
  });
  const auto whole = PutVersion(WriteVersion(1), base_id);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(whole->no_difference(), HasSubstr("no other node has the base in memory"));
  store.With([&](FakeGlobalStore& it) { it.replicas.push_back(replica("another", v1::LOCATION_KIND_CPU)); });
  const auto next = PutVersion(WriteVersion(2), base_id);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->has_difference()) << next->no_difference();
  // It has other tensors than the base, which is not brought for it.
  Evict(base_id, kCpu);
  const auto other = PutVersion(Write("short", testing::MakeTestArtifact(3, {kMinChunkBytes})), base_id);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(engine->LeaseArtifact(base_id, {kCpu}).ok());
}

TEST_F(DifferencesTest, RecordsOfPut_GiveTheirMemoryBack) {
  const uint64_t before = pool->stats().used_bytes;
  const auto base = PutVersion(WriteVersion(0), "none");
  ASSERT_TRUE(base.ok()) << base.status();
  const auto next = PutVersion(WriteVersion(1), "auto");
  ASSERT_TRUE(next.ok() && next->has_difference()) << next.status();
  const auto dense = PutVersion(WriteOther(), "auto");
  ASSERT_TRUE(dense.ok()) << dense.status();
  for (const std::string& id :
       {base->artifact_id(), next->artifact_id(), next->difference().artifact_id(), dense->artifact_id()}) {
    EvictAll(id);
  }
  EXPECT_EQ(pool->stats().used_bytes, before);
}

TEST_F(DifferencesTest, PoolWithoutRoomForRecords_PutIsWhole) {
  const auto base = PutVersion(WriteVersion(0), "none");
  ASSERT_TRUE(base.ok()) << base.status();
  // The room that is left is that of the target.
  const PoolStats stats = pool->stats();
  const uint64_t others =
      stats.capacity_bytes - stats.used_bytes - pool->BytesFor(base->replica().image_bytes());
  const auto full = engine->AllocateScratch(context, "others", others);
  ASSERT_TRUE(full.ok()) << full.status();
  const auto next = PutVersion(WriteVersion(1), "auto");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->no_difference(), HasSubstr("could not be encoded: make room for"));
  const auto required = PutVersion(WriteVersion(2), next->artifact_id(), /*required=*/true);
  EXPECT_FALSE(required.ok());
}

TEST_F(DifferencesTest, BaseWithMalformedId_IsNotCalledAKey) {
  const auto put = PutVersion(WriteVersion(0), "tc2:aaaa");
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->no_difference(), "the base \"tc2:aaaa\" is not an artifact id");
  const auto required = PutVersion(WriteVersion(1), "tc2:aaaa", /*required=*/true);
  EXPECT_EQ(required.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DifferencesTest, OtherTensors_AreWholeAndNamed) {
  const auto base = PutVersion(WriteVersion(0), "none");
  ASSERT_TRUE(base.ok()) << base.status();
  const std::string path =
      Write("other", testing::MakeTestArtifact(2, {kMinChunkBytes, kMinChunkBytes - 256, kMinChunkBytes}));
  const auto put = PutVersion(path, base->artifact_id());
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_THAT(put->no_difference(), HasSubstr("tensor tensor.1 has another shape"));
}

TEST_F(DifferencesTest, RequiredDifference_FailsAndLeavesNothing) {
  const auto early = PutVersion(WriteVersion(0), "auto", /*required=*/true);
  EXPECT_EQ(early.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(early.status().message(),
              AllOf(HasSubstr("key policy is not bound yet"), HasSubstr("without requiring a difference")));
  ASSERT_TRUE(PutVersion(WriteVersion(0), "none").ok());
  const auto late = PutVersion(WriteOther(), "auto", /*required=*/true);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(store.published, SizeIs(1));
  EXPECT_THAT(engine->ListReplicas(), SizeIs(1));
}

TEST_F(DifferencesTest, RefusedPublication_LeavesNeitherReplica) {
  const auto base = PutVersion(WriteVersion(0), "none");
  ASSERT_TRUE(base.ok()) << base.status();
  store.With([](FakeGlobalStore& it) { it.down = absl::FailedPreconditionError("another revision"); });
  const auto put = PutVersion(WriteVersion(1), base->artifact_id());
  EXPECT_EQ(put.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(store.published_differences, SizeIs(1)) << "it was tried with its difference";
  EXPECT_THAT(engine->ListReplicas(), SizeIs(1));
}

TEST_F(DifferencesTest, GetOfNextVersion_IsRebuiltFromBase) {
  const auto base = PutVersion(WriteVersion(0), "none");
  ASSERT_TRUE(base.ok()) << base.status();
  const auto next = PutVersion(WriteVersion(1), "auto");
  ASSERT_TRUE(next.ok() && next->has_difference()) << next.status();
  const auto before = engine->FindManifest(next->artifact_id());
  ASSERT_TRUE(before.ok());
  store.With([&](FakeGlobalStore& it) {
    it.manifests[next->artifact_id()] = (*before)->bytes();
    it.differences[next->artifact_id()] = {next->difference()};
  });
  EvictAll(next->artifact_id());
  const auto got = Get(next->artifact_id());
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_THAT(got->transfer().sources(), SizeIs(1));
  EXPECT_EQ(got->transfer().sources(0).lane(), kDifferenceLane);
  EXPECT_EQ(got->transfer().sources(0).bytes(), got->replica().image_bytes());
  EXPECT_THAT(store.held_asked, ElementsAre(ElementsAre(base->artifact_id())));
}

TEST_F(DifferencesTest, GetThatAdvances_TakesTheMemoryOfTheBase) {
  const auto [base, next] = PutTwoAndKeepFirst();
  const uint64_t before = pool->stats().used_bytes;
  const auto got = Get(next, /*advance=*/true);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_THAT(got->transfer().sources(), SizeIs(2));
  EXPECT_EQ(got->transfer().sources(0).lane(), kAdvanceLane);
  EXPECT_EQ(got->transfer().sources(0).source(), base);
  EXPECT_EQ(got->transfer().sources(1).lane(), kDifferenceLane);
  EXPECT_EQ(got->transfer().sources(1).bytes(), got->replica().image_bytes());
  EXPECT_EQ(CountHere(base), 0u);
  EXPECT_EQ(pool->stats().used_bytes, before);
}

TEST_F(DifferencesTest, GetThatAdvancesOnGpu_TakesTheAllocationOfTheBase) {
  const auto [base, next] = PutTwoAndKeepFirst();
  v1::MaterializeReplicaRequest request;
  request.mutable_location()->set_kind(v1::LOCATION_KIND_GPU);
  request.set_artifact_id(base);
  ASSERT_TRUE(materializer->Materialize(context, request, nullptr).ok());
  Evict(base, LocationKind::kCpu);
  const uint64_t before = engine->device_pool_stats(0).used_bytes;
  request.set_artifact_id(next);
  request.set_advance(true);
  {
    const auto reader = engine->LeaseArtifact(base, {LocationKind::kGpu, 0});
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto refused = materializer->Materialize(context, request, nullptr);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr((*reader)->replica_id()));
  }
  const auto got = materializer->Materialize(context, request, nullptr);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_THAT(got->transfer().sources(), SizeIs(2));
  EXPECT_EQ(got->transfer().sources(0).lane(), kAdvanceLane);
  EXPECT_EQ(got->transfer().sources(0).source(), base);
  EXPECT_EQ(got->transfer().sources(1).lane(), kDifferenceLane);
  EXPECT_EQ(CountHere(base), 0u);
  EXPECT_EQ(engine->device_pool_stats(0).used_bytes, before);
}

// The differences tell which version to write over, and are not applied.
TEST_F(DifferencesTest, AdvanceOnGpuOfNodeWithTarget_CopiesTheTarget) {
  const auto [base, next] = PutTwoAndKeepFirst();
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(next);
  ASSERT_TRUE(materializer->Materialize(context, request, nullptr).ok()) << "in host memory";
  request.mutable_location()->set_kind(v1::LOCATION_KIND_GPU);
  request.set_artifact_id(base);
  ASSERT_TRUE(materializer->Materialize(context, request, nullptr).ok());
  request.set_artifact_id(next);
  request.set_advance(true);
  const auto got = materializer->Materialize(context, request, nullptr);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_THAT(got->transfer().sources(), SizeIs(2));
  EXPECT_EQ(got->transfer().sources(0).lane(), kAdvanceLane);
  EXPECT_EQ(got->transfer().sources(1).lane(), kMemoryLane);
  EXPECT_EQ(CountHere(base), 1u) << "in host memory";
  EXPECT_EQ(CountHere(next), 2u);
}

TEST_F(DifferencesTest, AdvanceOfBaseInUse_IsRefusedByName) {
  const auto [base, next] = PutTwoAndKeepFirst();
  const auto lease = engine->LeaseArtifact(base, {});
  ASSERT_TRUE(lease.ok()) << lease.status();
  const auto got = Get(next, /*advance=*/true);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(got.status().message()), HasSubstr((*lease)->replica_id()));
  EXPECT_EQ(CountHere(next), 0u);
}

TEST_F(DifferencesTest, TaskThatCannotAdvance_MakesVersionBesideBase) {
  const auto [base, next] = PutTwoAndKeepFirst();
  Materializer::Options options = MaterializerOptions();
  options.advance_tasks = true;
  const Materializer advancing(options);
  v1::ReplicationTask task;
  task.set_artifact_id(next);
  {
    const auto lease = engine->LeaseArtifact(base, {});
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(advancing.Fulfil(context, task, nullptr).ok());
  }
  EXPECT_EQ(CountHere(base), 1u);
  EXPECT_EQ(CountHere(next), 1u);
  EvictAll(next);
  EXPECT_TRUE(advancing.Fulfil(context, task, nullptr).ok());
  EXPECT_EQ(CountHere(base), 0u);
  EXPECT_EQ(CountHere(next), 1u);
}

// No source has the target here, so what was written over is seen by what is gone.
TEST_F(DifferencesTest, AdvanceWithoutPath_TakesIdleImageNotUsedForLongest) {
  const std::string older = PutVersion(WriteVersion(0), "none")->artifact_id();
  const std::string newer = PutVersion(WriteVersion(1), "none")->artifact_id();
  const std::string newest = PutVersion(WriteVersion(2), "none")->artifact_id();
  const std::string target = PutVersion(WriteVersion(3), "none")->artifact_id();
  const auto manifest = engine->FindManifest(target);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  store.With([&](FakeGlobalStore& it) { it.manifests[target] = (*manifest)->bytes(); });
  EvictAll(target);
  Materializer::Options options = MaterializerOptions();
  options.advance_tasks = true;
  v1::ReplicationTask task;
  task.set_artifact_id(target);
  EXPECT_FALSE(Materializer(options).Fulfil(context, task, nullptr).ok());
  EXPECT_EQ(CountHere(older), 1u) << "a task writes over no image that may be of another model";
  EXPECT_FALSE(Get(target, /*advance=*/true).ok());
  EXPECT_EQ(CountHere(older), 0u);
  EXPECT_EQ(CountHere(newer), 1u);
  EvictAll(target);
  const auto reader = engine->LeaseArtifact(newer, {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE(engine->LeaseArtifact(newest, {}).ok()) << "so it is not the one that was used first";
  EXPECT_FALSE(Get(target, /*advance=*/true).ok());
  EXPECT_EQ(CountHere(newer), 1u) << "it is read";
  EXPECT_EQ(CountHere(newest), 0u);
}

TEST_F(DifferencesTest, AdvanceOfPartLaneOrDisk_IsInvalid) {
  const auto [base, next] = PutTwoAndKeepFirst();
  const std::string& target = next;  // clang captures no structured binding
  const auto refused = [&](const std::function<void(v1::MaterializeReplicaRequest&)>& change) {
    v1::MaterializeReplicaRequest request;
    request.set_artifact_id(target);
    request.set_advance(true);
    change(request);
    return materializer->Materialize(context, request, nullptr).status().code();
  };
  EXPECT_EQ(refused([](auto& request) { request.add_tensors("tensor.1"); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& request) { request.set_lane("disk"); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused([](auto& request) { request.mutable_location()->set_kind(v1::LOCATION_KIND_DISK); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CountHere(base), 1u);
}

TEST_F(DifferencesTest, NodeWithNoVersion_DoesNotAskForDifferences) {
  store.With(
      [&](FakeGlobalStore& it) { it.manifests[artifact.manifest->id()] = artifact.manifest->bytes(); });
  EXPECT_FALSE(Get(artifact.manifest->id()).ok()) << "it has no source";
  EXPECT_THAT(store.held_asked, IsEmpty());
}

TEST(WrongDifferences, DifferenceAppliedAlone_IsReported) {
  std::vector<std::string> reported;
  WrongDifferences wrong([&](const std::string& difference) {
    reported.push_back(difference);
    return absl::UnavailableError("the store is away");
  });
  wrong.Note({"d1"});
  EXPECT_TRUE(wrong.Contains("d1"));
  wrong.Note({"d2", "d3"});
  EXPECT_TRUE(wrong.Contains("d2") && wrong.Contains("d3"));
  EXPECT_FALSE(wrong.Contains("d4"));
  EXPECT_THAT(reported, ElementsAre("d1")) << "of several it is not known which is wrong";
}

}  // namespace
}  // namespace tensorcast::daemon::differences_test
