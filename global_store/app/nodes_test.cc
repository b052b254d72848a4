// Nodes and their requests to the global store, over real sockets: grants, evictions, silence.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include <gmock/gmock.h>

#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "global_store/app/global_store_fixture.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/possession.grpc.pb.h"
#include "rpc/executor.h"
#include "rpc/grant_token/grant_token.h"
#include "rpc/handlers.h"
#include "rpc/retry_after.h"
#include "rpc/server.h"

namespace tensorcast::global_store::nodes_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(GlobalStoreServerTest, RegisterNode_ReturnsGrantKeyTtlAndHeartbeatInterval) {
  const v1::RegisterNodeResponse response = Register("a");
  EXPECT_EQ(response.grant_key().size(), 32u);
  EXPECT_EQ(response.heartbeat_interval().seconds(), 2);
  EXPECT_EQ(response.node_ttl().seconds(), 10);
  EXPECT_NE(response.store_epoch(), 0u);
  auto beat = Beat("a");
  ASSERT_TRUE(beat.ok()) << beat.status();
  EXPECT_TRUE(beat->inventory_wanted());
  EXPECT_EQ(beat->store_epoch(), response.store_epoch());
  EXPECT_TRUE(absl::IsNotFound(Beat("unknown-node").status()));
}

TEST_F(GlobalStoreServerTest, ClusterStatus_ShowsNodeLabels) {
  v1::RegisterNodeRequest request;
  request.mutable_node()->set_node_id("a");
  request.mutable_node()->set_name("a");
  request.mutable_node()->set_incarnation(1);
  request.mutable_node()->set_grpc_address("127.0.0.1:1");
  (*request.mutable_node()->mutable_labels())["zone"] = "z1";
  ASSERT_TRUE(Call(&Stub::RegisterNode, request).ok());
  const auto status = Call(&Stub::GetClusterStatus, v1::GetClusterStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  ASSERT_EQ(status->nodes_size(), 1);
  EXPECT_EQ(status->nodes(0).labels().at("zone"), "z1");
}

// A source that only its own host can connect to would fail every receiver of another one.
TEST_F(GlobalStoreServerTest, RegisterNode_NeedsTcpAddressWhenStoreListensForHosts) {
  options_.listen = "127.0.0.1:0";
  Restart();
  v1::RegisterNodeRequest request;
  request.mutable_node()->set_node_id("a");
  request.mutable_node()->set_name("a");
  request.mutable_node()->set_incarnation(1);
  request.mutable_node()->set_grpc_address("unix:/run/a.sock");
  const absl::Status refused = Call(&Stub::RegisterNode, request).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("daemon.listen"));
}

TEST_F(GlobalStoreServerTest, InventoryWithoutNode_IsRefused) {
  const auto refused = rpc::CallClientStream(*stub_, &Stub::ReconcileInventory, Context(), 0,
                                             [](size_t) { return v1::ReconcileInventoryRequest(); });
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
}

TEST_F(GlobalStoreServerTest, Grant_IsSignedForItsSource) {
  const v1::RegisterNodeResponse registered = Register("a");
  const SteadyTime given = options_.clock();
  Pass(absl::Seconds(3));
  EXPECT_EQ(Beat("a")->grant_key_age().seconds(), 3);
  Register("b");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "r").ok());
  const RequestContext context = Context();
  auto offer = RequestGrant("b", manifest->id(), context);
  ASSERT_TRUE(offer.ok()) << offer.status();
  ASSERT_FALSE(offer->grants().empty()) << offer->no_source_reason();
  const v1::TransportGrant& grant = offer->grants(0);
  EXPECT_EQ(grant.source().node_id(), "a");
  EXPECT_EQ(grant.lane(), "ucx");
  EXPECT_EQ(grant.ttl().seconds(), 30);
  auto claims = rpc::VerifyGrant({registered.grant_key(), given, registered.store_epoch()}, grant.token(),
                                 options_.clock());
  ASSERT_TRUE(claims.ok()) << claims.status();
  EXPECT_EQ(claims->grant_id, grant.grant_id());
  EXPECT_EQ(claims->replica_id, "r");
  EXPECT_EQ(claims->artifact_id, manifest->id());
  EXPECT_EQ(claims->receiver_node_id, "b");
  EXPECT_EQ(claims->lane, "ucx");
  EXPECT_EQ(claims->expires, options_.clock() - given + absl::Seconds(60));
  EXPECT_EQ(RequestGrant("b", manifest->id(), context)->grants(0).grant_id(), grant.grant_id());

  v1::CompleteReplicaTransportRequest complete;
  *complete.mutable_node() = Identity("b");
  complete.set_grant_id(grant.grant_id());
  EXPECT_TRUE(absl::IsInvalidArgument(Call(&Stub::CompleteReplicaTransport, complete).status()));
  complete.set_outcome(v1::TRANSPORT_OUTCOME_SUCCEEDED);
  EXPECT_TRUE(Call(&Stub::CompleteReplicaTransport, complete).ok());
  EXPECT_TRUE(Call(&Stub::CompleteReplicaTransport, complete).ok());
  EXPECT_EQ(Call(&Stub::GetClusterStatus, {})->active_grants(), 0u);

  auto none = RequestGrant("a", manifest->id());
  EXPECT_TRUE(none->grants().empty());
  EXPECT_THAT(none->no_source_reason(), HasSubstr("no other node"));
}

