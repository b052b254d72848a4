#include "cli/dashboard/documents.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/executor.h"
#include "rpc/handlers.h"
#include "rpc/server.h"

namespace tensorcast::dashboard::documents_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A global store in this process, with nodes and a key that the test sets before it asks.
class FakeStore final : public v1::GlobalStore::CallbackService {
 public:
  explicit FakeStore(const std::string& folder) : address_(absl::StrCat("unix:", folder, "/store.sock")) {
    auto server = rpc::Server::Start({.listen = {address_}, .services = {this}});
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }
  const std::string& address() const { return address_; }

  void AddNode(int number, const std::string& zone, const std::string& rack) {
    v1::Node& node = *cluster.add_nodes();
    node.set_node_id(absl::StrCat("id-", number));
    node.set_name(absl::StrCat("node-", absl::Dec(number, absl::kZeroPad5)));
    node.set_grpc_address(address_ + ".none");  // no daemon listens there
    (*node.mutable_labels())["zone"] = zone;
    (*node.mutable_labels())["rack"] = rack;
    v1::Pool& pool = *node.add_pools();
    pool.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
    pool.set_capacity_bytes(100);
    pool.set_used_bytes(7);
  }

  grpc::ServerUnaryReactor* GetClusterStatus(grpc::CallbackServerContext* call,
                                             const v1::GetClusterStatusRequest* request,
                                             v1::GetClusterStatusResponse* response) override {
    return rpc::HandleUnary(call, executor_, [this, request, response](const RequestContext&) {
      if (request->page_token().empty()) ++status_calls;
      const int first = request->page_token().empty() ? 0 : std::stoi(request->page_token());
      const int end = std::min(first + 1000, cluster.nodes_size());
      for (int i = first; i < end; ++i) *response->add_nodes() = cluster.nodes(i);
      if (end < cluster.nodes_size()) response->set_next_page_token(absl::StrCat(end));
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* ResolveKey(grpc::CallbackServerContext* call,
                                       const v1::ResolveKeyRequest* request,
                                       v1::ResolveKeyResponse* response) override {
    return rpc::HandleUnary(call, executor_,
                            [this, request, response](const RequestContext&) -> absl::Status {
                              if (request->key() != key.name()) {
                                return absl::NotFoundError("there is no such key");
                              }
                              *response->mutable_key() = key;
                              return absl::OkStatus();
                            });
  }
  // Two replicas a message, as for an artifact with many.
  grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* DescribeArtifact(
      grpc::CallbackServerContext* call, const v1::DescribeArtifactRequest* request) override {
    using Response = v1::DescribeArtifactResponse;
    return rpc::HandleWriteStreamAsync<Response>(
        call, executor_,
        [this, id = request->artifact_id()](const RequestContext&,
                                            std::shared_ptr<rpc::StreamWriter<Response>> writer,
                                            const rpc::Finisher& finisher) {
          const auto found = holders.find(id);
          if (found == holders.end()) {
            return finisher.Finish(absl::NotFoundError("there is no such artifact"));
          }
          Response response;
          response.mutable_artifact()->set_artifact_id(id);
          for (const std::string& node_id : found->second) {
            v1::Replica& replica = *response.mutable_artifact()->add_replicas();
            replica.set_node_id(node_id);
            replica.set_replica_id("r");
            replica.set_state(v1::REPLICA_STATE_READY);
            if (response.artifact().replicas_size() < 2) continue;
            if (!writer->Write(std::move(response)).ok()) break;
            response = Response();
            response.mutable_artifact()->set_artifact_id(id);
          }
          finisher.Finish(writer->Write(std::move(response)));
        });
  }

  v1::GetClusterStatusResponse cluster;
  v1::Key key;
  std::map<std::string, std::vector<std::string>> holders;  // nodes with a replica, by artifact id
  std::atomic<int> status_calls = 0;

 private:
  const std::string address_;
  rpc::Executor executor_;
  std::unique_ptr<rpc::Server> server_;
};

class DocumentsTest : public ::testing::Test {
 protected:
  json Make(const std::string& view, const Query& query = {}) {
    const absl::StatusOr<json> made = documents_.Make(view, query);
    EXPECT_TRUE(made.ok()) << view << ": " << made.status();
    return made.value_or(json());
  }

  tensorcast::testing::TempFolder folder_;
  FakeStore store_{folder_.path()};
  Documents documents_{[this] {
    Documents::Options options;
    options.connect = [address = store_.address()]() -> absl::StatusOr<client::ClientOptions> {
      client::ClientOptions client;
      client.daemon = address;
      return client;
    };
    options.version = "1.2.3";
    return options;
  }()};
};

TEST_F(DocumentsTest, BesideAGlobalStore_StatusHasNoDaemon) {
  store_.AddNode(1, "a", "r");
  const json status = Make("status");
  EXPECT_FALSE(status.contains("daemon"));
  EXPECT_EQ(status["nodes"], 1);
  EXPECT_EQ(status["version"], "1.2.3");
  EXPECT_TRUE(status["problems"].empty()) << status;
}

TEST_F(DocumentsTest, Zones_SumNodesByZoneAndRack) {
  store_.AddNode(1, "a", "r1");
  store_.AddNode(2, "a", "r1");
  store_.AddNode(3, "b", "");
  store_.cluster.mutable_nodes(1)->set_draining(true);
  store_.cluster.mutable_nodes(1)->add_unhealthy_devices(0);
  const json zones = Make("zones");
  ASSERT_EQ(zones["zones"].size(), 2u) << zones;
  const json& rack = zones["zones"][0]["racks"][0];
  EXPECT_EQ(rack["nodes"], 2);
  EXPECT_EQ(rack["draining"], 1);
  EXPECT_EQ(rack["unhealthy"], 1);
  EXPECT_EQ(rack["asked"], 0) << "no daemon listens there";
  EXPECT_EQ(rack["protocol_versions"], (json{{"0", 2}}));
  EXPECT_EQ(rack["pools"][0]["capacity_bytes"], 200);
  EXPECT_EQ(rack["pools"][0]["used_bytes"], 14);
}

TEST_F(DocumentsTest, TenThousandNodes_FitTheirDocumentsAndCostOneCall) {
  for (int i = 0; i < 10'000; ++i) store_.AddNode(i, absl::StrCat("z", i % 10), absl::StrCat("r", i % 200));
  EXPECT_LT(Make("zones").dump().size(), kMaxDocumentBytes);
  EXPECT_LT(Make("status").dump().size(), kMaxDocumentBytes);
  std::set<std::string> seen;
  Query query = {{"page_size", "1000"}};
  for (int pages = 0; pages < 20; ++pages) {
    const json page = Make("nodes", query);
    EXPECT_LT(page.dump().size(), kMaxDocumentBytes);
    EXPECT_EQ(page["total"], 10'000);
    for (const json& node : page["nodes"]) seen.insert(node.value("name", ""));
    query["page_token"] = page.value("next_page_token", "");
    if (query["page_token"] == "") break;
  }
  EXPECT_EQ(seen.size(), 10'000u);
  EXPECT_LE(store_.status_calls, 3) << "views and tabs share the store's answer for a second and more";
  EXPECT_EQ(Make("nodes", {{"zone", "z3"}, {"rack", "r13"}})["total"], 50);
  EXPECT_EQ(Make("nodes", {{"q", "node-00017"}})["total"], 1);
}

TEST_F(DocumentsTest, Key_CountsNodesByTheNewestVersionThatTheyHave) {
  for (int i = 0; i < 4; ++i) store_.AddNode(i, "a", "r");
  store_.key.set_name("llama/prod");
  store_.key.set_artifact_id("new");
  store_.key.set_revision(5);
  v1::KeyVersion& earlier = *store_.key.add_earlier();
  earlier.set_artifact_id("old");
  earlier.set_revision(3);
  store_.holders = {{"new", {"id-0"}}, {"old", {"id-0", "id-1", "id-2"}}};
  const json key = Make("key", {{"name", "llama/prod"}});
  EXPECT_EQ(key["registered"], 4);
  EXPECT_EQ(key["total"], 3);
  EXPECT_EQ(key["revisions"][0]["nodes"], 1);
  EXPECT_EQ(key["revisions"][1]["nodes"], 2);
  EXPECT_EQ(key["nodes"][0]["behind"], 2) << "those that are furthest behind come first";
  EXPECT_EQ(key["nodes"][2]["name"], "node-00000");
  EXPECT_EQ(key["nodes"][2]["behind"], 0);
}

TEST_F(DocumentsTest, WrongNamesAndParameters_AreErrors) {
  EXPECT_EQ(documents_.Make("none", {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(documents_.Make("node", {{"node", "none"}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(documents_.Make("key", {{"name", "none"}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(documents_.Make("artifact", {}).status().code(), absl::StatusCode::kInvalidArgument);
  store_.AddNode(1, "a", "r");
  const absl::Status state = documents_.Make("nodes", {{"state", "tired"}}).status();
  EXPECT_THAT(state.message(), HasSubstr("give ok, draining"));
}

TEST_F(DocumentsTest, NodeThatDoesNotAnswer_IsShownWithItsProblem) {
  store_.AddNode(1, "a", "r");
  const json node = Make("node", {{"node", "node-00001"}});
  EXPECT_EQ(node["node"]["node_id"], "id-1");
  EXPECT_FALSE(node.contains("status"));
  EXPECT_EQ(node["problems"][0]["subject"], "node node-00001");
  const json transfers = Make("transfers");
  EXPECT_EQ(transfers["asked"], 0);
  EXPECT_EQ(transfers["problems"].size(), 1u);
}

}  // namespace
}  // namespace tensorcast::dashboard::documents_test
