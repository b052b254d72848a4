// The whole global store over real sockets: every call, its errors, restarts.
#include "global_store/app/global_store_server.h"

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/artifact/manifest.h"
#include "otel/api/steady_time.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/executor.h"
#include "rpc/grant_token/grant_token.h"
#include "rpc/handlers.h"
#include "rpc/pieces.h"
#include "rpc/server.h"

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Stub = v1::GlobalStore::Stub;

std::shared_ptr<const Manifest> SomeManifest(const std::string& seed, int tensors = 1) {
  ImageLayout layout{.tensors = {}, .chunk_bytes = 4096};
  for (int i = 0; i < tensors; ++i) {
    layout.tensors.push_back(
        {.name = absl::StrCat("tensor.", i), .dtype = DType::kU8, .shape = {16}, .nbytes = 16});
  }
  EXPECT_TRUE(AssignOffsets(layout).ok());
  auto manifest = Manifest::Create(layout, std::vector<Digest>(layout.chunk_count()), {{"seed", seed}});
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *manifest;
}

class GlobalStoreServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / absl::StrCat("global-store-", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    options_.listen = absl::StrCat("unix:", (folder_ / "gs.sock").string());
    options_.metadata_path = folder_ / "metadata.db";
    options_.clock = [this] { return absl::FromUnixNanos(clock_ns_.load()); };
    options_.wall_clock = options_.clock;
    Start();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    auto server = GlobalStoreServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::GlobalStore::NewStub(rpc::MakeChannel(server_->address()));
  }
  void Restart() {
    server_.reset();
    Start();
  }
  void Pass(absl::Duration duration) { clock_ns_ += absl::ToInt64Nanoseconds(duration); }
  static RequestContext Context() { return RequestContext::Background(absl::Seconds(20)); }

  template <class Request, class Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const std::type_identity_t<Request>& request,
                                const RequestContext& context = Context()) {
    return rpc::CallUnary(*stub_, method, context, request);
  }

  v1::RegisterNodeResponse Register(const std::string& id, uint64_t incarnation = 1) {
    v1::RegisterNodeRequest request;
    v1::Node& node = *request.mutable_node();
    node.set_node_id(id);
    node.set_name(id);
    node.set_incarnation(incarnation);
    node.set_host_id(absl::StrCat("host of ", id));
    node.set_grpc_address(daemon_address_);
    node.add_lanes("ucx");
    node.set_protocol_version(1);
    auto response = Call(&Stub::RegisterNode, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::RegisterNodeResponse{});
  }
  absl::StatusOr<v1::HeartbeatResponse> Beat(const std::string& id) {
    v1::HeartbeatRequest request;
    *request.mutable_node() = Identity(id);
    return Call(&Stub::Heartbeat, request);
  }
  static v1::NodeIdentity Identity(const std::string& id) {
    v1::NodeIdentity identity;
    identity.set_node_id(id);
    identity.set_incarnation(1);
    return identity;
  }
  static v1::Replica SomeReplica(const std::string& id, const std::string& artifact_id) {
    v1::Replica replica;
    replica.set_replica_id(id);
    replica.set_artifact_id(artifact_id);
    replica.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
    replica.set_state(v1::REPLICA_STATE_READY);
    return replica;
  }

  absl::StatusOr<v1::PublishArtifactResponse> PublishBytes(const std::string& bytes,
                                                           v1::PublishArtifactRequest first,
                                                           const RequestContext& context = Context()) {
    return rpc::CallClientStream(*stub_, &Stub::PublishArtifact, context, rpc::PieceCount(bytes.size()),
                                 [&](size_t index) {
                                   v1::PublishArtifactRequest message;
                                   if (index == 0) message = first;
                                   message.set_manifest_piece(std::string(rpc::Piece(bytes, index)));
                                   return message;
                                 });
  }
  absl::StatusOr<v1::PublishArtifactResponse> Publish(const Manifest& manifest, const std::string& node,
                                                      const std::string& replica = "",
                                                      const std::string& key = "",
                                                      const RequestContext& context = Context()) {
    v1::PublishArtifactRequest first;
    *first.mutable_node() = Identity(node);
    if (!replica.empty()) *first.mutable_replica() = SomeReplica(replica, manifest.id());
    first.set_key(key);
    return PublishBytes(manifest.bytes(), first, context);
  }
  absl::StatusOr<v1::BindKeyResponse> Bind(const std::string& key, const std::string& artifact_id,
                                           const RequestContext& context = Context()) {
    v1::BindKeyRequest request;
    request.set_key(key);
    request.set_artifact_id(artifact_id);
    return Call(&Stub::BindKey, request, context);
  }
  absl::StatusOr<v1::Key> Resolve(const std::string& key) {
    v1::ResolveKeyRequest request;
    request.set_key(key);
    auto response = Call(&Stub::ResolveKey, request);
    if (!response.ok()) return response.status();
    return response->key();
  }
  absl::StatusOr<std::pair<v1::Artifact, std::string>> Describe(const std::string& artifact_id) {
    v1::DescribeArtifactRequest request;
    request.set_artifact_id(artifact_id);
    request.set_manifest(true);
    std::pair<v1::Artifact, std::string> described;
    const absl::Status status = rpc::CallServerStream(*stub_, &Stub::DescribeArtifact, Context(), request,
                                                      [&](v1::DescribeArtifactResponse&& message) {
                                                        if (message.has_artifact())
                                                          described.first = message.artifact();
                                                        described.second += message.manifest_piece();
                                                        return absl::OkStatus();
                                                      });
    if (!status.ok()) return status;
    return described;
  }
  absl::StatusOr<v1::RequestReplicaTransportResponse> RequestTransport(
      const std::string& receiver, const std::string& artifact_id,
      const RequestContext& context = Context()) {
    v1::RequestReplicaTransportRequest request;
    *request.mutable_node() = Identity(receiver);
    request.set_artifact_id(artifact_id);
    request.mutable_timeout()->set_seconds(60);
    return Call(&Stub::RequestReplicaTransport, request, context);
  }

  std::filesystem::path folder_;
  GlobalStoreOptions options_;
  std::atomic<int64_t> clock_ns_ = int64_t{1'800'000'000} * 1'000'000'000;
  std::string daemon_address_ = "127.0.0.1:1";
  std::unique_ptr<GlobalStoreServer> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(GlobalStoreServerTest, TellsANodeHowToLive) {
  const v1::RegisterNodeResponse response = Register("a");
  EXPECT_EQ(response.grant_key().size(), 32u);
  EXPECT_EQ(response.heartbeat_interval().seconds(), 2);
  EXPECT_EQ(response.node_ttl().seconds(), 10);
  EXPECT_NE(response.store_epoch(), 0u);
  EXPECT_EQ(response.protocol_version(), 1u);
  auto beat = Beat("a");
  ASSERT_TRUE(beat.ok()) << beat.status();
  EXPECT_TRUE(beat->inventory_wanted());
  EXPECT_EQ(beat->store_epoch(), response.store_epoch());
  EXPECT_TRUE(absl::IsNotFound(Beat("stranger").status()));
}

TEST_F(GlobalStoreServerTest, PublishesAnArtifactWithItsKeyAndGivesItsManifestBack) {
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

TEST_F(GlobalStoreServerTest, TakesManifestsLargerThanAMessage) {
  Register("a");
  const auto manifest = SomeManifest("large", 400'000);
  ASSERT_GT(manifest->bytes().size(), static_cast<size_t>(rpc::kMaxMessageBytes));
  auto published = Publish(*manifest, "a");
  ASSERT_TRUE(published.ok()) << published.status();
  auto described = Describe(manifest->id());
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_TRUE(described->second == manifest->bytes());
}

TEST_F(GlobalStoreServerTest, RefusesWhatIsNoManifest) {
  Register("a");
  v1::PublishArtifactRequest first;
  *first.mutable_node() = Identity("a");
  EXPECT_TRUE(absl::IsInvalidArgument(PublishBytes("no manifest", first).status()));
  std::string cut = SomeManifest("1")->bytes();
  cut.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(PublishBytes(cut, first).status()));
  EXPECT_TRUE(absl::IsNotFound(Publish(*SomeManifest("1"), "stranger").status()));
}

TEST_F(GlobalStoreServerTest, KeepsArtifactsAndKeysOverARestartAndAsksForTheRest) {
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
          *message.add_replicas() = SomeReplica("r2", "tc1:lost");
        }
        return message;
      });
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_THAT(unknown->unknown_artifacts(), ElementsAre("tc1:lost"));
  EXPECT_THAT(Describe(manifest->id())->first.replicas(), SizeIs(1));
}

