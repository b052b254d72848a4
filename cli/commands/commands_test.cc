// The commands against a daemon in this process, which works alone: what they print, in both forms, and how
// they refuse. tests/e2e/cli_e2e_test has them as processes, on a cluster.
#include "cli/commands/commands.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/posix/unix_socket.h"
#include "base/steady_time.h"
#include "cli/commands/run_for_test.h"
#include "cli/commands/server_options.h"
#include "cli/config/config.h"
#include "core/artifact/manifest.h"
#include "core/artifact/test_util.h"
#include "daemon/app/daemon_server.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/protocol_version.h"
#include "tools/workshop/model/llama_model.h"

namespace tensorcast::cli::commands_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

// What outlives a test, so that a daemon starts once.
struct Deployment {
  std::string folder;
  std::unique_ptr<global_store::GlobalStoreServer> store;
  std::unique_ptr<daemon::DaemonServer> daemon;
};

class CommandsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    deployment = new Deployment;
    deployment->folder = ::testing::TempDir() + "/commands_test";
    std::filesystem::create_directories(deployment->folder);
    auto config = config::Parse(
        "", "",
        {"daemon.state_dir=" + deployment->folder + "/node", "daemon.host_pool=192MiB",
         "daemon.device_runtime=none", "daemon.import_roots=" + deployment->folder, "daemon.name=alone"});
    ASSERT_TRUE(config.ok()) << config.status();
    auto options = ReadServerOptions(*config, Roles::kDaemon);
    ASSERT_TRUE(options.ok()) << options.status();
    auto store = StartEmbeddedStore(*options);
    ASSERT_TRUE(store.ok()) << store.status();
    deployment->store = *std::move(store);
    auto daemon = daemon::DaemonServer::Start(std::move(options->daemon));
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    deployment->daemon = *std::move(daemon);
    ASSERT_TRUE(deployment->daemon->WaitRegistered(SteadyNow() + absl::Seconds(30)).ok());
  }
  static void TearDownTestSuite() {
    deployment->daemon.reset();
    std::filesystem::remove_all(deployment->folder);
    delete deployment;
  }

  // Every test begins with a store that knows nothing.
  void SetUp() override {
    const nlohmann::json listed = Json({"key", "ls"});
    for (const auto& key : listed.value("keys", nlohmann::json::array())) {
      Good({"key", "rm", key.value("name", "")});
    }
    Good({"gc", "--older-than", "0s"});
    // The daemon drops them by itself, but with its next heartbeat. One that is going already is refused.
    const nlohmann::json held = Json({"replica", "ls"});
    for (const auto& replica : held.value("replicas", nlohmann::json::array())) {
      Run({"replica", "rm", replica.value("replica_id", ""), "--force"});
    }
  }

  static RunResult RunBare(const Words& words) { return RunForTest(AllCommands(), words); }
  static RunResult Run(Words words) {
    words.insert(words.end(), {"--daemon", "unix:" + deployment->folder + "/node/daemon.sock"});
    return RunBare(words);
  }
  static std::string Good(const Words& words) {
    const RunResult result = Run(words);
    EXPECT_EQ(result.code, 0) << words[0] << ": " << result.err;
    return result.out;
  }
  static nlohmann::json Json(Words words) {
    words.push_back("--json");
    return nlohmann::json::parse(Good(words), nullptr, /*allow_exceptions=*/false);
  }
  // Refused with this code, and these words on stderr; nothing on stdout.
  static void Bad(const Words& words, int code, const std::string& said) {
    const RunResult result = Run(words);
    EXPECT_EQ(result.code, code) << words[0];
    EXPECT_THAT(result.err, HasSubstr(said)) << words[0];
    EXPECT_THAT(result.out, IsEmpty()) << words[0];
  }

  static std::string Path(const std::string& name) { return deployment->folder + "/" + name; }
  static std::string Model(int seed = 1) {
    const std::string path = Path(absl::StrCat("model-", seed, ".safetensors"));
    if (!std::filesystem::exists(path)) {
      const absl::Status written =
          WriteLlamaModel(path, {.bytes = uint64_t{4} << 20, .seed = static_cast<uint64_t>(seed)});
      EXPECT_TRUE(written.ok()) << written;
    }
    return path;
  }

  static Deployment* deployment;
};

Deployment* CommandsTest::deployment = nullptr;

TEST_F(CommandsTest, Put_PrintsArtifactKeyAndRate) {
  const std::string first = Good({"put", Model(), "--key", "first"});
  EXPECT_THAT(first, StartsWith("tc2:"));
  EXPECT_THAT(first, HasSubstr("key first, revision 1\n"));
  EXPECT_THAT(first, HasSubstr("B/s"));
  EXPECT_THAT(first, Not(HasSubstr("already stored")));
  EXPECT_THAT(Good({"put", Model()}), HasSubstr(" (was already stored)\n"));
}

