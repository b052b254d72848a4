// Differences between versions over real sockets and a real database.
#include <gmock/gmock.h>

#include "base/testing/eventually.h"
#include "global_store/app/global_store_fixture.h"
#include "proto/differences.grpc.pb.h"

namespace tensorcast::global_store::differences_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DifferencesTest : public GlobalStoreServerTest {
 protected:
  // Large enough that a difference is smaller.
  static std::shared_ptr<const Manifest> Version(int number) {
    return SomeManifest(absl::StrCat(number), /*tensors=*/100);
  }
  static std::shared_ptr<const Manifest> Difference(const std::string& base, const std::string& target) {
    ImageLayout layout;
    for (const char* const name : {"index", "records"}) {
      layout.tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {16}, .nbytes = 16});
    }
    EXPECT_TRUE(AssignOffsets(layout).ok());
    auto manifest = Manifest::Create(layout, tensorcast::testing::NoDigests(layout),
                                     {{"base", base}, {"target", target}}, ArtifactKind::kDifference);
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    return *manifest;
  }
  static std::shared_ptr<const Manifest> Between(int base, int target) {
    return Difference(Version(base)->id(), Version(target)->id());
  }
  static std::string ReplicaOf(int number) { return absl::StrCat("r", number); }
  static std::string DifferenceReplicaOf(int number) { return absl::StrCat("d", number); }

  // As node a; the difference comes in a message of its own behind the target.
  absl::StatusOr<v1::PublishArtifactResponse> Put(int number, const Manifest* difference,
                                                  const std::string& key = "policy",
                                                  const RequestContext& context = Context()) {
    const auto manifest = Version(number);
    v1::PublishArtifactRequest first;
    *first.mutable_node() = Identity("a");
    *first.mutable_replica() = SomeReplica(ReplicaOf(number), manifest->id());
    first.set_key(key);
    first.set_manifest_piece(manifest->bytes());
    v1::PublishArtifactRequest second;
    if (difference != nullptr) {
      *first.mutable_difference_replica() = SomeReplica(DifferenceReplicaOf(number), difference->id());
      second.set_difference_piece(difference->bytes());
    }
    return rpc::CallClientStream(*stub_, &Stub::PublishArtifact, context, difference == nullptr ? 1 : 2,
                                 [&](size_t index) { return index == 0 ? first : second; });
  }
  // Versions 1 to `count`, each but the first with a difference from the one before.
  void PutVersions(int count) {
    for (int number = 1; number <= count; ++number) {
      const auto difference = number == 1 ? nullptr : Between(number - 1, number);
      const auto published = Put(number, difference.get());
      ASSERT_TRUE(published.ok()) << published.status();
    }
  }
  // Ids of the differences on the way, and how many replicas came with the answer.
  absl::StatusOr<std::vector<std::string>> Path(const std::vector<std::string>& held, int target,
                                                int* listed = nullptr) {
    v1::DescribeArtifactRequest request;
    request.set_artifact_id(Version(target)->id());
    request.mutable_held_artifacts()->Assign(held.begin(), held.end());
    std::vector<std::string> path;
    manifests_.clear();
    const absl::Status status = rpc::CallServerStream(
        *stub_, &Stub::DescribeArtifact, Context(), request, [&](v1::DescribeArtifactResponse&& message) {
          for (const v1::Difference& edge : message.differences()) path.push_back(edge.artifact_id());
          for (const std::string& bytes : message.difference_manifests()) {
            const absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(bytes);
            manifests_.push_back(manifest.ok() && (*manifest)->id() == path[manifests_.size()]);
          }
          if (listed != nullptr) *listed += message.artifact().replicas_size();
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return path;
  }
  absl::StatusOr<std::vector<std::string>> PathFrom(int base, int target) {
    return Path({Version(base)->id()}, target);
  }
  std::vector<bool> manifests_;  // of the last Path: whether each that came is that of its difference

  // All artifacts of kind difference, by a listing.
  std::vector<v1::Artifact> Listed(bool unkeyed_only = false) {
    v1::ListArtifactsRequest request;
    request.set_unkeyed_only(unkeyed_only);
    const auto listed = Call(&Stub::ListArtifacts, request);
    EXPECT_TRUE(listed.ok()) << listed.status();
    std::vector<v1::Artifact> differences;
    for (const v1::Artifact& artifact : listed->artifacts()) {
      if (artifact.kind() == 2) differences.push_back(artifact);
    }
    return differences;
  }
  absl::Status DeleteArtifact(const std::string& artifact_id) {
    v1::DeleteArtifactRequest request;
    request.set_artifact_id(artifact_id);
    return Call(&Stub::DeleteArtifact, request).status();
  }
  absl::StatusOr<v1::ReportWrongDifferenceResponse> ReportWrong(const std::string& node,
                                                                const std::string& artifact_id) {
    v1::ReportWrongDifferenceRequest request;
    *request.mutable_node() = Identity(node);
    request.set_artifact_id(artifact_id);
    const auto stub = v1::Differences::NewStub(rpc::MakeChannel(server_->address()));
    return rpc::CallUnary(*stub, &v1::Differences::Stub::ReportWrongDifference, Context(), request);
  }
  absl::StatusOr<v1::RequestEvictionResponse> Evict(const std::string& replica) {
    v1::RequestEvictionRequest request;
    *request.mutable_node() = Identity("a");
    request.set_replica_id(replica);
    return Call(&Stub::RequestEviction, request);
  }
  // What node a is told to forget, once it is anything.
  std::vector<std::string> AwaitForgotten() {
    std::vector<std::string> forgotten;
    EXPECT_TRUE(tensorcast::testing::Eventually([&] {
      const auto beat = Beat("a");
      EXPECT_TRUE(beat.ok()) << beat.status();
      if (beat.ok()) forgotten.assign(beat->forgotten_artifacts().begin(), beat->forgotten_artifacts().end());
      return !beat.ok() || !forgotten.empty();
    }));
    return forgotten;
  }
};

TEST_F(DifferencesTest, PublishedDifference_ComesWithTargetAndKey) {
  Register("a");
  PutVersions(2);
  const auto difference = Between(1, 2);
  EXPECT_EQ(Resolve("policy")->artifact_id(), Version(2)->id());
  const auto described = Describe(difference->id());
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->second, difference->bytes());
  EXPECT_EQ(described->first.kind(), 2u);
  EXPECT_FALSE(described->first.released());
  EXPECT_THAT(described->first.replicas(), SizeIs(1)) << "others can pull it at once";
  const auto target = Describe(Version(2)->id());
  ASSERT_THAT(target->first.differences(), SizeIs(1));
  const v1::Difference& edge = target->first.differences(0);
  EXPECT_EQ(edge.artifact_id(), difference->id());
  EXPECT_EQ(edge.base_id(), Version(1)->id());
  EXPECT_EQ(edge.target_id(), Version(2)->id());
  EXPECT_EQ(edge.image_bytes(), difference->layout().image_bytes);
}