TEST_F(GlobalStoreServerTest, ExplainRollout_TellsTransferOfKey) {
  Register("a");
  Register("b");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "r").ok());
  v1::BindKeyRequest bind;
  bind.set_key("k");
  bind.set_artifact_id(manifest->id());
  ASSERT_TRUE(Call(&Stub::BindKey, bind).ok());
  const auto offer = RequestGrant("b", manifest->id());
  ASSERT_TRUE(offer.ok()) << offer.status();
  ASSERT_FALSE(offer->grants().empty());
  Pass(absl::Seconds(4));
  v1::CompleteReplicaTransportRequest complete;
  *complete.mutable_node() = Identity("b");
  complete.set_grant_id(offer->grants(0).grant_id());
  complete.set_outcome(v1::TRANSPORT_OUTCOME_SUCCEEDED);
  complete.set_bytes(16);
  complete.set_transfer_id("t1");
  ASSERT_TRUE(Call(&Stub::CompleteReplicaTransport, complete).ok());

  v1::ExplainRolloutRequest request;
  request.set_key("k");
  const auto rollout = Call(&Stub::ExplainRollout, request);
  ASSERT_TRUE(rollout.ok()) << rollout.status();
  EXPECT_EQ(rollout->artifact_id(), manifest->id());
  EXPECT_EQ(rollout->key_revision(), 1);
  EXPECT_EQ(rollout->receivers(), 1);
  EXPECT_EQ(rollout->ended(), 1);
  ASSERT_EQ(rollout->levels_size(), 1);
  ASSERT_EQ(rollout->critical_path_size(), 1);
  const v1::RolloutHop& hop = rollout->critical_path(0);
  EXPECT_EQ(hop.node_id(), "b");
  EXPECT_EQ(hop.source_node_id(), "a");
  EXPECT_EQ(hop.transfer_id(), "t1");
  EXPECT_EQ(hop.bytes(), 16);
  EXPECT_FALSE(hop.grpc_address().empty());
  EXPECT_EQ(hop.ended().seconds() - hop.begun().seconds(), 4);
  EXPECT_FALSE(rollout->has_worst_hop());

  request.set_artifact_id(manifest->id());
  EXPECT_EQ(Call(&Stub::ExplainRollout, request)->receivers(), 1);
  *request.mutable_since() = hop.ended();
  EXPECT_EQ(Call(&Stub::ExplainRollout, request)->receivers(), 0) << "it began before";
  request.set_slowest(101);
  EXPECT_TRUE(absl::IsInvalidArgument(Call(&Stub::ExplainRollout, request).status()));
  request.set_key("no such key");
  request.clear_slowest();
  EXPECT_TRUE(absl::IsNotFound(Call(&Stub::ExplainRollout, request).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Call(&Stub::ExplainRollout, {}).status()));
}

TEST_F(GlobalStoreServerTest, HeartbeatWithOtherDigest_IsCountedViolation) {
  Register("a");
  ASSERT_TRUE(rpc::CallClientStream(*stub_, &Stub::ReconcileInventory, Context(), 1, [](size_t) {
                v1::ReconcileInventoryRequest nothing;
                *nothing.mutable_node() = Identity("a");
                return nothing;
              }).ok());
  v1::HeartbeatRequest beat;
  *beat.mutable_node() = Identity("a");
  beat.set_inventory_digest(12345);
  for (int i = 0; i < 4; ++i, Pass(absl::Seconds(2))) ASSERT_TRUE(Call(&Stub::Heartbeat, beat).ok());
  const auto status = Call(&Stub::GetClusterStatus, {});
  EXPECT_EQ(status->conservation_compared(), 1);
  EXPECT_EQ(status->conservation_violations(), 1);
  EXPECT_THAT(status->last_violation(), HasSubstr("inventory of node"));
}

