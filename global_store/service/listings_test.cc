// Listings of a large fleet over a real socket: each page is a message that arrives.
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/testing/temp_folder.h"
#include "global_store/coordinator/coordinator.h"
#include "global_store/metadata/metadata_store.h"
#include "global_store/service/global_store_service.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/admission_queue.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/executor.h"
#include "rpc/server.h"

namespace tensorcast::global_store::listings_test {
namespace {

using Stub = v1::GlobalStore::Stub;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr size_t kReplicas = 150'000;
constexpr size_t kNodes = 20'000;
constexpr size_t kMaxPages = 1000;  // a token that leads back ends the test

class ListingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto coordinator = Coordinator::Create({}, metadata_.get(), &secrets_);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    coordinator_ = *std::move(coordinator);
    service_ = MakeGlobalStoreService(coordinator_.get(), &admission_, {.own_host_only = true});
    auto server = rpc::Server::Start(
        {.listen = {absl::StrCat("unix:", folder_.path(), "/store.sock")}, .services = {service_.get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::GlobalStore::NewStub(rpc::MakeChannel(server_->addresses()[0]));
  }

  static std::string NodeId(size_t i) {
    return absl::StrCat("00000000-0000-4000-8000-", 100'000'000'000 + i);
  }
  static std::string NodeName(size_t i) { return absl::StrCat("gpu-node-", i); }

  // Without calls, which take a second a thousand.
  void AddNodes(size_t count) {
    const absl::Status added = coordinator_->WithDirectory([&](Directory& directory, SteadyTime now) {
      for (size_t i = 0; i < count; ++i) {
        const NodeFacts node{.node_id = NodeId(i),
                             .name = NodeName(i),
                             .incarnation = 1,
                             .host_id = absl::StrCat("host of ", NodeName(i)),
                             .grpc_address = absl::StrCat(NodeName(i), ".cluster.example:7070"),
                             .lanes = {"ucx", "tcp"},
                             .labels = {{"zone", "z1"}, {"rack", absl::StrCat("rack-", i / 32)}}};
        const std::vector<PoolFacts> pools(9, {.location = {LocationKind::kCpu}, .capacity_bytes = 1});
        TC_RETURN_IF_ERROR(directory.RegisterNode(node, pools, now).status());
      }
      return absl::OkStatus();
    });
    ASSERT_TRUE(added.ok()) << added;
  }

  // One artifact, and so many replicas of it, on the first node.
  void AddReplicas(const std::string& artifact_id, size_t count) {
    const auto published =
        coordinator_->Mutate("", [&](const Directory&, absl::Time now) -> absl::StatusOr<Change> {
          const ArtifactRecord record{.artifact_id = artifact_id, .created = now, .updated = now};
          return Change{.facts = {.artifacts = {record}}, .manifests = {ManifestBlob{artifact_id, "bytes"}}};
        });
    ASSERT_TRUE(published.ok()) << published.status();
    std::vector<ReplicaInfo> replicas;
    for (size_t i = 0; i < count; ++i) {
      replicas.push_back({.id = absl::StrCat("11111111-0000-4000-8000-", 100'000'000'000 + i),
                          .artifact_id = artifact_id,
                          .location = {LocationKind::kCpu},
                          .state = ReplicaState::kReady});
    }
    const auto updated = coordinator_->WithDirectory([&](Directory& directory, SteadyTime now) {
      return directory.UpdateReplicas({NodeId(0), 1}, 1, replicas, now);
    });
    ASSERT_TRUE(updated.ok()) << updated.status();
  }

  template <class Request, class Response>
  Response Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                const Request& request) {
    const auto response =
        rpc::CallUnary(*stub_, method, RequestContext::Background(absl::Seconds(60)), request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(Response());
  }

  const tensorcast::testing::TempFolder folder_;
  std::unique_ptr<MetadataStore> metadata_ = MakeMemoryStore();
  RandomSecrets secrets_;
  rpc::Executor executor_{rpc::Executor::Options{.max_queued = rpc::AdmissionQueue::RoomFor({})}};
  rpc::AdmissionQueue admission_{&executor_, {}};
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(ListingsTest, ListArtifacts_BringsEveryReplicaInPages) {
  AddNodes(1);
  const std::string id(60, 'x');
  AddReplicas(id, kReplicas);
  v1::ListArtifactsRequest request;
  request.set_page_size(1000);
  // Counted they are a line.
  const v1::ListArtifactsResponse counted = Call(&Stub::ListArtifacts, request);
  ASSERT_THAT(counted.artifacts(), SizeIs(1));
  EXPECT_EQ(counted.artifacts(0).replica_count(), kReplicas);
  EXPECT_THAT(counted.artifacts(0).replicas(), SizeIs(0));
  EXPECT_LT(counted.ByteSizeLong(), 1000u);

  request.set_replicas(true);
  std::set<std::string> seen;
  size_t pages = 0;
  do {
    const v1::ListArtifactsResponse page = Call(&Stub::ListArtifacts, request);
    ASSERT_THAT(page.artifacts(), SizeIs(1));
    EXPECT_EQ(page.artifacts(0).artifact_id(), id);
    EXPECT_EQ(page.artifacts(0).replica_count(), kReplicas);
    EXPECT_LT(page.ByteSizeLong(), static_cast<size_t>(rpc::kMaxMessageBytes) / 4);
    for (const v1::Replica& replica : page.artifacts(0).replicas()) seen.insert(replica.replica_id());
    request.set_page_token(page.next_page_token());
    ASSERT_LT(++pages, kMaxPages);
  } while (!request.page_token().empty());
  EXPECT_EQ(seen.size(), kReplicas);
}

TEST_F(ListingsTest, DescribeArtifact_StreamsEveryReplicaThenTheManifest) {
  AddNodes(1);
  AddReplicas("x", kReplicas);
  v1::DescribeArtifactRequest request;
  request.set_artifact_id("x");
  request.set_manifest(true);
  std::set<std::string> seen;
  std::string manifest;
  const absl::Status status =
      rpc::CallServerStream(*stub_, &Stub::DescribeArtifact, RequestContext::Background(absl::Seconds(60)),
                            request, [&](v1::DescribeArtifactResponse&& message) {
                              EXPECT_TRUE(manifest.empty() || !message.has_artifact());
                              for (const v1::Replica& replica : message.artifact().replicas()) {
                                seen.insert(replica.replica_id());
                              }
                              manifest += message.manifest_piece();
                              return absl::OkStatus();
                            });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen.size(), kReplicas);
  EXPECT_EQ(manifest, "bytes");
}

TEST_F(ListingsTest, DescribeArtifactByKey_SendsKeyAndManifest) {
  AddNodes(1);
  AddReplicas("x", 1);
  v1::BindKeyRequest bind;
  bind.set_key("k");
  bind.set_artifact_id("x");
  Call(&Stub::BindKey, bind);
  v1::DescribeArtifactRequest request;
  request.set_key("k");
  request.set_manifest(true);
  v1::DescribeArtifactResponse all;
  std::string manifest;
  const absl::Status status =
      rpc::CallServerStream(*stub_, &Stub::DescribeArtifact, RequestContext::Background(absl::Seconds(60)),
                            request, [&](v1::DescribeArtifactResponse&& message) {
                              manifest += message.manifest_piece();
                              all.MergeFrom(message);
                              return absl::OkStatus();
                            });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(all.key().artifact_id(), "x");
  EXPECT_EQ(all.key().revision(), 1u);
  EXPECT_FALSE(all.has_artifact());
  EXPECT_EQ(manifest, "bytes");
  request.set_key("other");
  const absl::Status missing =
      rpc::CallServerStream(*stub_, &Stub::DescribeArtifact, RequestContext::Background(absl::Seconds(60)),
                            request, [](v1::DescribeArtifactResponse&&) { return absl::OkStatus(); });
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
}

TEST_F(ListingsTest, GetClusterStatus_BringsEveryNodeInPages) {
  AddNodes(kNodes);
  v1::GetClusterStatusRequest request;
  std::set<std::string> seen;
  size_t pages = 0;
  do {
    const v1::GetClusterStatusResponse page = Call(&Stub::GetClusterStatus, request);
    EXPECT_LT(page.ByteSizeLong(), static_cast<size_t>(rpc::kMaxMessageBytes) / 4);
    for (const v1::Node& node : page.nodes()) EXPECT_TRUE(seen.insert(node.name()).second) << node.name();
    request.set_page_token(page.next_page_token());
    ASSERT_LT(++pages, kMaxPages);
  } while (!request.page_token().empty());
  EXPECT_EQ(seen.size(), kNodes);
  EXPECT_GT(pages, 1u);

  request.set_page_size(7);
  EXPECT_THAT(Call(&Stub::GetClusterStatus, request).nodes(), SizeIs(7));
}

TEST_F(ListingsTest, GetClusterStatus_FindsTheNodesThatAreNamed) {
  AddNodes(kNodes);
  v1::GetClusterStatusRequest request;
  for (const size_t i : {size_t{3}, kNodes - 1, kNodes}) request.add_node_names(NodeName(i));
  const v1::GetClusterStatusResponse named = Call(&Stub::GetClusterStatus, request);
  std::vector<std::string> ids;
  for (const v1::Node& node : named.nodes()) ids.push_back(node.node_id());
  EXPECT_THAT(ids, ElementsAre(NodeId(kNodes - 1), NodeId(3)));  // in the order of their names
  EXPECT_EQ(named.next_page_token(), "");
}

TEST_F(ListingsTest, GetClusterStatus_RefusesANegativePageSize) {
  v1::GetClusterStatusRequest request;
  request.set_page_size(-1);
  const auto refused =
      rpc::CallUnary(*stub_, &Stub::GetClusterStatus, RequestContext::Background(absl::Seconds(60)), request);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcast::global_store::listings_test
