#include "daemon/service/store_daemon_service.h"

#include <grpcpp/channel.h>

#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/testing/eventually.h"
#include "core/handles/ring_filler.h"
#include "daemon/service/service_fixture.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/server.h"

namespace tensorcast::daemon::store_daemon_service_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Stub = v1::StoreDaemon::Stub;

// The service on a unix socket, called as clients and other daemons call it.
class StoreDaemonServiceTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    origins_ = std::make_unique<OriginChecker>(imports, [](const ObjectIdentity&) { return false; });
    explainer_ = std::make_unique<TransferExplainer>(
        TransferExplainer::Options{.status = status.get(), .global_store = &store, .peers = &peers});
    service_ = MakeStoreDaemonService({.node = &node,
                                       .engine = engine.get(),
                                       .materializer = materializer.get(),
                                       .ingester = ingester.get(),
                                       .status = status.get(),
                                       .explainer = explainer_.get(),
                                       .servings = servings.get(),
                                       .sessions = sessions.get(),
                                       .origins = origins_.get(),
                                       .link = link.get(),
                                       .quick = &quick_,
                                       .waiting = &waiting_});
    auto server = rpc::Server::Start(
        {.listen = {absl::StrCat("unix:", folder, "/daemon.sock")}, .services = {service_.get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::StoreDaemon::NewStub(rpc::MakeChannel(server_->addresses().front()));
  }

  template <class Request, class Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request) {
    return rpc::CallUnary(*stub_, method, context, request,
                          {.retry_for = absl::ZeroDuration(), .what = "call"});
  }

  std::vector<std::string> ListedReplicas(const std::string& artifact_id = "") {
    v1::ListReplicasRequest request;
    request.set_artifact_id(artifact_id);
    const auto response = Call(&Stub::ListReplicas, request);
    EXPECT_TRUE(response.ok()) << response.status();
    std::vector<std::string> ids;
    if (response.ok()) {
      for (const v1::Replica& replica : response->replicas()) ids.push_back(replica.replica_id());
    }
    return ids;
  }

  std::unique_ptr<OriginChecker> origins_;
  std::unique_ptr<TransferExplainer> explainer_;
  rpc::Executor quick_{rpc::Executor::Options{.max_threads = 4}};
  static constexpr int kWaitingThreads = 4;
  rpc::Executor waiting_{rpc::Executor::Options{.max_threads = kWaitingThreads}};
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(StoreDaemonServiceTest, ListReplicas_FiltersByArtifact) {
  EXPECT_THAT(ListedReplicas(), ElementsAre());
  const std::string replica_id = MakeReplica();
  EXPECT_THAT(ListedReplicas(), ElementsAre(replica_id));
  EXPECT_THAT(ListedReplicas(artifact.manifest->id()), ElementsAre(replica_id));
  EXPECT_THAT(ListedReplicas("another"), ElementsAre());
}

TEST_F(StoreDaemonServiceTest, Materialize_SendsManifestUnlessItIsKnown) {
  MakeReplica();
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(artifact.manifest->id());
  const auto received = [&] {
    std::string bytes;
    const absl::Status status = rpc::CallServerStream(*stub_, &Stub::MaterializeReplica, context, request,
                                                      [&bytes](v1::MaterializeReplicaResponse&& next) {
                                                        bytes += next.manifest_piece();
                                                        return absl::OkStatus();
                                                      });
    EXPECT_TRUE(status.ok()) << status;
    return bytes;
  };
  EXPECT_EQ(received(), "");
  request.set_manifest(true);
  EXPECT_EQ(received(), artifact.manifest->bytes());
  request.add_known_manifests(artifact.manifest->id());
  EXPECT_EQ(received(), "");
}

TEST_F(StoreDaemonServiceTest, MaterializeWithAttach_SendsHandleSocketFirst) {
  MakeReplica();
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(artifact.manifest->id());
  request.set_attach(true);
  std::vector<v1::MaterializeReplicaResponse::EventCase> events;
  const absl::Status status = rpc::CallServerStream(*stub_, &Stub::MaterializeReplica, context, request,
                                                    [&events](v1::MaterializeReplicaResponse&& next) {
                                                      events.push_back(next.event_case());
                                                      return absl::OkStatus();
                                                    });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front(), v1::MaterializeReplicaResponse::kHandleSocket);
  EXPECT_EQ(events.back(), v1::MaterializeReplicaResponse::kResult);
}

TEST_F(StoreDaemonServiceTest, ListWithChunks_TellsWhichChunksAReplicaHas) {
  MakeReplica();
  v1::ListReplicasRequest request;
  const auto without = Call(&Stub::ListReplicas, request);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->replicas(0).chunk_bits(), "");
  request.set_chunk_bits(true);
  const auto with = Call(&Stub::ListReplicas, request);
  ASSERT_TRUE(with.ok()) << with.status();
  const v1::Replica& whole = with->replicas(0);
  ASSERT_GT(whole.chunks_total(), 0u);
  uint32_t bits = 0;
  for (const char byte : whole.chunk_bits()) bits += std::popcount(static_cast<unsigned char>(byte));
  EXPECT_EQ(bits, whole.chunks_total());
  EXPECT_EQ(whole.chunk_bits().size(), (whole.chunks_total() + 7) / 8);
}