// So a receiver that came first hears of those that come later.
TEST_F(GlobalStoreServerTest, ReceiverWithAllSources_IsToldToLookAgain) {
  Register("a");
  Register("b");
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "r").ok());
  v1::RequestReplicaTransportRequest request;
  *request.mutable_node() = Identity("b");
  request.set_artifact_id(manifest->id());
  request.set_sources(6);
  const auto first = Call(&Stub::RequestReplicaTransport, request);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->grants_size(), 1);
  EXPECT_TRUE(first->has_look_again());
  request.add_held_grants(first->grants(0).grant_id());
  const auto none = Call(&Stub::RequestReplicaTransport, request);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->grants().empty());
  EXPECT_TRUE(none->has_look_again());
}

// Of the nodes of a test, which have what they say, but for one that lies of its replica "r2".
class FakePossession final : public v1::Possession::CallbackService {
 public:
  explicit FakePossession(rpc::Executor* executor) : executor_(*executor) {}

  std::atomic<bool> lies = false;
  std::atomic<int> digested = 0;

  grpc::ServerUnaryReactor* Prove(grpc::CallbackServerContext* call, const v1::ProveRequest* request,
                                  v1::ProveResponse* response) override {
    return rpc::HandleUnary(call, executor_, [this, request, response](const RequestContext&) {
      EXPECT_GT(request->ranges_size(), 0);
      EXPECT_NE(request->has_origin(), !request->replica_id().empty());
      response->set_digest(lies && request->replica_id() == "r2" ? "other bytes" : request->nonce());
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* DigestAgain(grpc::CallbackServerContext* call, const v1::DigestAgainRequest*,
                                        v1::DigestAgainResponse* response) override {
    return rpc::HandleUnary(call, executor_, [this, response](const RequestContext&) {
      ++digested;
      response->set_matches(true);
      return absl::OkStatus();
    });
  }

 private:
  rpc::Executor& executor_;
};

TEST_F(GlobalStoreServerTest, AccusedReplica_IsDigestedByItsNodeAndOfferedAgain) {
  rpc::Executor executor;
  FakePossession possession(&executor);
  auto daemon = rpc::Server::Start({.listen = {"127.0.0.1:0"}, .services = {&possession}});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_address_ = (*daemon)->addresses()[0];
  for (const char* node : {"a", "b", "c"}) Register(node);
  const auto manifest = SomeManifest("1");
  ASSERT_TRUE(Publish(*manifest, "a", "r1").ok());
  const auto granted = RequestGrant("b", manifest->id());
  ASSERT_TRUE(granted.ok()) << granted.status();
  ASSERT_EQ(granted->grants_size(), 1);
  v1::CompleteReplicaTransportRequest accuse;
  *accuse.mutable_node() = Identity("b");
  accuse.set_grant_id(granted->grants(0).grant_id());
  accuse.set_outcome(v1::TRANSPORT_OUTCOME_FAILED);
  accuse.set_source_corrupt(true);
  ASSERT_TRUE(Call(&Stub::CompleteReplicaTransport, accuse).ok());
  while (RequestGrant("c", manifest->id())->grants().empty()) std::this_thread::yield();
  EXPECT_EQ(possession.digested, 1);
}

TEST_F(GlobalStoreServerTest, RequestEviction_NeedsProofAndIsWithdrawn) {
  rpc::Executor executor;
  FakePossession possession(&executor);
  auto daemon = rpc::Server::Start({.listen = {"127.0.0.1:0"}, .services = {&possession}});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_address_ = (*daemon)->addresses()[0];
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
  possession.lies = true;
  decision = Call(&Stub::RequestEviction, evict);
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_FALSE(decision->granted()) << "node b has other bytes, or none";
  EXPECT_THAT(decision->reason(), HasSubstr("did not prove"));
  possession.lies = false;
  EXPECT_TRUE(Call(&Stub::RequestEviction, evict)->granted());
  EXPECT_TRUE(RequestGrant("b", manifest->id())->grants().empty());
  evict.set_withdraw(true);
  EXPECT_TRUE(Call(&Stub::RequestEviction, evict).ok());
  EXPECT_FALSE(RequestGrant("b", manifest->id())->grants().empty());
}

TEST_F(GlobalStoreServerTest, SilentNode_ExpiresByItself) {
  options_.clock = SteadyNow;
  options_.heartbeat_interval = absl::Milliseconds(50);
  options_.node_ttl = absl::Milliseconds(500);
  Restart();
  Register("a");
  EXPECT_THAT(Call(&Stub::GetClusterStatus, {})->nodes(), SizeIs(1));
  while (!Call(&Stub::GetClusterStatus, {})->nodes().empty()) std::this_thread::yield();
}

// A daemon of which only MaterializeReplica and CheckOrigin are there.
class FakeDaemon final : public v1::StoreDaemon::CallbackService {
 public:
  explicit FakeDaemon(rpc::Executor* executor) : executor_(*executor) {}

  std::atomic<int> checks = 0;
  std::atomic<int> materialized = 0;
  std::atomic<bool> intact = true;
  std::atomic<uint64_t> compared_bytes = 0;
  std::atomic<uint64_t> compare_bytes = 0;  // 0: no comparison is under way
  std::atomic<absl::StatusCode> checking_fails_with = absl::StatusCode::kOk;
  std::atomic<absl::StatusCode> reading_fails_with = absl::StatusCode::kOk;

  grpc::ServerUnaryReactor* CheckOrigin(grpc::CallbackServerContext* call,
                                        const v1::CheckOriginRequest* request,
                                        v1::CheckOriginResponse* response) override {
    return rpc::HandleUnary(call, executor_,
                            [this, request, response](const RequestContext&) -> absl::Status {
                              ++checks;
                              if (checking_fails_with != absl::StatusCode::kOk) {
                                return absl::Status(checking_fails_with, "it could not");
                              }
                              EXPECT_EQ(request->origin().objects(0).uri(), "/models/m");
                              EXPECT_NE(request->artifact_id(), "");
                              response->set_intact(intact);
                              response->set_compared_bytes(compared_bytes);
                              response->set_compare_bytes(compare_bytes);
                              if (!intact) response->set_reason("it changed");
                              return absl::OkStatus();
                            });
  }
  grpc::ServerWriteReactor<v1::MaterializeReplicaResponse>* MaterializeReplica(
      grpc::CallbackServerContext* call, const v1::MaterializeReplicaRequest* request) override {
    return rpc::HandleWriteStream<v1::MaterializeReplicaResponse>(
        call, executor_,
        [this, request](const RequestContext&,
                        rpc::StreamWriter<v1::MaterializeReplicaResponse>& writer) -> absl::Status {
          ++materialized;
          if (request->location().kind() == v1::LOCATION_KIND_DISK) {
            return absl::ResourceExhaustedError("disk full");
          }
          if (reading_fails_with != absl::StatusCode::kOk) {
            return absl::Status(reading_fails_with, "it could not");
          }
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

class OriginsOfNodes : public GlobalStoreServerTest {
 protected:
  void SetUp() override {
    GlobalStoreServerTest::SetUp();
    auto daemon =
        rpc::Server::Start({.listen = {"127.0.0.1:0"}, .services = {&daemon_service_, &possession_}});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    daemon_address_ = daemon_->addresses()[0];
    Register("a");
    Import();
  }
  void Import() {
    v1::PublishArtifactRequest first;
    *first.mutable_node() = Identity("a");
    *first.mutable_replica() = SomeReplica("r", manifest_->id());
    first.mutable_origin()->add_objects()->set_uri("/models/m");
    const auto published = PublishBytes(manifest_->bytes(), first);
    ASSERT_TRUE(published.ok()) << published.status();
    PublishComparison(first, *manifest_);
  }
  // That the node of this publication has compared its files.
  void PublishComparison(v1::PublishArtifactRequest first, const Manifest& manifest) {
    first.clear_replica();
    first.mutable_origin()->set_compared(true);
    const auto published = PublishBytes(manifest.bytes(), first);
    ASSERT_TRUE(published.ok()) << published.status();
  }
  v1::RequestEvictionResponse AskToEvict() {
    v1::RequestEvictionRequest request;
    *request.mutable_node() = Identity("a");
    request.set_replica_id("r");
    auto response = Call(&Stub::RequestEviction, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::RequestEvictionResponse{});
  }

  // Node a reports it gone; both nodes have told all that they hold.
  void LoseTheReplica() {
    Register("b");
    v1::UpdateReplicasRequest update;
    *update.mutable_node() = Identity("a");
    update.set_sequence(1);
    *update.add_replicas() = SomeReplica("r", manifest_->id());
    update.mutable_replicas(0)->set_state(v1::REPLICA_STATE_GONE);
    ASSERT_TRUE(Call(&Stub::UpdateReplicas, update).ok());
    for (const char* node : {"a", "b"}) {
      const auto listed = rpc::CallClientStream(*stub_, &Stub::ReconcileInventory, Context(), 1, [&](size_t) {
        v1::ReconcileInventoryRequest nothing;
        *nothing.mutable_node() = Identity(node);
        nothing.set_sequence(2);
        return nothing;
      });
      ASSERT_TRUE(listed.ok()) << listed.status();
    }
  }

  const std::shared_ptr<const Manifest> manifest_ = SomeManifest("1");
  rpc::Executor executor_;
  FakeDaemon daemon_service_{&executor_};
  FakePossession possession_{&executor_};
  std::unique_ptr<rpc::Server> daemon_;
};

TEST_F(OriginsOfNodes, Eviction_ChecksOriginBeforeGranting) {
  EXPECT_TRUE(AskToEvict().granted());
  EXPECT_EQ(daemon_service_.checks, 1);
  EXPECT_TRUE(AskToEvict().granted()) << "it is counted out already";
}

TEST_F(OriginsOfNodes, OriginComparisonInProgress_RefusesEvictionWithProgress) {
  daemon_service_.compared_bytes = uint64_t{3} << 30;
  daemon_service_.compare_bytes = uint64_t{16} << 30;
  v1::PublishArtifactRequest other;
  *other.mutable_node() = Identity("a");
  v1::Origin::Object& file = *other.mutable_origin()->add_objects();
  file.set_uri("/models/m");
  file.set_version("0:0:0:5");  // another file by this alone
  ASSERT_TRUE(PublishBytes(manifest_->bytes(), other).ok());
  const v1::RequestEvictionResponse refused = AskToEvict();
  EXPECT_FALSE(refused.granted());
  EXPECT_THAT(refused.waiting_for(), HasSubstr("(3.0 of 16.0 GiB), after which the replica can be evicted"));
  PublishComparison(other, *manifest_);
  daemon_service_.compare_bytes = 0;
  EXPECT_TRUE(AskToEvict().granted());
}

TEST_F(OriginsOfNodes, ChangedOrigin_RefusesEvictionUntilImportedAgain) {
  daemon_service_.intact = false;
  EXPECT_FALSE(AskToEvict().granted());
  EXPECT_THAT(AskToEvict().reason(), HasSubstr("it changed"));
  EXPECT_EQ(daemon_service_.checks, 1);
  daemon_service_.intact = true;
  Pass(absl::Seconds(5));
  EXPECT_FALSE(AskToEvict().granted());
  EXPECT_EQ(daemon_service_.checks, 1);
  Import();
  EXPECT_TRUE(AskToEvict().granted());
  EXPECT_EQ(daemon_service_.checks, 2);
}

TEST_F(OriginsOfNodes, OriginOfLostReplica_IsReadOnceForOtherNodes) {
  LoseTheReplica();
  for (int i = 0; i < 3; ++i) {
    const auto offer = RequestGrant("b", manifest_->id());
    ASSERT_TRUE(offer.ok()) << offer.status();
    ASSERT_THAT(offer->waiting_for(), SizeIs(1));
    EXPECT_THAT(offer->waiting_for(0), HasSubstr("node a, which reads the files that it imported"));
    EXPECT_TRUE(offer->has_retry_after());
    while (daemon_service_.materialized == 0) std::this_thread::yield();
  }
  EXPECT_EQ(daemon_service_.materialized, 1);
}

TEST_F(OriginsOfNodes, UnreadableOrigin_IsReadAgainUnlessDataIsLost) {
  LoseTheReplica();
  const auto ask_until_told = [&](std::string_view what) {
    while (true) {
      const auto offer = RequestGrant("b", manifest_->id());
      ASSERT_TRUE(offer.ok()) << offer.status();
      if (offer->ShortDebugString().find(what) != std::string::npos) return;
      std::this_thread::yield();
    }
  };
  int times = 0;
  for (const absl::StatusCode code : {absl::StatusCode::kNotFound, absl::StatusCode::kFailedPrecondition}) {
    daemon_service_.reading_fails_with = code;
    ASSERT_NO_FATAL_FAILURE(ask_until_told("could not read"));
    EXPECT_EQ(daemon_service_.materialized, ++times) << code;
    Pass(absl::Seconds(6));
    ASSERT_TRUE(Beat("a").ok() && Beat("b").ok());
  }
  daemon_service_.reading_fails_with = absl::StatusCode::kDataLoss;
  ASSERT_NO_FATAL_FAILURE(ask_until_told("are gone (it could not"));
  EXPECT_EQ(daemon_service_.materialized, times + 1);
}

TEST_F(OriginsOfNodes, ChangedOrigin_IsNeitherReadNorWaitedFor) {
  LoseTheReplica();
  daemon_service_.intact = false;
  const auto offer = RequestGrant("b", manifest_->id());
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_THAT(offer->waiting_for(), SizeIs(0));
  EXPECT_FALSE(offer->has_retry_after());
  EXPECT_THAT(offer->no_source_reason(), HasSubstr("it changed"));
  EXPECT_EQ(daemon_service_.materialized, 0);
}

// Takes connections, and never says anything on one.
class Mute {
 public:
  Mute() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address_);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address_), length), 0);
    EXPECT_EQ(listen(socket_.get(), 64), 0);
    EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address_), &length), 0);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", ntohs(address_.sin_port)); }