TEST_F(DifferencesTest, RepeatedPublish_IsHarmless) {
  Register("a");
  PutVersions(1);
  const auto difference = Between(1, 2);
  RequestContext once = Context();
  once.request_id = "put-2";
  const auto first = Put(2, difference.get(), "policy", once);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto repeated = Put(2, difference.get(), "policy", once);
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  EXPECT_EQ(repeated->key_revision(), first->key_revision()) << "the answer that was recorded";
  const auto again = Put(2, difference.get());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->existed());
  EXPECT_THAT(Listed(), SizeIs(1));
  EXPECT_THAT(*PathFrom(1, 2), ElementsAre(difference->id()));
}

TEST_F(DifferencesTest, Restart_KnowsThePathsBetweenVersions) {
  Register("a");
  PutVersions(4);
  const std::vector<std::string> path = {Between(1, 2)->id(), Between(2, 3)->id(), Between(3, 4)->id()};
  EXPECT_EQ(*PathFrom(1, 4), path);
  Restart();
  EXPECT_THAT(*PathFrom(1, 4), IsEmpty()) << "no node has said that it has a difference";
  Register("a");
  v1::UpdateReplicasRequest request;
  *request.mutable_node() = Identity("a");
  request.set_sequence(1);
  for (int number = 2; number <= 4; ++number) {
    *request.add_replicas() = SomeReplica(DifferenceReplicaOf(number), Between(number - 1, number)->id());
  }
  ASSERT_TRUE(Call(&Stub::UpdateReplicas, request).ok());
  EXPECT_EQ(*PathFrom(1, 4), path);
  EXPECT_THAT(*Path({Version(1)->id(), Version(3)->id()}, 4), ElementsAre(path[2])) << "the fewest bytes";
}

TEST_F(DifferencesTest, QuestionForDifferences_IsAnsweredWithoutReplicas) {
  Register("a");
  PutVersions(2);
  int listed = 0;
  ASSERT_TRUE(Path({Version(1)->id()}, 2, &listed).ok());
  EXPECT_EQ(listed, 0);
  EXPECT_THAT(*Path({}, 2, &listed), IsEmpty());
  EXPECT_EQ(listed, 1);
  EXPECT_TRUE(absl::IsNotFound(PathFrom(1, 9).status()));
}