TEST_F(GlobalStoreServerTest, AnInventoryWithoutANodeIsRefused) {
  const auto refused = rpc::CallClientStream(*stub_, &Stub::ReconcileInventory, Context(), 0,
                                             [](size_t) { return v1::ReconcileInventoryRequest(); });
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
}

TEST_F(GlobalStoreServerTest, ARepeatedMutationGetsTheSameAnswerEvenAfterARestart) {
  Register("a");
  const auto manifest = SomeManifest("1");
  const RequestContext publish = Context();
  EXPECT_FALSE(Publish(*manifest, "a", "r", "k", publish)->existed());
  EXPECT_FALSE(Publish(*manifest, "a", "r", "k", publish)->existed());
  const RequestContext bind = Context();
  EXPECT_EQ(Bind("k", manifest->id(), bind)->key().revision(), 2u);
  EXPECT_EQ(Bind("k", manifest->id(), bind)->key().revision(), 2u);
  Restart();
  EXPECT_EQ(Bind("k", manifest->id(), bind)->key().revision(), 2u);
  EXPECT_EQ(Bind("k", manifest->id())->key().revision(), 3u);
  EXPECT_EQ(Bind("other", manifest->id(), bind)->key().revision(), 1u) << "the same id, but another request";
}

TEST_F(GlobalStoreServerTest, KeysAreListedAndDeleted) {
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a").ok());
  for (const char* key : {"m/1", "m/2", "m/3", "n"}) ASSERT_TRUE(Bind(key, manifest->id()).ok());
  v1::ListKeysRequest list;
  list.set_prefix("m/");
  list.set_page_size(2);
  auto page = Call(&Stub::ListKeys, list);
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_THAT(page->keys(), SizeIs(2));
  list.set_page_token(page->next_page_token());
  page = Call(&Stub::ListKeys, list);
  ASSERT_THAT(page->keys(), SizeIs(1));
  EXPECT_EQ(page->keys(0).name(), "m/3");
  EXPECT_EQ(page->next_page_token(), "");
  list.set_page_size(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(Call(&Stub::ListKeys, list).status()));

  v1::DeleteKeyRequest remove;
  remove.set_key("n");
  remove.set_expected_revision(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(Call(&Stub::DeleteKey, remove).status()));
  remove.set_expected_revision(1);
  EXPECT_TRUE(Call(&Stub::DeleteKey, remove).ok());
  EXPECT_TRUE(absl::IsNotFound(Resolve("n").status()));
}