 private:
  UniqueFd socket_;
  sockaddr_in address_{};
};

TEST_F(OriginsOfNodes, SilentNodesWithOrigins_DoNotHideAnIntactOrigin) {
  const auto manifest = SomeManifest("imported on many");
  ASSERT_TRUE(Publish(*manifest, "a", "kept").ok());
  const auto import_at = [&](const std::string& node, const std::string& address) {
    daemon_address_ = address;
    Register(node);
    v1::PublishArtifactRequest first;
    *first.mutable_node() = Identity(node);
    first.mutable_origin()->add_objects()->set_uri("/models/m");
    const auto published = PublishBytes(manifest->bytes(), first);
    ASSERT_TRUE(published.ok()) << published.status();
    PublishComparison(first, *manifest);
  };
  const std::string answers = daemon_address_;
  const Mute mute;
  for (const char* silent : {"n1", "n2", "n3", "n4"}) import_at(silent, mute.address());
  import_at("z", answers);
  // A daemon waits no longer than that for consent.
  const RequestContext guard = RequestContext::Background(absl::Seconds(5));
  v1::RequestEvictionRequest request;
  *request.mutable_node() = Identity("a");
  request.set_replica_id("kept");
  const auto decision = rpc::CallUnary(*stub_, &Stub::RequestEviction, guard, request);
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_TRUE(decision->granted()) << decision->reason();
}