TEST_F(CommandsTest, PutJson_HasFieldsOfTheProto) {
  const nlohmann::json put = Json({"put", Model(), "--key", "json"});
  EXPECT_THAT(put.value("artifact_id", ""), StartsWith("tc2:"));
  EXPECT_EQ(put.value("key_revision", ""), "1");
  EXPECT_EQ(put["replica"].value("state", ""), "REPLICA_STATE_READY");
  EXPECT_TRUE(put.contains("transfer"));
}

TEST_F(CommandsTest, PutWithInvalidFlagsOrFile_IsRefused) {
  Bad({"put", Model(), "--expect-revision", "1"}, 1, ": --expect-revision needs --key");
  Bad({"put", Model(), "--keep", "3"}, 1, ": --keep needs --key");
  for (const char* const keep : {"0", "1001", "-1", "x"}) {
    Bad({"put", Model(), "--key", "k", "--keep", keep}, 2, "--keep");
  }
  Bad({"put", ""}, 1, "the path of the model is empty");
  Bad({"put", Path("none.safetensors")}, 1, "none.safetensors");
  Bad({"put", "/etc/hostname"}, 1, "not a safetensors file");
  Bad({"put", Model(), "--key", ""}, 2, "--key");
}

TEST_F(CommandsTest, GetOut_PrintsReplicaAndWritesFile) {
  const std::string id = Json({"put", Model(), "--key", "m"}).value("artifact_id", "");
  const std::string out = Path("out.safetensors");
  const std::string got = Good({"get", "m", "--out", out});
  EXPECT_THAT(got, StartsWith(id + "\nreplica "));
  EXPECT_THAT(got, HasSubstr(" at cpu\nthe replica was already there\nwrote " + out + "\n"));
  EXPECT_EQ(Json({"put", out}).value("artifact_id", ""), id) << "the same tensors are the same artifact";

  const nlohmann::json json = Json({"get", id});
  EXPECT_EQ(json.value("artifact_id", ""), id);
  EXPECT_EQ(json.value("already_present", false), true);
  EXPECT_EQ(json["replica"].value("state", ""), "REPLICA_STATE_READY");
}

