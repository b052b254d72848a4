// Artifacts, restarts and the server itself, over real sockets.
#include "global_store/app/global_store_server.h"

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <gmock/gmock.h>

#include "global_store/app/global_store_fixture.h"

namespace tensorcast::global_store::global_store_server_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(GlobalStoreServerTest, PublishedArtifact_IsDescribedWithKeyAndManifest) {
  Register("a");
  const auto manifest = SomeManifest("1");
  auto published = Publish(*manifest, "a", "r", "model/prod");
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(published->artifact_id(), manifest->id());
  EXPECT_FALSE(published->existed());
  EXPECT_EQ(published->key_revision(), 1u);

  auto described = Describe(manifest->id());
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->second, manifest->bytes());
  EXPECT_THAT(described->first.keys(), ElementsAre("model/prod"));
  EXPECT_EQ(described->first.tensor_count(), 1u);
  EXPECT_EQ(described->first.image_bytes(), manifest->layout().image_bytes);
  ASSERT_THAT(described->first.replicas(), SizeIs(1));
  EXPECT_EQ(described->first.replicas(0).replica_id(), "r");
  EXPECT_EQ(described->first.replicas(0).node_id(), "a");
  EXPECT_EQ(described->first.created().seconds(), 1'800'000'000);
  EXPECT_TRUE(Publish(*manifest, "a")->existed());
}

TEST_F(GlobalStoreServerTest, PublishArtifact_AcceptsManifestLargerThanMessage) {
  Register("a");
  // By long names: so many tensors that it is as large take a sanitized build most of a minute to sort.
  const auto manifest = SomeManifest("large", 20'000, std::string(1000, 'n'));
  ASSERT_GT(manifest->bytes().size(), static_cast<size_t>(rpc::kMaxMessageBytes));
  auto published = Publish(*manifest, "a");
  ASSERT_TRUE(published.ok()) << published.status();
  auto described = Describe(manifest->id());
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_TRUE(described->second == manifest->bytes());
}

TEST_F(GlobalStoreServerTest, PublishedBytesAreNotAManifest_IsRefused) {
  Register("a");
  v1::PublishArtifactRequest first;
  *first.mutable_node() = Identity("a");
  EXPECT_TRUE(absl::IsInvalidArgument(PublishBytes("no manifest", first).status()));
  std::string cut = SomeManifest("1")->bytes();
  cut.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(PublishBytes(cut, first).status()));
  EXPECT_TRUE(absl::IsNotFound(Publish(*SomeManifest("1"), "unknown-node").status()));
}

TEST_F(GlobalStoreServerTest, Restart_KeepsArtifactsAndKeysAndRequestsInventory) {
  const uint64_t epoch = Register("a").store_epoch();
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "r", "k").ok());
  Restart();
  auto key = Resolve("k");
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(key->artifact_id(), manifest->id());
  EXPECT_EQ(key->revision(), 1u);
  EXPECT_EQ(Describe(manifest->id())->second, manifest->bytes());
  EXPECT_THAT(Describe(manifest->id())->first.replicas(), IsEmpty());

  EXPECT_TRUE(absl::IsNotFound(Beat("a").status()));
  EXPECT_NE(Register("a").store_epoch(), epoch);
  EXPECT_TRUE(Beat("a")->inventory_wanted());
  const auto unknown =
      rpc::CallClientStream(*stub_, &Stub::ReconcileInventory, Context(), 2, [&](size_t index) {
        v1::ReconcileInventoryRequest message;
        if (index == 0) {
          *message.mutable_node() = Identity("a");
          message.set_sequence(41);
          *message.add_replicas() = SomeReplica("r", manifest->id());
        } else {
          *message.add_replicas() = SomeReplica("r2", "tc2:lost");
        }
        return message;
      });
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_THAT(unknown->unknown_artifacts(), ElementsAre("tc2:lost"));
  EXPECT_THAT(Describe(manifest->id())->first.replicas(), SizeIs(1));
}

TEST_F(GlobalStoreServerTest, ListUnkeyedArtifactsAndDelete_CollectsGarbage) {
  Register("a");
  const auto kept = SomeManifest("kept");
  const auto dropped = SomeManifest("dropped");
  ASSERT_TRUE(Publish(*kept, "a", "r1", "k").ok());
  ASSERT_TRUE(Publish(*dropped, "a", "r2").ok());
  v1::ListArtifactsRequest list;
  list.set_unkeyed_only(true);
  list.mutable_min_age()->set_seconds(5);
  EXPECT_THAT(Call(&Stub::ListArtifacts, list)->artifacts(), IsEmpty());
  Pass(absl::Seconds(5));
  auto page = Call(&Stub::ListArtifacts, list);
  ASSERT_THAT(page->artifacts(), SizeIs(1));
  EXPECT_EQ(page->artifacts(0).artifact_id(), dropped->id());

  v1::DeleteArtifactRequest remove;
  remove.set_artifact_id(kept->id());
  const absl::Status refused = Call(&Stub::DeleteArtifact, remove).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), HasSubstr("bind the artifact, as a model or as files: k;"));
  remove.set_artifact_id(dropped->id());
  EXPECT_TRUE(Call(&Stub::DeleteArtifact, remove).ok());
  EXPECT_TRUE(absl::IsNotFound(Describe(dropped->id()).status()));
  EXPECT_THAT(Beat("a")->forgotten_artifacts(), ElementsAre(dropped->id()));
  Restart();
  EXPECT_TRUE(absl::IsNotFound(Describe(dropped->id()).status()));
}

