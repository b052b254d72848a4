#include "daemon/service/materialize.h"

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/eventually.h"
#include "core/artifact/tensor_selection.h"
#include "core/handles/handle_client.h"
#include "daemon/service/service_fixture.h"

namespace tensorcast::daemon::materialize_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class MaterializeTest : public ServiceTest {
 protected:
  absl::StatusOr<v1::MaterializeReplicaResult> Materialize(const v1::MaterializeReplicaRequest& request) {
    return materializer->Materialize(context, request, nullptr);
  }
  v1::MaterializeReplicaRequest ById() const {
    v1::MaterializeReplicaRequest request;
    request.set_artifact_id(artifact.manifest->id());
    return request;
  }
  static v1::MaterializeReplicaRequest ByKey(const std::string& key) {
    v1::MaterializeReplicaRequest request;
    request.set_key(key);
    return request;
  }
};

TEST_F(MaterializeTest, PresentReplica_IsReturnedWithoutTransfer) {
  const std::string replica_id = MakeReplica();
  const auto result = Materialize(ById());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->already_present());
  EXPECT_FALSE(result->has_transfer());
  EXPECT_EQ(result->replica().replica_id(), replica_id);
  EXPECT_EQ(result->replica().node_id(), "me");
  EXPECT_EQ(result->ticket(), "") << "the request wanted none";
  EXPECT_THAT(store.asked, SizeIs(0)) << "no other node was asked for it";
}