// A folder of the same tensors each time, with another config.json.
TEST_F(CommandsTest, GetIdOut_WritesFilesOnWhichKeysAgree) {
  const std::string model = Path("with-files");
  std::filesystem::create_directories(model);
  std::filesystem::copy(Model(), model + "/model.safetensors",
                        std::filesystem::copy_options::overwrite_existing);
  const auto put = [&](const std::string& key, const std::string& config) {
    std::ofstream(model + "/config.json") << config;
    return Json({"put", model, "--key", key}).value("artifact_id", "");
  };
  const auto config_of = [](const std::string& folder) {
    std::string config;
    std::getline(std::ifstream(folder + "/config.json"), config);
    return config;
  };
  const std::string id = put("a", "{\"n\": 1}");
  Good({"put", Model(), "--key", "bare"});
  EXPECT_EQ(put("b", "{\"n\": 1}"), id);
  Good({"get", id, "--out", Path("agreed")});
  EXPECT_EQ(config_of(Path("agreed")), "{\"n\": 1}");

  EXPECT_EQ(put("b", "{\"n\": 2}"), id);
  const RunResult got = Run({"get", id, "--out", Path("disputed")});
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.err, HasSubstr("get one of the keys: a, b\n"));
  EXPECT_TRUE(std::filesystem::exists(Path("disputed/model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(Path("disputed/config.json")));
  Good({"get", "b", "--out", Path("of-b")});
  EXPECT_EQ(config_of(Path("of-b")), "{\"n\": 2}");
}

TEST_F(CommandsTest, GetOutJson_HoldsNoSpentTicket) {
  Good({"put", Model(), "--key", "m"});
  const nlohmann::json json = Json({"get", "m", "--out", Path("out.safetensors")});
  EXPECT_NE(json["replica"].value("replica_id", ""), "");
  EXPECT_FALSE(json.contains("ticket"));
}

TEST_F(CommandsTest, GetWithInvalidFlags_FailsBeforeTransfer) {
  Bad({"get", "m", "--out", Path("out.safetensors"), "--device", "gpu:0"}, 1, "give --device cpu");
  Bad({"get", "m", "--out", Path("no-such-folder/out.safetensors")}, 1, "no-such-folder");
  Bad({"get", "m"}, 1, "NOT_FOUND");
  Bad({"get", "m", "--timeout", "30"}, 2, "--timeout: 30 has no unit: write 30s");
  Bad({"get", "m", "--timeout", "-1s"}, 2, "\"-1s\" is not a duration");
}

TEST_F(CommandsTest, Ls_ShowsArtifactsKeysAndReplicas) {
  const std::string id = Json({"put", Model(), "--key", "m"}).value("artifact_id", "");
  const std::string listed = Good({"ls"});
  EXPECT_THAT(listed, StartsWith("artifact"));
  EXPECT_THAT(listed, HasSubstr(id));
  EXPECT_THAT(listed, ContainsRegex("m +1\n"));
  EXPECT_THAT(Good({"ls", "--nodes"}), HasSubstr("m     cpu@alone\n"));
  EXPECT_THAT(Good({"ls", "--long"}), ContainsRegex("imported from.*\n.*/model-1.safetensors .* alone\n"));
  EXPECT_EQ(Json({"ls"})["artifacts"][0].value("replica_count", 0), 1);
  EXPECT_EQ(Json({"ls"})["artifacts"][0]["replicas"].size(), 0u);
  EXPECT_EQ(Json({"ls", "--nodes"})["artifacts"][0]["replicas"].size(), 1u);
  EXPECT_EQ(Json({"ls"})["artifacts"][0]["keys"][0], "m");
  const nlohmann::json replicas = Json({"replica", "ls"})["replicas"];
  ASSERT_EQ(replicas.size(), 1u);
  EXPECT_THAT(Good({"replica", "ls"}), HasSubstr(replicas[0].value("replica_id", "?")));
}

// Its files are where it was imported from, and a get reads them: it is not lost.
TEST_F(CommandsTest, LsOfArtifactWithoutReplica_ShowsItsOrigin) {
  const std::string id = Json({"put", Model(), "--key", "m"}).value("artifact_id", "");
  Good({"replica", "rm", Json({"replica", "ls"})["replicas"][0].value("replica_id", ""), "--force"});
  for (const auto& list : {Words{"ls"}, Words{"ls", "--nodes"}}) {
    EXPECT_THAT(Good(list), HasSubstr("m     origin@alone\n"));
  }
}

TEST_F(CommandsTest, PinAndUnpin_ChangeReplica) {
  Good({"put", Model()});
  const std::string replica = Json({"replica", "ls"})["replicas"][0].value("replica_id", "");
  EXPECT_EQ(Good({"replica", "pin", replica}), "pinned " + replica + "\n");
  EXPECT_EQ(Json({"replica", "ls"})["replicas"][0].value("pinned", false), true);
  const nlohmann::json unpinned = Json({"replica", "unpin", replica});
  EXPECT_EQ(unpinned.value("replica_id", ""), replica);
  EXPECT_EQ(unpinned.value("pinned", true), false);
  Bad({"replica", "pin", "no-such-replica"}, 1, "no-such-replica");
}

TEST_F(CommandsTest, Rm_DeletesKeyAndArtifact) {
  const std::string id = Json({"put", Model(), "--key", "m"}).value("artifact_id", "");
  Bad({"rm"}, 2, "artifact is required");
  Bad({"rm", ""}, 2, "artifact: the value is empty");
  Bad({"rm", id}, 1, "FAILED_PRECONDITION");
  EXPECT_EQ(Good({"rm", "m"}), "deleted " + id + "\n");
  EXPECT_TRUE(Json({"ls"})["artifacts"].empty());
  Bad({"rm", "m"}, 1, "NOT_FOUND");
}

TEST_F(CommandsTest, RmForce_RemovesEveryKeyOfArtifact) {
  const std::string id = Json({"put", Model(), "--key", "m"}).value("artifact_id", "");
  Good({"key", "bind", "n", id});
  EXPECT_EQ(Json({"rm", id, "--force"}).value("artifact_id", ""), id);
  EXPECT_EQ(Good({"key", "ls"}), "key  artifact  revision  versions kept\n");
}

TEST_F(CommandsTest, RmOfArtifactWithOtherKey_IsRefusedBeforeDeleting) {
  const std::string id = Json({"put", Model(), "--key", "m"}).value("artifact_id", "");
  Good({"key", "bind", "n", id});
  Bad({"rm", "m"}, 1, "rm m: artifact " + id + " is also bound to key n, so nothing was deleted;");
  EXPECT_EQ(Json({"key", "ls"})["keys"].size(), 2u);
  EXPECT_EQ(Good({"rm", "m", "--force"}), "deleted " + id + "\n");
  EXPECT_EQ(Good({"key", "ls"}), "key  artifact  revision  versions kept\n");
}

TEST_F(CommandsTest, Replicate_BringsReplicaAndShowsTasks) {
  const std::string id = Json({"put", Model(), "--key", "m"}).value("artifact_id", "");
  EXPECT_THAT(Good({"replicate", "m", "--all"}), HasSubstr("was there already"));
  EXPECT_TRUE(Json({"replication", "ls", "m"})["tasks"].empty());
  const nlohmann::json results = Json({"replicate", "m", "--to", "alone:disk"})["results"];
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["task"].value("state", ""), "REPLICATION_TASK_STATE_DONE");
  EXPECT_EQ(Json({"replica", "ls"})["replicas"].size(), 2u);
  EXPECT_THAT(Good({"replication", "ls", id}), HasSubstr("alone:disk  done"));
  EXPECT_THAT(Good({"replication", "ls"}), HasSubstr(id + "  alone:disk  done"));
  EXPECT_EQ(Json({"replication", "ls", "m"})["tasks"].size(), 1u);
  EXPECT_EQ(Good({"replication", "cancel", "m"}), "no unfinished task was found\n");
  EXPECT_EQ(Good({"replication", "cancel", "m", "--to", "alone:disk"}), "no unfinished task was found\n");
  Bad({"replication", "cancel", "m", "--to", "alone:cellar"}, 1, "replication cancel m: --to alone:cellar");
  Good({"rm", "m"});
}

TEST_F(CommandsTest, ReplicateWithInvalidTarget_IsRefused) {
  Json({"put", Model(), "--key", "m"});
  Bad({"replicate", "m", "--all", "--to", "alone"}, 1, "both --to and --all are given");
  Bad({"replicate", "m"}, 1, "`tensorcast replication ls m`");
  Bad({"replicate", "m", "--where", "zone=a"}, 1, "--where chooses among all nodes");
  Bad({"replicate", "m", "--all", "--where", "zone"}, 1, "--where: \"zone\" is not a label");
  Bad({"replicate", "m", "--to", "alone:cellar"}, 1, "--to alone:cellar");
  Bad({"follower", "rm", "m", "--to", "alone:cellar"}, 1, "follower rm m: --to alone:cellar");
  Bad({"replicate", "m", "--to", ":cpu"}, 1, "a target has no node; write NODE or NODE:LOCATION");
  Bad({"replicate", "n", "--to", "alone"}, 1, "NOT_FOUND");
  const RunResult absent = Run({"replicate", "m", "--to", "absent", "--no-wait"});
  EXPECT_EQ(absent.code, 1);
  EXPECT_THAT(absent.err, HasSubstr("absent:cpu: NOT_FOUND"));
  EXPECT_THAT(absent.out, HasSubstr("FAILED"));
}

TEST_F(CommandsTest, Gc_DryRunListsAndRunDeletesArtifacts) {
  const std::string id = Json({"put", Model()}).value("artifact_id", "");
  Good({"put", Model(2), "--key", "kept"});
  EXPECT_THAT(Good({"gc", "--older-than", "0s", "--dry-run"}), HasSubstr("would delete 1 artifacts"));
  EXPECT_EQ(Json({"ls"})["artifacts"].size(), 2u);
  EXPECT_THAT(Good({"gc", "--older-than", "1h"}), StartsWith("deleted 0 artifacts"));
  const std::string deleted = Good({"gc", "--older-than", "0s"});
  EXPECT_THAT(deleted, HasSubstr(id));
  EXPECT_THAT(deleted, HasSubstr("deleted 1 artifacts"));
  Bad({"gc", "--older-than", "soon"}, 2, "\"soon\" is not a duration");
}

// A global store of two artifacts, of which another client deletes the first once they are listed.
class VanishingArtifact : public v1::GlobalStore::Service {
 public:
  grpc::Status ListArtifacts(grpc::ServerContext* context, const v1::ListArtifactsRequest*,
                             v1::ListArtifactsResponse* response) override {
    context->AddInitialMetadata(rpc::kProtocolKey, rpc::kProtocolText);
    for (const char* id : {"tc2:gone", "tc2:there"}) response->add_artifacts()->set_artifact_id(id);
    return grpc::Status::OK;
  }
  grpc::Status DeleteArtifact(grpc::ServerContext* context, const v1::DeleteArtifactRequest* request,
                              v1::DeleteArtifactResponse*) override {
    context->AddInitialMetadata(rpc::kProtocolKey, rpc::kProtocolText);
    if (request->artifact_id() == "tc2:there") return grpc::Status::OK;
    return {grpc::StatusCode::NOT_FOUND, "no such artifact"};
  }
};

TEST_F(CommandsTest, ArtifactDeletedByOtherClient_GcContinues) {
  VanishingArtifact service;
  const std::string address = "unix:" + Path("vanishing.sock");
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const RunResult result = RunBare({"gc", "--older-than", "0s", "--json", "--daemon", address});
  EXPECT_EQ(result.code, 0) << result.err;
  const nlohmann::json deleted = nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_EQ(deleted["artifacts"].size(), 1u) << result.out;
  EXPECT_EQ(deleted["artifacts"][0].value("artifact_id", ""), "tc2:there");
}

TEST_F(CommandsTest, KeyCommands_BindResolveListAndRemove) {
  const std::string id = Json({"put", Model()}).value("artifact_id", "");
  EXPECT_EQ(Good({"key", "bind", "a/one", id, "--expect-revision", "0"}), "a/one  " + id + "  revision 1\n");
  Bad({"key", "bind", "a/one", id, "--expect-revision", "0"}, 1, "revision");
  EXPECT_EQ(Good({"key", "resolve", "a/one"}), "a/one  " + id + "  revision 1\n");
  EXPECT_EQ(Json({"key", "resolve", "a/one"})["key"].value("artifact_id", ""), id);
  EXPECT_EQ(Good({"key", "resolve", "a/one", "--confirmed"}), "a/one  " + id + "  revision 1\n");
  Good({"key", "bind", "b", id});
  EXPECT_EQ(Json({"key", "ls"})["keys"].size(), 2u);
  EXPECT_EQ(Json({"key", "ls", "a/"})["keys"].size(), 1u);
  EXPECT_THAT(Good({"key", "rm", "b"}), StartsWith("removed key b;"));
  Bad({"key", "resolve", "b"}, 1, "NOT_FOUND");
  Bad({"key", "bind", "b", "tc2:none"}, 1, "tc2:none");
}

TEST_F(CommandsTest, KeptVersions_AreShownAndRemovedOnlyById) {
  std::vector<std::string> ids;
  for (const int seed : {1, 2, 3}) {
    ids.push_back(Json({"put", Model(seed), "--key", "policy", "--keep", "2"}).value("artifact_id", ""));
  }
  EXPECT_EQ(Good({"key", "resolve", "policy"}),
            "policy  " + ids[2] + "  revision 3\n  kept  " + ids[1] + "  revision 2\n");
  EXPECT_EQ(Json({"key", "ls"})["keys"][0].value("keep", 0), 2);
  EXPECT_THAT(Good({"ls"}), AllOf(HasSubstr("policy (kept)"), HasSubstr("(deleted when space is needed)")));
  EXPECT_THAT(Good({"gc", "--older-than", "0s"}), AllOf(HasSubstr(ids[0]), HasSubstr("deleted 1 artifacts")));
  Good({"key", "bind", "other", ids[1]});
  Bad({"rm", "other"}, 1, "key policy keeps");
  Good({"key", "rm", "other"});
  Good({"rm", ids[1]});
  EXPECT_TRUE(Json({"key", "resolve", "policy"})["key"].value("earlier", nlohmann::json::array()).empty());
}

// Published as a daemon does it that made them.
std::shared_ptr<const Manifest> PublishManifest(global_store::GlobalStoreServer& store,
                                                const v1::NodeIdentity& node, const std::string& key,
                                                const std::map<std::string, std::string>& metadata,
                                                const Manifest* base) {
  ImageLayout layout;
  for (const char* const name : {"index", "records"}) {
    layout.tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {16}, .nbytes = 16});
  }
  EXPECT_TRUE(AssignOffsets(layout).ok());
  const auto manifest = Manifest::Create(layout, tensorcast::testing::NoDigests(layout), metadata);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  v1::PublishArtifactRequest request;
  *request.mutable_node() = node;
  request.set_key(key);
  request.set_manifest_piece((*manifest)->bytes());
  if (base != nullptr) {
    const auto difference =
        Manifest::Create(layout, tensorcast::testing::NoDigests(layout),
                         {{"base", base->id()}, {"target", (*manifest)->id()}}, ArtifactKind::kDifference);
    EXPECT_TRUE(difference.ok()) << difference.status();
    request.set_difference_piece((*difference)->bytes());
  }
  const auto stub = v1::GlobalStore::NewStub(rpc::MakeChannel(store.address()));
  const auto published = rpc::CallClientStream(*stub, &v1::GlobalStore::Stub::PublishArtifact,
                                               RequestContext::Background(absl::Seconds(20)), 1,
                                               [&](size_t) { return request; });
  EXPECT_TRUE(published.ok()) << published.status();
  return *manifest;
}