TEST_F(GlobalStoreServerTest, ClusterStatus_ReportsCountsAndNodeState) {
  Register("a");
  ASSERT_TRUE(Publish(*SomeManifest("1"), "a", "r", "k").ok());
  v1::DrainNodeRequest drain;
  drain.set_node_id("a");
  drain.set_draining(true);
  ASSERT_TRUE(Call(&Stub::DrainNode, drain).ok());
  v1::HeartbeatRequest heartbeat;
  heartbeat.mutable_node()->set_node_id("a");
  heartbeat.mutable_node()->set_incarnation(1);
  heartbeat.add_unhealthy_devices(1);
  ASSERT_TRUE(Call(&Stub::Heartbeat, heartbeat).ok());
  auto status = Call(&Stub::GetClusterStatus, {});
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->artifacts(), 1u);
  EXPECT_EQ(status->keys(), 1u);
  EXPECT_EQ(status->replicas(), 1u);
  EXPECT_EQ(status->metadata_store(), "sqlite");
  ASSERT_THAT(status->nodes(), SizeIs(1));
  EXPECT_TRUE(status->nodes(0).draining());
  EXPECT_THAT(status->nodes(0).unhealthy_devices(), ElementsAre(1));
  EXPECT_THAT(status->nodes(0).lanes(), ElementsAre("ucx"));
}

TEST_F(GlobalStoreServerTest, UndrainedNode_IsNoLongerDraining) {
  Register("a");
  v1::DrainNodeRequest drain;
  drain.set_node_id("a");
  for (const bool draining : {true, false}) {
    drain.set_draining(draining);
    ASSERT_TRUE(Call(&Stub::DrainNode, drain).ok());
    const auto status = Call(&Stub::GetClusterStatus, {});
    ASSERT_TRUE(status.ok()) << status.status();
    ASSERT_THAT(status->nodes(), SizeIs(1));
    EXPECT_EQ(status->nodes(0).draining(), draining);
  }
  drain.set_node_id("unknown");
  EXPECT_TRUE(absl::IsNotFound(Call(&Stub::DrainNode, drain).status()));
}

// Sends one message to a method and returns the first of the answer, both as bytes.
std::string CallBytes(const std::string& address, const std::string& method, const std::string& request) {
  grpc::GenericStub stub(rpc::MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto stream = stub.PrepareCall(&context, method, &queue);
  stream->StartCall(nullptr);
  EXPECT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice slice(request);
  stream->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
  EXPECT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  EXPECT_TRUE(queue.Next(&tag, &ok) && ok) << method << " gave no answer";
  grpc::Status status;
  stream->Finish(&status, nullptr);
  EXPECT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
  grpc::Slice bytes;
  EXPECT_TRUE(answer.DumpToSingleSlice(&bytes).ok());
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

TEST_F(GlobalStoreServerTest, GlobalStoreServer_ServesHealthAndReflection) {
  // HealthCheckRequest{} -> HealthCheckResponse{status: SERVING}
  EXPECT_EQ(CallBytes(server_->address(), "/grpc.health.v1.Health/Check", ""), "\x08\x01");
  // ServerReflectionRequest{list_services: ""}
  EXPECT_THAT(CallBytes(server_->address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                        std::string("\x3a\x00", 2)),
              HasSubstr("tensorcast.v1.GlobalStore"));
}

TEST_F(GlobalStoreServerTest, SecondServerOnSameDatabase_IsRefused) {
  GlobalStoreOptions second = options_;
  second.listen = "127.0.0.1:0";
  EXPECT_TRUE(absl::IsAlreadyExists(GlobalStoreServer::Start(second).status()));
  second.metadata_store = "memory";
  auto server = GlobalStoreServer::Start(second);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->address(), ::testing::Not(::testing::EndsWith(":0")));
}

TEST_F(GlobalStoreServerTest, GlobalStoreServer_RefusesInvalidOptions) {
  const auto start = [&](const std::function<void(GlobalStoreOptions&)>& spoil) {
    GlobalStoreOptions options = options_;
    options.listen = "127.0.0.1:0";
    options.metadata_store = "memory";
    spoil(options);
    return GlobalStoreServer::Start(options).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(start([](auto& o) { o.heartbeat_interval = absl::ZeroDuration(); })));
  EXPECT_TRUE(absl::IsInvalidArgument(start([](auto& o) { o.node_ttl = absl::Seconds(3); })));
  EXPECT_TRUE(absl::IsInvalidArgument(start([](auto& o) { o.grant_ttl = absl::Seconds(3); })));
  EXPECT_TRUE(absl::IsInvalidArgument(start([](auto& o) { o.metadata_store = "paper"; })));
  EXPECT_TRUE(absl::IsAlreadyExists(start([&](auto& o) { o.listen = options_.listen; })));
}

}  // namespace
}  // namespace tensorcast::global_store::global_store_server_test