// Two rebinds between resolving the key and bringing its artifact: that one is gone by then.
TEST_F(MaterializeTest, KeyThatMovedMeanwhile_IsResolvedAgain) {
  MakeReplica();
  Bind("model", "tc2:gone", 7);
  store.With([&](FakeGlobalStore& it) {
    it.on_manifest_asked = [&it, id = artifact.manifest->id()] {
      it.keys["model"].set_artifact_id(id);
      it.keys["model"].set_revision(9);
    };
  });
  const auto result = Materialize(ByKey("model"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->artifact_id(), artifact.manifest->id());
  EXPECT_EQ(result->key_revision(), 9);
}

TEST_F(MaterializeTest, ManifestOfKey_ComesByTheCallThatResolvesIt) {
  const std::string& id = artifact.manifest->id();
  Bind("model", id, 7);
  bool asked_again = false;
  store.With([&](FakeGlobalStore& it) {
    it.manifests[id] = artifact.manifest->bytes();
    it.on_manifest_asked = [&asked_again] { asked_again = true; };
  });
  std::shared_ptr<const Manifest> manifest;
  EXPECT_FALSE(materializer->Materialize(context, ByKey("model"), nullptr, &manifest).ok()) << "no source";
  ASSERT_NE(manifest, nullptr);
  EXPECT_EQ(manifest->id(), id);
  EXPECT_FALSE(asked_again);
}

TEST_F(MaterializeTest, KeyThatStaysOnAMissingArtifact_IsNotFound) {
  Bind("model", "tc2:gone", 7);
  EXPECT_EQ(Materialize(ByKey("model")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MaterializeTest, ReplicaAtOtherLocation_IsCopiedWithoutGlobalStore) {
  MakeReplica();
  store.down = absl::UnavailableError("away");
  v1::MaterializeReplicaRequest request = ById();
  request.mutable_location()->set_kind(v1::LOCATION_KIND_GPU);
  const auto result = Materialize(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->already_present());
  EXPECT_EQ(result->transfer().bytes(), artifact.image.size());
  EXPECT_EQ(result->replica().location().device_uuid(), devices->devices()[0].uuid);
}

TEST_F(MaterializeTest, RequestToPin_PinsTheReplicaThatItFindsOrMakes) {
  MakeReplica();
  v1::MaterializeReplicaRequest request = ById();
  for (const v1::LocationKind kind : {v1::LOCATION_KIND_CPU, v1::LOCATION_KIND_GPU}) {
    request.mutable_location()->set_kind(kind);
    request.set_pin(false);
    const auto before = Materialize(request);
    ASSERT_TRUE(before.ok()) << before.status();
    EXPECT_FALSE(before->replica().pinned());
    request.set_pin(true);
    const auto result = Materialize(request);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->replica().pinned());
    EXPECT_EQ(engine->Evict(result->replica().replica_id(), /*force=*/false).code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(MaterializeTest, RequestToAttach_GetsATicket) {
  MakeReplica();
  v1::MaterializeReplicaRequest request = ById();
  request.set_attach(true);
  const auto result = Materialize(request);
  ASSERT_TRUE(result.ok()) << result.status();
  auto claim = ClaimedReplica::Claim(handles->path(), result->ticket(), context.deadline);
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ((*claim)->handles().artifact_id, artifact.manifest->id());
}

TEST_F(MaterializeTest, Key_IsResolvedAndMarkedUnconfirmedWhenStoreIsAway) {
  MakeReplica();
  Bind("model", artifact.manifest->id(), 7);
  const auto result = Materialize(ByKey("model"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->artifact_id(), artifact.manifest->id());
  EXPECT_EQ(result->key_revision(), 7);
  EXPECT_FALSE(result->key_unconfirmed());
  store.With([](FakeGlobalStore& it) { it.down = absl::UnavailableError("away"); });
  const auto marked = Materialize(ByKey("model"));
  ASSERT_TRUE(marked.ok()) << marked.status();
  EXPECT_TRUE(marked->key_unconfirmed());
}

TEST_F(MaterializeTest, ConfirmedGet_FailsWhileTheGlobalStoreIsAway) {
  MakeReplica();
  Bind("model", artifact.manifest->id(), 7);
  v1::MaterializeReplicaRequest request = ByKey("model");
  request.set_confirmed(true);
  ASSERT_TRUE(Materialize(request).ok());
  store.With([](FakeGlobalStore& it) { it.down = absl::UnavailableError("away"); });
  const absl::Status refused = Materialize(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("a confirmed answer, and away"));
  // An id means what it means without the global store.
  request.set_artifact_id(artifact.manifest->id());
  EXPECT_TRUE(Materialize(request).ok());
}

TEST_F(MaterializeTest, ManifestWithOtherId_IsDataLoss) {
  const testing::TestArtifact another = testing::MakeChunkedArtifact(2, 3, 64 << 10);
  store.manifests[artifact.manifest->id()] = std::string(another.manifest->bytes());
  EXPECT_EQ(Materialize(ById()).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(MaterializeTest, ArtifactWithoutReplicas_IsNotFoundAndSaysWhy) {
  EXPECT_EQ(Materialize(ById()).status().code(), absl::StatusCode::kNotFound) << "it is not published";
  store.With([&](FakeGlobalStore& it) {
    it.manifests[artifact.manifest->id()] = std::string(artifact.manifest->bytes());
    v1::RequestReplicaTransportResponse nothing;
    nothing.set_no_source_reason("its last replica is gone");
    it.offers = {nothing};
  });
  const absl::Status without = Materialize(ById()).status();
  EXPECT_EQ(without.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(without.message(), HasSubstr("its last replica is gone"));
}

TEST_F(MaterializeTest, MissingArtifactWhenStoreIsAway_ErrorNamesTheKey) {
  Bind("model", artifact.manifest->id(), 7);
  ASSERT_TRUE(known_keys->Resolve(context, "model").ok());
  store.With([](FakeGlobalStore& it) { it.down = absl::UnavailableError("away"); });
  const absl::Status away = Materialize(ByKey("model")).status();
  EXPECT_EQ(away.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(away.message(), HasSubstr("which key model meant when it was last known"));
}

TEST_F(MaterializeTest, InvalidMaterializeRequest_IsRefused) {
  EXPECT_EQ(Materialize(ByKey("")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Materialize(ByKey("unbound")).status().code(), absl::StatusCode::kNotFound);
  v1::MaterializeReplicaRequest nonsense;
  nonsense.set_artifact_id("no id");
  EXPECT_EQ(Materialize(nonsense).status().code(), absl::StatusCode::kInvalidArgument);
  v1::MaterializeReplicaRequest by_pigeon = ById();
  by_pigeon.set_lane("carrier-pigeon");
  const absl::Status no_lane = Materialize(by_pigeon).status();
  EXPECT_EQ(no_lane.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(no_lane.message(), HasSubstr("choose one of local, disk"));
  v1::MaterializeReplicaRequest on_no_gpu = ById();
  on_no_gpu.mutable_location()->set_kind(v1::LOCATION_KIND_GPU);
  on_no_gpu.mutable_location()->set_device(7);
  EXPECT_EQ(Materialize(on_no_gpu).status().code(), absl::StatusCode::kInvalidArgument);
  MakeReplica();
  node.Drain();
  EXPECT_EQ(Materialize(ById()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(MaterializeTest, ChosenTensors_NeedMatchingPatternAndHostMemory) {
  MakeReplica();
  v1::MaterializeReplicaRequest request = ById();
  request.add_tensors("no such tensor*");
  const absl::Status nothing = Materialize(request).status();
  EXPECT_EQ(nothing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(nothing.message(), HasSubstr("\"no such tensor*\""));
  request.set_tensors(0, std::string(kMaxTensorPatternBytes + 1, '*'));
  EXPECT_EQ(Materialize(request).status().code(), absl::StatusCode::kInvalidArgument);
  request.set_tensors(0, artifact.layout.tensors.front().name);
  request.mutable_location()->set_kind(v1::LOCATION_KIND_GPU);
  const absl::Status on_gpu = Materialize(request).status();
  EXPECT_EQ(on_gpu.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(on_gpu.message(), HasSubstr("gpu:0 holds only whole artifacts"));
  request.set_tensors(0, "*");  // which is all of it
  EXPECT_TRUE(Materialize(request).ok());
}

// A whole ingest under way, which some gets of a part join.
class JoinedPartTest : public MaterializeTest {
 protected:
  void SetUp() override {
    MaterializeTest::SetUp();
    // Chunk 0 comes at once, chunk 1 when it is let go, chunk 2 never.
    first_->Add(0);
    second_->Add(1);
    const auto source = [this](std::shared_ptr<Availability> has, bool held) {
      return testing::MakeControl(artifact.image, {.held = held, .availability = std::move(has)});
    };
    held_ = source(second_, true);
    auto pending =
        engine->Ingest(context, {.manifest = artifact.manifest,
                                 .location = {},
                                 .sources = std::make_shared<testing::ScriptedProvider>(
                                     std::vector<testing::SourceBatch>{{{source(first_, false), held_}}})});
    ASSERT_TRUE(pending.ok()) << pending.status();
    whole_ = *std::move(pending);
    held_->WaitForHeldFetches(1);
  }

  // Returns when it has joined the whole ingest.
  std::future<absl::StatusOr<v1::MaterializeReplicaResult>> JoinFor(std::vector<int> tensors) {
    v1::MaterializeReplicaRequest request = ById();
    for (const int index : tensors) request.add_tensors(artifact.layout.tensors[index].name);
    std::promise<void> joined;
    auto told = joined.get_future();
    auto got = std::async(std::launch::async, [this, request, joined = std::move(joined)]() mutable {
      bool is_told = false;
      const auto tell = [&] {
        if (!std::exchange(is_told, true)) joined.set_value();
      };
      auto result = materializer->Materialize(context, request, [&](const TransferProgress&) { tell(); });
      tell();
      return result;
    });
    told.wait();
    return got;
  }
  void AwaitChunks(uint32_t count) {
    EXPECT_TRUE(testing::Eventually([&] { return engine->ListReplicas().front().chunks_present == count; }));
  }
  void FailWhole() {
    first_->End(absl::UnavailableError("the source died"));
    second_->End(absl::UnavailableError("the source died"));
    EXPECT_FALSE(whole_->Wait(context).ok());
  }

  const std::shared_ptr<Availability> first_ =
      std::make_shared<Availability>(artifact.layout.image_bytes, artifact.layout.chunk_bytes);
  const std::shared_ptr<Availability> second_ =
      std::make_shared<Availability>(artifact.layout.image_bytes, artifact.layout.chunk_bytes);
  std::shared_ptr<testing::SourceControl> held_;
  std::unique_ptr<PendingReplica> whole_;
};

TEST_F(JoinedPartTest, JoinedPartialRequest_GetsItsChunksThoughWholeFails) {
  auto part = JoinFor({0, 1});
  held_->Release();
  AwaitChunks(2);
  FailWhole();
  const auto got = part.get();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->replica().state(), v1::REPLICA_STATE_PARTIAL);
  EXPECT_THAT(store.asked, SizeIs(0)) << "nothing more is needed";
}

TEST_F(JoinedPartTest, JoinedPartialRequest_StartsOneOwnIngestWhenWholeFails) {
  v1::RequestReplicaTransportResponse nothing;
  nothing.set_no_source_reason("its last replica is gone");
  store.With([&](FakeGlobalStore& it) { it.offers = {nothing, nothing, nothing}; });
  auto part = JoinFor({0, 1});
  FailWhole();
  const absl::Status failed = part.get().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(failed.message(), HasSubstr("its last replica is gone"));
  EXPECT_THAT(store.asked, SizeIs(1));
}

class AttachTest : public MaterializeTest {
 protected:
  absl::StatusOr<v1::AttachReplicaResponse> Attach(const v1::AttachReplicaRequest& request) {
    return materializer->Attach(context, request);
  }
};

TEST_F(AttachTest, Attach_FindsReplicaByIdArtifactOrKey) {
  const std::string replica_id = MakeReplica();
  Bind("model", artifact.manifest->id(), 7);
  v1::AttachReplicaRequest by_replica, by_artifact, by_key;
  by_replica.set_replica_id(replica_id);
  by_artifact.set_artifact_id(artifact.manifest->id());
  by_key.set_key("model");
  for (const v1::AttachReplicaRequest& request : {by_replica, by_artifact, by_key}) {
    const auto response = Attach(request);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->replica().replica_id(), replica_id);
    EXPECT_EQ(response->handle_socket(), handles->path());
    EXPECT_TRUE(ClaimedReplica::Claim(response->handle_socket(), response->ticket(), context.deadline).ok());
  }
}

TEST_F(AttachTest, Attach_RefusesUnconfirmedKey) {
  MakeReplica();
  Bind("model", artifact.manifest->id(), 7);
  ASSERT_TRUE(known_keys->Resolve(context, "model").ok());
  store.With([](FakeGlobalStore& it) { it.down = absl::UnavailableError("away"); });
  v1::AttachReplicaRequest request;
  request.set_key("model");
  const absl::Status refused = Attach(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr(artifact.manifest->id()));
  request.set_confirmed(true);
  const absl::Status unconfirmed = Attach(request).status();
  EXPECT_EQ(unconfirmed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(unconfirmed.message(), HasSubstr("only a confirmed answer"));
}

TEST_F(AttachTest, AttachByDaemon_NeedsGrantForReplicaOnLocalLane) {
  const std::string replica_id = MakeReplica();
  v1::AttachReplicaRequest request;
  request.set_replica_id(replica_id);
  request.set_grant_id("grant");
  rpc::GrantClaims claims{.grant_id = "grant",
                          .replica_id = replica_id,
                          .artifact_id = artifact.manifest->id(),
                          .receiver_node_id = "receiver",
                          .lane = "ucx",
                          .expires = absl::Minutes(1),
                          .receiver_name = "receiver"};
  request.set_grant_token(rpc::SignGrant(std::string(32, 'x'), claims));
  EXPECT_EQ(Attach(request).status().code(), absl::StatusCode::kPermissionDenied) << "not the store's";
  request.set_grant_token(rpc::SignGrant(kGrantKey, claims));
  EXPECT_EQ(Attach(request).status().code(), absl::StatusCode::kPermissionDenied) << "a grant to pull";
  claims.lane = "local";
  request.set_grant_token(rpc::SignGrant(kGrantKey, claims));
  EXPECT_EQ(materializer->Attach(context, request, "another").status().code(),
            absl::StatusCode::kPermissionDenied)
      << "by its certificate not the receiver";
  const auto response = Attach(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(handles->counts().tickets[0], 1) << "for host memory";
  // A caller with a daemon's certificate does not attach as a client.
  v1::AttachReplicaRequest without;
  without.set_replica_id(replica_id);
  EXPECT_EQ(materializer->Attach(context, without, "receiver").status().code(),
            absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace tensorcast::daemon::materialize_test