TEST_F(CommandsTest, Differences_AreListedApartAndGoWithTheirVersions) {
  v1::NodeIdentity node;
  node.set_node_id(Json({"status"})["daemon"]["node"].value("node_id", ""));
  node.set_incarnation(std::stoull(Json({"status"})["daemon"]["node"].value("incarnation", "0")));
  const auto publish = [&](const char* const step, const Manifest* from) {
    return PublishManifest(*deployment->store, node, "policy", {{"step", step}}, from);
  };
  const auto base = publish("1", nullptr);
  const auto target = publish("2", base.get());
  EXPECT_THAT(Good({"ls"}), AllOf(HasSubstr(base->id()), HasSubstr(target->id())));
  EXPECT_EQ(Json({"ls"})["artifacts"].size(), 2u);
  EXPECT_THAT(Good({"ls", "--differences"}),
              ContainsRegex(absl::StrCat("tc2:.*  ", base->id(), "  ", target->id(), " +0\n")));
  EXPECT_EQ(Json({"ls", "--differences"})["artifacts"].size(), 1u);
  EXPECT_THAT(Good({"status"}), HasSubstr("\ndifferences: 1, "));
  EXPECT_THAT(Good({"gc", "--older-than", "0s"}), HasSubstr("deleted 0 artifacts"));
  Good({"rm", base->id()});
  EXPECT_TRUE(Json({"ls", "--differences"}).value("artifacts", nlohmann::json::array()).empty());
  EXPECT_THAT(Good({"status"}), Not(HasSubstr("differences:")));
  EXPECT_EQ(Json({"key", "resolve", "policy"})["key"].value("artifact_id", ""), target->id());
}