TEST_F(GlobalStoreServerTest, GarbageIsCollectedByListingAndDeleting) {
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
  remove.set_only_if_unkeyed(true);
  remove.set_artifact_id(kept->id());
  const absl::Status refused = Call(&Stub::DeleteArtifact, remove).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), HasSubstr("keys k"));
  remove.set_artifact_id(dropped->id());
  EXPECT_TRUE(Call(&Stub::DeleteArtifact, remove).ok());
  EXPECT_TRUE(absl::IsNotFound(Describe(dropped->id()).status()));
  EXPECT_THAT(Beat("a")->forgotten_artifacts(), ElementsAre(dropped->id()));
  Restart();
  EXPECT_TRUE(absl::IsNotFound(Describe(dropped->id()).status()));
}

TEST_F(GlobalStoreServerTest, GrantsAreSignedForTheirSource) {
  const std::string key = Register("a").grant_key();
  const absl::Time given = options_.clock();
  Pass(absl::Seconds(3));
  EXPECT_EQ(Beat("a")->grant_key_age().seconds(), 3);
  Register("b");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "r").ok());
  const RequestContext context = Context();
  auto offer = RequestTransport("b", manifest->id(), context);
  ASSERT_TRUE(offer.ok()) << offer.status();
  ASSERT_TRUE(offer->has_grant()) << offer->no_source_reason();
  const v1::TransportGrant& grant = offer->grant();
  EXPECT_EQ(grant.source().node_id(), "a");
  EXPECT_EQ(grant.lane(), "ucx");
  EXPECT_EQ(grant.ttl().seconds(), 30);
  auto claims = rpc::VerifyGrant({key, given}, grant.token(), options_.clock());
  ASSERT_TRUE(claims.ok()) << claims.status();
  EXPECT_EQ(claims->transport_id, grant.transport_id());
  EXPECT_EQ(claims->replica_id, "r");
  EXPECT_EQ(claims->artifact_id, manifest->id());
  EXPECT_EQ(claims->receiver_node_id, "b");
  EXPECT_EQ(claims->lane, "ucx");
  EXPECT_EQ(claims->expires, options_.clock() - given + absl::Seconds(60));
  EXPECT_EQ(RequestTransport("b", manifest->id(), context)->grant().transport_id(), grant.transport_id());

  v1::CompleteReplicaTransportRequest complete;
  *complete.mutable_node() = Identity("b");
  complete.set_transport_id(grant.transport_id());
  EXPECT_TRUE(absl::IsInvalidArgument(Call(&Stub::CompleteReplicaTransport, complete).status()));
  complete.set_outcome(v1::TRANSPORT_OUTCOME_SUCCEEDED);
  EXPECT_TRUE(Call(&Stub::CompleteReplicaTransport, complete).ok());
  EXPECT_TRUE(Call(&Stub::CompleteReplicaTransport, complete).ok());
  EXPECT_EQ(Call(&Stub::GetClusterStatus, {})->active_grants(), 0u);

  auto none = RequestTransport("a", manifest->id());
  EXPECT_FALSE(none->has_grant());
  EXPECT_THAT(none->no_source_reason(), HasSubstr("no other node"));
}