TEST_F(DifferencesTest, QuestionForDifferences_BringsTheirManifests) {
  Register("a");
  PutVersions(4);
  ASSERT_THAT(*PathFrom(1, 4), SizeIs(3));
  EXPECT_EQ(manifests_, std::vector<bool>({true, true, true}));
}

TEST_F(DifferencesTest, DifferenceBroughtUnderGrant_IsReadyWithoutReport) {
  Register("a");
  Register("b");
  PutVersions(2);
  const std::string difference = Between(1, 2)->id();
  const auto state_at_b = [&] {
    const auto described = Describe(difference);
    for (const v1::Replica& replica : described->first.replicas()) {
      if (replica.node_id() == "b" && replica.replica_id() == "its-own") return replica.state();
    }
    return v1::REPLICA_STATE_UNSPECIFIED;
  };
  v1::RequestReplicaTransportRequest request;
  *request.mutable_node() = Identity("b");
  request.set_artifact_id(difference);
  request.mutable_destination()->set_kind(v1::LOCATION_KIND_CPU);
  request.set_fills("its-own");
  const auto granted = Call(&Stub::RequestReplicaTransport, request);
  ASSERT_TRUE(granted.ok()) << granted.status();
  ASSERT_EQ(granted->grants_size(), 1);
  EXPECT_EQ(state_at_b(), v1::REPLICA_STATE_ALLOCATING) << "it has a single chunk";
  v1::CompleteReplicaTransportRequest complete;
  *complete.mutable_node() = Identity("b");
  complete.set_grant_id(granted->grants(0).grant_id());
  complete.set_outcome(v1::TRANSPORT_OUTCOME_SUCCEEDED);
  ASSERT_TRUE(Call(&Stub::CompleteReplicaTransport, complete).ok());
  EXPECT_EQ(state_at_b(), v1::REPLICA_STATE_READY);
  EXPECT_TRUE(Evict(DifferenceReplicaOf(2))->granted());
  EXPECT_THAT(*PathFrom(1, 2), ElementsAre(difference)) << "node b is its source";
}

TEST_F(DifferencesTest, DifferenceWithoutASource_IsNotOnAPath) {
  Register("a");
  PutVersions(2);
  const auto evicted = Evict(DifferenceReplicaOf(2));
  ASSERT_TRUE(evicted.ok()) << evicted.status();
  EXPECT_TRUE(evicted->granted()) << "a difference is never a last copy: " << evicted->reason();
  EXPECT_THAT(*PathFrom(1, 2), IsEmpty());
  EXPECT_FALSE(Evict(ReplicaOf(2))->granted()) << "its target is";
}

TEST_F(DifferencesTest, DifferenceOfUnknownBase_PublishesNothing) {
  Register("a");
  const auto difference = Between(1, 2);
  const auto published = Put(2, difference.get());
  EXPECT_TRUE(absl::IsFailedPrecondition(published.status())) << published.status();
  EXPECT_THAT(published.status().message(), HasSubstr("publish without the difference"));
  EXPECT_TRUE(absl::IsNotFound(Describe(Version(2)->id()).status()));
  EXPECT_TRUE(absl::IsNotFound(Resolve("policy").status()));
}

TEST_F(DifferencesTest, OtherArtifactAsDifference_IsRefused) {
  Register("a");
  PutVersions(2);
  const auto other = Between(1, 2);
  EXPECT_TRUE(absl::IsInvalidArgument(Put(3, other.get()).status())) << "it makes another version";
  const auto tensors = Version(4);
  EXPECT_TRUE(absl::IsInvalidArgument(Put(3, tensors.get()).status())) << "it is of tensors";
  v1::PublishArtifactRequest alone;
  *alone.mutable_node() = Identity("a");
  *alone.mutable_difference_replica() = SomeReplica("x", other->id());
  EXPECT_TRUE(absl::IsInvalidArgument(PublishBytes(Version(3)->bytes(), alone).status()))
      << "a replica of what is not published";
  EXPECT_TRUE(absl::IsNotFound(Describe(Version(3)->id()).status()));
}

TEST_F(DifferencesTest, DifferencesBeyondTheLastVersions_AreForgotten) {
  options_.retention.difference_versions = 3;
  options_.heartbeat_interval = absl::Milliseconds(100);  // the periodic task runs often
  Restart();
  Register("a");
  PutVersions(4);
  EXPECT_THAT(AwaitForgotten(), ElementsAre(Between(1, 2)->id()));
  EXPECT_THAT(Listed(), SizeIs(2));
  EXPECT_THAT(*PathFrom(2, 4), SizeIs(2));
  EXPECT_THAT(*PathFrom(1, 4), IsEmpty());
  const auto status = Call(&Stub::GetClusterStatus, v1::GetClusterStatusRequest());
  EXPECT_EQ(status->differences(), 2u);
  EXPECT_EQ(status->difference_bytes(), 2 * Between(1, 2)->layout().image_bytes);
  EXPECT_LE(status->artifacts(), 4u) << "differences are counted apart";
}