TEST_F(CommandsTest, Status_ShowsDaemonAndClusterAsTextAndJson) {
  const std::string text = Good({"status"});
  EXPECT_THAT(text, StartsWith("daemon alone ("));
  EXPECT_THAT(text, HasSubstr("global store embedded"));
  EXPECT_THAT(text, HasSubstr("nccl       no broadcasts with other nodes: security.trusted_fabric is off"));
  EXPECT_THAT(text, HasSubstr("\ncluster: 0 artifacts, 0 keys, "));
  const nlohmann::json json = Json({"status"});
  EXPECT_EQ(json["daemon"]["node"]["name"], "alone");
  EXPECT_EQ(json["cluster"]["nodes"].size(), 1u);
}

TEST_F(CommandsTest, ExplainAndTop_ShowLastTransfer) {
  Good({"put", Model()});
  EXPECT_THAT(Good({"explain"}), HasSubstr("fetch"));
  const nlohmann::json explained = Json({"explain", "last"});
  EXPECT_TRUE(explained.contains("transfer") && explained.contains("analysis"));
  EXPECT_EQ(explained.value("under_way", true), false);
  Bad({"explain", "no-such-transfer"}, 1, "no-such-transfer");
  EXPECT_THAT(Good({"top", "--once"}), HasSubstr("alone"));
  EXPECT_EQ(Json({"top"})["nodes"].size(), 1u);
}