TEST_F(GlobalStoreServerTest, EvictionIsAskedForAndWithdrawn) {
  Register("a");
  Register("b");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "r1").ok());
  v1::RequestEvictionRequest evict;
  *evict.mutable_node() = Identity("a");
  evict.set_replica_id("r1");
  auto decision = Call(&Stub::RequestEviction, evict);
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_FALSE(decision->granted());
  EXPECT_THAT(decision->reason(), HasSubstr("last copy"));

  v1::UpdateReplicasRequest update;
  *update.mutable_node() = Identity("b");
  update.set_sequence(1);
  *update.add_replicas() = SomeReplica("r2", manifest->id());
  ASSERT_TRUE(Call(&Stub::UpdateReplicas, update).ok());
  EXPECT_TRUE(Call(&Stub::RequestEviction, evict)->granted());
  EXPECT_FALSE(RequestTransport("b", manifest->id())->has_grant());
  evict.set_withdraw(true);
  EXPECT_TRUE(Call(&Stub::RequestEviction, evict).ok());
  EXPECT_TRUE(RequestTransport("b", manifest->id())->has_grant());
}

TEST_F(GlobalStoreServerTest, SilentNodesExpireByThemselves) {
  options_.clock = SteadyNow;
  options_.heartbeat_interval = absl::Milliseconds(50);
  options_.node_ttl = absl::Milliseconds(500);
  Restart();
  Register("a");
  EXPECT_THAT(Call(&Stub::GetClusterStatus, {})->nodes(), SizeIs(1));
  while (!Call(&Stub::GetClusterStatus, {})->nodes().empty()) std::this_thread::yield();
}