TEST_F(DifferencesTest, DeletedVersion_TakesItsDifferencesWithIt) {
  Register("a");
  PutVersions(3);
  ASSERT_TRUE(DeleteArtifact(Version(2)->id()).ok());
  EXPECT_THAT(Listed(), IsEmpty());
  std::vector<std::string> gone = {Version(2)->id(), Between(1, 2)->id(), Between(2, 3)->id()};
  EXPECT_THAT(AwaitForgotten(), ::testing::UnorderedElementsAreArray(gone));
  Restart();
  EXPECT_TRUE(absl::IsNotFound(Describe(Between(1, 2)->id()).status()));
}

TEST_F(DifferencesTest, DifferenceThatTwoNodesReport_IsDeleted) {
  for (const char* const node : {"a", "b", "c"}) Register(node);
  PutVersions(3);
  const std::string wrong = Between(1, 2)->id();
  for (int repeated = 0; repeated < 3; ++repeated) {
    const auto reported = ReportWrong("b", wrong);
    ASSERT_TRUE(reported.ok()) << reported.status();
    EXPECT_FALSE(reported->deleted()) << "one node alone may lie";
  }
  EXPECT_THAT(*PathFrom(1, 2), ElementsAre(wrong));
  const auto reported = ReportWrong("c", wrong);
  ASSERT_TRUE(reported.ok()) << reported.status();
  EXPECT_TRUE(reported->deleted());
  EXPECT_THAT(*PathFrom(1, 2), IsEmpty());
  EXPECT_THAT(*PathFrom(2, 3), SizeIs(1)) << "the others stay";
  EXPECT_THAT(AwaitForgotten(), ElementsAre(wrong));
  EXPECT_EQ(Resolve("policy")->artifact_id(), Version(3)->id());
  EXPECT_TRUE(absl::IsNotFound(ReportWrong("b", wrong).status()));
}

TEST_F(DifferencesTest, ReportOfOtherArtifact_DeletesNothing) {
  for (const char* const node : {"a", "b", "c"}) Register(node);
  PutVersions(2);
  for (const char* const node : {"b", "c"}) {
    EXPECT_TRUE(absl::IsNotFound(ReportWrong(node, Version(2)->id()).status()));
    EXPECT_FALSE(ReportWrong("stranger", Between(1, 2)->id()).ok());
  }
  EXPECT_TRUE(Describe(Version(2)->id()).ok());
  EXPECT_THAT(*PathFrom(1, 2), SizeIs(1));
}

TEST_F(DifferencesTest, ArtifactWithManyDifferences_IsDeleted) {
  Register("a");
  ASSERT_TRUE(Put(0, nullptr, "base").ok());
  for (int number = 1; number <= 150; ++number) {
    ASSERT_TRUE(Put(number, Between(0, number).get(), absl::StrCat("tuned", number)).ok());
  }
  EXPECT_EQ(Call(&Stub::GetClusterStatus, v1::GetClusterStatusRequest())->differences(), 150u);
  EXPECT_TRUE(absl::IsFailedPrecondition(DeleteArtifact(Version(0)->id()))) << "a key is bound to it";
  EXPECT_EQ(Call(&Stub::GetClusterStatus, v1::GetClusterStatusRequest())->differences(), 150u);
  v1::DeleteKeyRequest request;
  request.set_key("base");
  ASSERT_TRUE(Call(&Stub::DeleteKey, request).ok());
  ASSERT_TRUE(DeleteArtifact(Version(0)->id()).ok());
  const auto status = Call(&Stub::GetClusterStatus, v1::GetClusterStatusRequest());
  EXPECT_EQ(status->differences(), 0u);
  EXPECT_EQ(status->artifacts(), 150u);
}

TEST_F(DifferencesTest, Gc_IsToldOnlyOfDifferencesThatAreNotKept) {
  Register("a");
  PutVersions(3);
  EXPECT_THAT(Listed(), SizeIs(2));
  EXPECT_THAT(Listed(/*unkeyed_only=*/true), IsEmpty());
  v1::DeleteKeyRequest request;
  request.set_key("policy");
  ASSERT_TRUE(Call(&Stub::DeleteKey, request).ok());
  for (const v1::Artifact& artifact : Listed(/*unkeyed_only=*/true)) EXPECT_TRUE(artifact.released());
}

}  // namespace
}  // namespace tensorcast::global_store::differences_test