TEST_F(OriginsOfNodes, OriginCheckThatFails_IsRepeatedSoon) {
  daemon_service_.checking_fails_with = absl::StatusCode::kResourceExhausted;
  EXPECT_THAT(AskToEvict().reason(), HasSubstr("could not check its imported files (it could not)"));
  daemon_service_.checking_fails_with = absl::StatusCode::kOk;
  Pass(absl::Seconds(3));
  EXPECT_TRUE(AskToEvict().granted());
}

TEST_F(OriginsOfNodes, OriginOfSilentDaemon_DoesNotCountAsCopy) {
  daemon_.reset();
  const v1::RequestEvictionResponse refused = AskToEvict();
  EXPECT_FALSE(refused.granted());
  EXPECT_THAT(refused.reason(), HasSubstr("does not answer"));
}

TEST_F(GlobalStoreServerTest, Heartbeat_SaysIntervalAndTtl) {
  Register("a");
  const auto heartbeat = Beat("a");
  ASSERT_TRUE(heartbeat.ok()) << heartbeat.status();
  EXPECT_EQ(heartbeat->heartbeat_interval().seconds(), 2);
  EXPECT_EQ(heartbeat->node_ttl().seconds(), 10);
}

TEST_F(GlobalStoreServerTest, RefusedCall_CarriesRetryAfter) {
  options_.max_waiting_calls = 0;
  Restart();
  v1::HeartbeatRequest request;
  *request.mutable_node() = Identity("a");
  const absl::Status refused =
      rpc::CallUnary(*stub_, &Stub::Heartbeat, Context(), request, {.retry_for = absl::ZeroDuration()})
          .status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_TRUE(rpc::RetryAfterOf(refused).has_value()) << refused;
}

}  // namespace
}  // namespace tensorcast::global_store::nodes_test