TEST_F(GlobalStoreServerTest, TellsTheStateOfTheCluster) {
  Register("a");
  ASSERT_TRUE(Publish(*SomeManifest("1"), "a", "r", "k").ok());
  v1::DrainNodeRequest drain;
  drain.set_node_id("a");
  drain.set_draining(true);
  ASSERT_TRUE(Call(&Stub::DrainNode, drain).ok());
  auto status = Call(&Stub::GetClusterStatus, {});
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->artifacts(), 1u);
  EXPECT_EQ(status->keys(), 1u);
  EXPECT_EQ(status->replicas(), 1u);
  EXPECT_EQ(status->metadata_store(), "sqlite");
  ASSERT_THAT(status->nodes(), SizeIs(1));
  EXPECT_TRUE(status->nodes(0).draining());
  EXPECT_THAT(status->nodes(0).lanes(), ElementsAre("ucx"));
}

TEST_F(GlobalStoreServerTest, WatchesTellOfTheKeysAsTheyAreThenOfChangesThenOfTheEnd) {
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "", "m/1").ok());
  v1::WatchKeysRequest request;
  request.set_prefix("m/");
  const RequestContext context = Context();
  rpc::ClientCall call(context);
  auto stream = stub_->WatchKeys(call.get(), request);
  v1::WatchKeysResponse event;
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.key().name(), "m/1");
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_TRUE(event.listed());
  EXPECT_FALSE(event.has_key());
  ASSERT_TRUE(Bind("m/2", manifest->id()).ok());
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.key().name(), "m/2");
  v1::DeleteKeyRequest remove;
  remove.set_key("m/1");
  ASSERT_TRUE(Call(&Stub::DeleteKey, remove).ok());
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.key().name(), "m/1");
  EXPECT_TRUE(event.deleted());
  server_->Shutdown(absl::Seconds(5));
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GlobalStoreServerTest, ASlowWatcherMissesRevisionsButNeverTheLatest) {
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "", "k").ok());
  v1::WatchKeysRequest request;
  request.set_key("k");
  const RequestContext context = Context();
  rpc::ClientCall call(context);
  auto stream = stub_->WatchKeys(call.get(), request);
  v1::WatchKeysResponse event;
  ASSERT_TRUE(stream->Read(&event));
  uint64_t latest = 0;
  for (int i = 0; i < 300; ++i) latest = Bind("k", manifest->id())->key().revision();
  uint64_t last = event.key().revision();
  while (last < latest && stream->Read(&event)) {
    if (event.listed()) continue;
    EXPECT_GT(event.key().revision(), last);
    last = event.key().revision();
  }
  EXPECT_EQ(last, latest);
  call.get()->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GlobalStoreServerTest, KeepsServingWhileWatchersComeAndGo) {
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "", "k").ok());
  std::vector<std::thread> watchers;
  for (int i = 0; i < 4; ++i) {
    watchers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const RequestContext context = Context();
        rpc::ClientCall call(context);
        auto stream = stub_->WatchKeys(call.get(), v1::WatchKeysRequest());
        v1::WatchKeysResponse event;
        EXPECT_TRUE(stream->Read(&event));
        call.get()->TryCancel();
        EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
      }
    });
  }
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Bind("k", manifest->id()).ok());
  for (std::thread& watcher : watchers) watcher.join();
}