TEST_F(CommandsTest, SupersededSpellings_AreRefused) {
  for (const Words& words : {Words{"pin", "r"},
                             {"unpin", "r"},
                             {"ls", "--replicas"},
                             {"rm", "--replica", "r"},
                             {"rm", "--node", "n"},
                             {"replicate", "m", "--cancel"},
                             {"certs", "issue", "node/a", "--folder", "f", "--days", "9"}}) {
    const RunResult result = RunBare(words);
    EXPECT_EQ(result.code, 2) << words[0];
    EXPECT_THAT(result.out, IsEmpty()) << words[0];
  }
}

TEST_F(CommandsTest, NodeLs_ShowsNameIdStateAddressAndPools) {
  const std::string id = Json({"node", "ls"})["nodes"][0].value("node_id", "");
  const std::string listed = Good({"node", "ls"});
  EXPECT_THAT(listed, ContainsRegex("^name +id +state +address +pools\n"));
  EXPECT_THAT(listed, ContainsRegex(absl::StrCat("\nalone  ", id, "  alive  unix:.*  cpu .*192.00 MiB")));
}

TEST_F(CommandsTest, DrainedNode_IsShownSoUntilUndrained) {
  const std::string id = Json({"node", "ls"})["nodes"][0].value("node_id", "");
  EXPECT_EQ(Good({"node", "drain", "alone"}),
            "node alone is draining; `tensorcast node undrain alone` ends the drain\n");
  EXPECT_THAT(Good({"node", "ls"}), HasSubstr(id + "  draining  "));
  EXPECT_THAT(Good({"status"}), HasSubstr("alone (draining)"));
  EXPECT_EQ(Good({"node", "undrain", id}), "node alone is no longer draining\n");
  EXPECT_THAT(Good({"node", "ls"}), HasSubstr(id + "  alive  "));
  const nlohmann::json drained = Json({"node", "drain", "alone"});
  EXPECT_EQ(drained.value("node_id", ""), id);
  EXPECT_EQ(drained.value("draining", false), true);
  EXPECT_EQ(Json({"node", "undrain", "alone"}).value("draining", true), false);
}