TEST_F(StoreDaemonServiceTest, PinnedReplica_IsEvictedOnlyAfterUnpin) {
  const std::string replica_id = MakeReplica();
  v1::PinReplicaRequest pin;
  pin.set_replica_id(replica_id);
  ASSERT_TRUE(Call(&Stub::PinReplica, pin).ok());
  v1::EvictReplicaRequest evict;
  evict.set_replica_id(replica_id);
  EXPECT_EQ(Call(&Stub::EvictReplica, evict).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(ListedReplicas(), ElementsAre(replica_id));
  v1::UnpinReplicaRequest unpin;
  unpin.set_replica_id(replica_id);
  ASSERT_TRUE(Call(&Stub::UnpinReplica, unpin).ok());
  EXPECT_TRUE(Call(&Stub::EvictReplica, evict).ok());
  EXPECT_THAT(ListedReplicas(), ElementsAre());
}

TEST_F(StoreDaemonServiceTest, CheckOrigin_ChecksOwnOriginsAndRefusesOthers) {
  const auto imported = Import(WriteModel("m.safetensors"));
  ASSERT_TRUE(imported.ok()) << imported.status();
  v1::CheckOriginRequest request;
  *request.mutable_origin() = store.published[0].second.origin();
  const auto intact = Call(&Stub::CheckOrigin, request);
  ASSERT_TRUE(intact.ok()) << intact.status();
  EXPECT_TRUE(intact->intact()) << intact->reason();
  std::filesystem::remove(folder + "/models/m.safetensors");
  const auto gone = Call(&Stub::CheckOrigin, request);
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_FALSE(gone->intact());
  request.mutable_origin()->set_node_id("another");
  EXPECT_EQ(Call(&Stub::CheckOrigin, request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoreDaemonServiceTest, ExplainTransfer_ReturnsHopsOfKnownTransfer) {
  transfers.Add({.transfer_id = "t", .replica_id = "r"});
  v1::ExplainTransferRequest request;
  request.set_transfer_id("t");
  const auto explained = Call(&Stub::ExplainTransfer, request);
  ASSERT_TRUE(explained.ok()) << explained.status();
  ASSERT_EQ(explained->hops_size(), 1);
  EXPECT_EQ(explained->hops(0).transfer().replica_id(), "r");
  request.set_transfer_id("another");
  EXPECT_TRUE(absl::IsNotFound(Call(&Stub::ExplainTransfer, request).status()));

  v1::DescribeHopRequest asked;
  asked.set_replica_id("r");
  EXPECT_EQ(Call(&Stub::DescribeHop, asked)->transfer().transfer_id(), "t");
  // A transfer that failed before it had a replica belongs to none.
  transfers.Add({.transfer_id = "without"});
  asked.clear_replica_id();
  EXPECT_FALSE(Call(&Stub::DescribeHop, asked)->has_transfer());
}

TEST_F(StoreDaemonServiceTest, PutWaitsForAThread_RingOutlivesTheStallTimeout) {
  const auto filler = RingFiller::Open(handles->path(), artifact.image.size(), context.deadline);
  ASSERT_TRUE(filler.ok()) << filler.status();
  const uint64_t each = handles->put_ring_bytes();
  ASSERT_TRUE((*filler)
                  ->Start(
                      2,
                      [this](int, uint64_t offset, HostSpan to) {
                        std::memcpy(to.data(), artifact.image.data() + offset, to.size());
                        return absl::OkStatus();
                      },
                      nullptr)
                  .ok());
  v1::PutArtifactRequest request = DescribeArtifact();
  request.set_offer_token((*filler)->token());
  // Shared with the tasks: one thread wakes the next, and the test may end while the last of them still wake.
  // No assertion may end the test between here and Notify, since the executor's end waits for the tasks.
  const auto release = std::make_shared<absl::Notification>();
  for (int i = 0; i < kWaitingThreads; ++i) {
    EXPECT_TRUE(waiting_.Schedule([release] { release->WaitForNotification(); }).ok());
  }
  std::optional<v1::PutArtifactResult> result;
  absl::Status status;
  std::thread put([&] {
    status = rpc::CallBidiStream(
        *stub_, &Stub::PutArtifact, context, 1, [&](size_t) { return request; },
        [&](v1::PutArtifactResponse&& response) {
          if (response.has_result()) result = response.result();
          return absl::OkStatus();
        },
        {.retry_for = absl::ZeroDuration(), .what = "put"});
  });
  // One that no call names is taken back when its time has passed. That of the first was over before.
  const auto unnamed = RingFiller::Open(handles->path(), artifact.image.size(), context.deadline);
  EXPECT_TRUE(unnamed.ok()) << unnamed.status();
  EXPECT_TRUE(testing::Eventually([&] { return handles->put_ring_bytes() == each; }));
  release->Notify();
  put.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(result.has_value());
}

TEST_F(StoreDaemonServiceTest, DrainingDaemon_RefusesOpenPull) {
  node.Drain();
  const absl::Status refused = Call(&Stub::OpenPull, v1::OpenPullRequest()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("stopping"));
  const auto report = Call(&Stub::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->node().draining());
}

}  // namespace
}  // namespace tensorcast::daemon::store_daemon_service_test