// A daemon of which only MaterializeReplica is there.
class FakeDaemon final : public v1::StoreDaemon::CallbackService {
 public:
  explicit FakeDaemon(rpc::Executor* executor) : executor_(*executor) {}
  grpc::ServerWriteReactor<v1::MaterializeReplicaResponse>* MaterializeReplica(
      grpc::CallbackServerContext* call, const v1::MaterializeReplicaRequest* request) override {
    return rpc::HandleWriteStream<v1::MaterializeReplicaResponse>(
        call, executor_,
        [request](const RequestContext&,
                  rpc::StreamWriter<v1::MaterializeReplicaResponse>& writer) -> absl::Status {
          if (request->location().kind() == v1::LOCATION_KIND_DISK)
            return absl::ResourceExhaustedError("disk full");
          v1::MaterializeReplicaResponse response;
          response.mutable_progress()->set_bytes_done(1);
          if (absl::Status written = writer.Write(response); !written.ok()) return written;
          response.mutable_result()->mutable_replica()->set_replica_id("made");
          return writer.Write(response);
        });
  }

 private:
  rpc::Executor& executor_;
};

TEST_F(GlobalStoreServerTest, ReplicatesToManyPlacesAndReportsEach) {
  rpc::Executor executor;
  FakeDaemon service(&executor);
  auto daemon = rpc::Server::Start({.listen = {"127.0.0.1:0"}, .services = {&service}});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_address_ = (*daemon)->addresses()[0];
  Register("a");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "r").ok());

  v1::ReplicateArtifactRequest request;
  request.set_artifact_id(manifest->id());
  for (const auto& [node, kind] : std::vector<std::pair<std::string, v1::LocationKind>>{
           {"a", v1::LOCATION_KIND_CPU}, {"a", v1::LOCATION_KIND_DISK}, {"nobody", v1::LOCATION_KIND_CPU}}) {
    v1::ReplicateArtifactRequest::Target* target = request.add_targets();
    target->set_node_id(node);
    target->mutable_location()->set_kind(kind);
  }
  auto response = Call(&Stub::ReplicateArtifact, request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_THAT(response->results(), SizeIs(3));
  EXPECT_EQ(response->results(0).replica_id(), "made");
  EXPECT_EQ(response->results(0).error(), "");
  EXPECT_THAT(response->results(1).error(), HasSubstr("disk full"));
  EXPECT_THAT(response->results(2).error(), HasSubstr("no live node nobody"));
  request.set_artifact_id("tc1:nothing");
  EXPECT_TRUE(absl::IsNotFound(Call(&Stub::ReplicateArtifact, request).status()));
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

TEST_F(GlobalStoreServerTest, ServesTheStandardHealthServiceAndReflection) {
  // HealthCheckRequest{} -> HealthCheckResponse{status: SERVING}
  EXPECT_EQ(CallBytes(server_->address(), "/grpc.health.v1.Health/Check", ""), "\x08\x01");
  // ServerReflectionRequest{list_services: ""}
  EXPECT_THAT(CallBytes(server_->address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                        std::string("\x3a\x00", 2)),
              HasSubstr("tensorcast.v1.GlobalStore"));
}

TEST_F(GlobalStoreServerTest, TwoStoresDoNotShareADatabase) {
  GlobalStoreOptions second = options_;
  second.listen = "127.0.0.1:0";
  EXPECT_TRUE(absl::IsAlreadyExists(GlobalStoreServer::Start(second).status()));
  second.metadata_store = "memory";
  auto server = GlobalStoreServer::Start(second);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->address(), ::testing::Not(::testing::EndsWith(":0")));
}

TEST_F(GlobalStoreServerTest, RefusesOptionsThatCannotWork) {
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
  EXPECT_TRUE(absl::IsInvalidArgument(start([](auto& o) { o.soft_grants_per_source = 0; })));
  EXPECT_TRUE(absl::IsInvalidArgument(start([](auto& o) { o.metadata_store = "paper"; })));
  EXPECT_TRUE(absl::IsAlreadyExists(start([&](auto& o) { o.listen = options_.listen; })));
}

}  // namespace
}  // namespace tensorcast::global_store