TEST_F(CommandsTest, NodeThatIsNotRegistered_IsNamedInTheError) {
  Bad({"node", "drain", "absent"}, 1, "NOT_FOUND: node drain absent: no registered node has this name or id");
  Bad({"node", "undrain", "absent"}, 1, "NOT_FOUND: node undrain absent: ");
  Bad({"node", "forget", "n"}, 1,
      "node forget n: --daemon names a daemon; give the address of the global store");
  Bad({"node", "drain"}, 2, "node is required");
}

// Each would take an hour if it waited for the daemon.
TEST_F(CommandsTest, DaemonAway_EveryCommandFailsAtOnceInOneSentence) {
  const std::string address = "unix:" + Path("absent.sock");
  for (const Words& words : {Words{"ls"},
                             {"get", "m"},
                             {"put", "m"},
                             {"status"},
                             {"top", "--once"},
                             {"explain"},
                             {"replicate", "m", "--all"},
                             {"rm", "m"},
                             {"replica", "pin", "r"},
                             {"replica", "ls"},
                             {"replication", "ls"},
                             {"replication", "cancel", "tc2:a"},
                             {"node", "ls"},
                             {"node", "drain", "a"},
                             {"node", "undrain", "a"},
                             {"node", "forget", "a"},
                             {"gc", "--older-than", "1h"},
                             {"key", "ls"},
                             {"key", "bind", "a", "b"}}) {
    Words all = words;
    all.insert(all.end(), {"--daemon", address, "--set", "client.connect_timeout=1h"});
    const RunResult result = RunBare(all);
    EXPECT_EQ(result.code, 1) << words[0];
    EXPECT_EQ(
        result.err,
        absl::StrCat("tensorcast: UNAVAILABLE: connect to ", address,
                     ": no daemon listens there; start a daemon with \"tensorcast daemon\", or give the "
                     "address of a running daemon\n"));
    EXPECT_THAT(result.out, IsEmpty()) << words[0];
  }
  const RunResult nonsense = RunBare({"ls", "--daemon", "nonsense"});
  EXPECT_EQ(nonsense.code, 1);
  EXPECT_THAT(nonsense.err, HasSubstr("--daemon: "));
}

// The daemon's process is suspended: its socket takes connections, and nothing answers.
TEST_F(CommandsTest, GetFromSilentDaemon_EndsAfterItsTimeout) {
  const auto silent = UnixListener::Listen(Path("silent.sock"), {});
  ASSERT_TRUE(silent.ok());
  const RunResult result = RunBare({"get", "m", "--timeout", "100ms", "--daemon", "unix:" + (*silent)->path(),
                                    "--set", "client.connect_timeout=1h"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("no answer came within 100ms"));
}

TEST_F(CommandsTest, ErrorWithJson_IsAnObjectOnStdout) {
  const RunResult result = RunBare({"ls", "--json", "--daemon", "unix:" + Path("absent.sock")});
  EXPECT_EQ(result.code, 1);
  const auto said = nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(said.is_object() && said.contains("error")) << result.out;
  EXPECT_EQ(said["error"]["code"], "UNAVAILABLE");
  EXPECT_THAT(said["error"]["message"].get<std::string>(), HasSubstr("absent.sock"));
  EXPECT_TRUE(said["error"]["details"].is_array());
  EXPECT_THAT(result.err, StartsWith("tensorcast: UNAVAILABLE: "));
}

TEST_F(CommandsTest, Key_IsAcceptedInPlaceOfArtifactId) {
  ASSERT_EQ(Run({"put", Model(), "--key", "named/one"}).code, 0);
  EXPECT_EQ(Run({"key", "bind", "named/two", "named/one"}).code, 0);
  EXPECT_EQ(Json({"key", "resolve", "named/two"})["key"]["artifact_id"],
            Json({"key", "resolve", "named/one"})["key"]["artifact_id"]);
  for (const Words& words :
       {Words{"replica", "pin", "named/two"}, {"replica", "unpin", "named/two"}, {"explain", "named/two"}}) {
    const RunResult result = Run(words);
    EXPECT_EQ(result.code, 0) << words[0] << ": " << result.err;
  }
  const RunResult unknown = Run({"replica", "pin", "named/none"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("no key is called named/none"));
}

TEST_F(CommandsTest, SocketOfOtherUser_CommandFailsWithPermissionDenied) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string address = "unix:" + deployment->folder + "/node/daemon.sock";
  const std::vector<const char*> argv = {"tensorcast", "ls", "--daemon", address.c_str()};
  ::testing::internal::CaptureStderr();
  // The bare system call: of this thread alone, and so not of the daemon.
  ASSERT_EQ(syscall(SYS_setresuid, -1, 65534, -1), 0);
  const int code = ParseAndRun(AllCommands(), static_cast<int>(argv.size()), argv.data());
  ASSERT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0);
  EXPECT_EQ(code, 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              StartsWith("tensorcast: PERMISSION_DENIED: connect to "));
}

TEST_F(CommandsTest, NoDaemonFlag_UsesEnvironmentVariable) {
  const std::string path = deployment->folder + "/node/daemon.sock";
  setenv("TENSORCAST_DAEMON", path.c_str(), 1);
  EXPECT_EQ(RunBare({"ls"}).code, 0);
  setenv("TENSORCAST_DAEMON", "/nowhere/daemon.sock", 1);
  const RunResult nowhere = RunBare({"ls"});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("connect to unix:/nowhere/daemon.sock: no daemon listens there"));
  EXPECT_EQ(RunBare({"ls", "--daemon", path}).code, 0) << "the flag stands above the variable";
  EXPECT_EQ(RunBare({"ls", "--set", "client.daemon=unix:" + path}).code, 0) << "so does the configuration";
  setenv("TENSORCAST_DAEMON", "foo", 1);
  EXPECT_THAT(RunBare({"ls"}).err, HasSubstr("TENSORCAST_DAEMON: "));
  unsetenv("TENSORCAST_DAEMON");
}

TEST_F(CommandsTest, GcJson_ListsOnlyDroppedArtifacts) {
  const std::string id = Json({"put", Model()}).value("artifact_id", "");
  Good({"put", Model(2), "--key", "kept"});
  for (const Words& words : {Words{"gc", "--older-than", "0s", "--dry-run"}, {"gc", "--older-than", "0s"}}) {
    const nlohmann::json dropped = Json(words)["artifacts"];
    ASSERT_EQ(dropped.size(), 1u);
    EXPECT_EQ(dropped[0].value("artifact_id", ""), id);
  }
  EXPECT_TRUE(Json({"gc", "--older-than", "0s"}).value("artifacts", nlohmann::json::array()).empty());
}

TEST_F(CommandsTest, ReplicaRm_LeavesTheArtifact) {
  const std::string id = Json({"put", Model(), "--key", "m"}).value("artifact_id", "");
  const std::string replica = Json({"replica", "ls"})["replicas"][0].value("replica_id", "");
  EXPECT_EQ(Json({"replica", "rm", replica, "--force"}).value("replica_id", ""), replica);
  EXPECT_EQ(Json({"ls"})["artifacts"][0].value("artifact_id", ""), id);
  Bad({"replica", "rm", replica}, 1, replica);
  Bad({"replica", "rm", ""}, 2, "replica: the value is empty");
}

TEST_F(CommandsTest, ConfigShow_CanBeReadBackAndConfigCheckNamesErrors) {
  const RunResult shown = RunBare({"config", "show", "--set", "daemon.name=x"});
  const auto config = config::Parse(shown.out, "shown.yaml", {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->daemon().name(), "x");
  EXPECT_EQ(nlohmann::json::parse(RunBare({"config", "show", "--json"}).out, nullptr, false)["log"]["level"],
            "info");

  const std::string state = "daemon.state_dir=" + Path("node");
  EXPECT_EQ(RunBare({"config", "check", "--role", "daemon", "--set", state, "--json"}).out,
            "{\"ok\": true}\n");
  const RunResult wrong =
      RunBare({"config", "check", "--role", "daemon", "--set", state, "--set",
               "daemon.handle_groups=no-such-group", "--set", "daemon.import_roots=relative"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("\ndaemon.import_roots: \"relative\" is not the absolute path"));
  EXPECT_THAT(wrong.err, HasSubstr("daemon.handle_groups: \"no-such-group\" is not a group of this host"));
  EXPECT_EQ(RunBare({"config", "check", "--role", "guest"}).code, 2);
}

}  // namespace
}  // namespace tensorcast::cli::commands_test
