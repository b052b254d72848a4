// The command line as a user types it: exit codes, messages, JSON, files that other programs can read.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;

class CommandLine : public E2eTest {
 protected:
  void SetUp() override {
    E2eTest::SetUp();
    if (HasFatalFailure()) return;
    ClusterOptions options = DefaultOptions();
    options.settings_of_daemon = {{"daemon.limits.receive=2GiB", "observability.recorder.enabled=true"},
                                  {"observability.recorder.enabled=true"}};
    StartCluster(options);
  }
  CommandResult OnNode(int node, std::vector<std::string> arguments) {
    arguments.push_back("--daemon");
    arguments.push_back(cluster_->addresses(node).unix_socket);
    return RunCommand(std::move(arguments));
  }
  // Of a command that must succeed.
  nlohmann::json Json(int node, std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const CommandResult result = OnNode(node, std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return nlohmann::json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  }
};

TEST_F(CommandLine, UnknownCommand_IsNamed) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"frobnicate"}, {"key", "frobnicate"}}) {
    const CommandResult result = RunCommand(words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.output, HasSubstr("\"frobnicate\" is not a command of tensorcast"));
  }
}

TEST_F(CommandLine, ArgumentThatIsNotUtf8_IsRefused) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"key", "resolve", "m\xff"}, {"get", "m\xff"}, {"put", directory_->path() + "/m\xff"}}) {
    const CommandResult result = OnNode(0, words);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.output, HasSubstr("UTF-8")) << words[0];
  }
}

TEST_F(CommandLine, ConfigShow_PrintsAllKeysAsYamlAndJson) {
  const CommandResult json = RunCommand({"config", "show", "--json"});
  const nlohmann::json shown = nlohmann::json::parse(json.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(shown.is_object()) << json.output;
  EXPECT_EQ(shown["daemon"]["listen"], "") << "keys that are empty are shown, too";
  EXPECT_THAT(RunCommand({"config", "show"}).output, HasSubstr("\n  listen: \"\"\n"));
}

// The text of a file in an archive, as the system's tar has it; empty where there is none.
std::string FileIn(const std::string& archive, const std::string& name) {
  const std::string command = "tar -xzOf " + archive + " --wildcards '" + name + "' 2>/dev/null";
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  pclose(pipe);
  return text;
}

TEST_F(CommandLine, DebugBundle_HoldsRecordsOfAllNodes) {
  Json(0, {"put", MakeModel("model.safetensors", 8 << 20), "--key", "llama/prod"});
  Json(1, {"get", "llama/prod"});
  const std::string archive = directory_->path() + "/bundle.tar.gz";
  const nlohmann::json made = Json(0, {"debug", "bundle", "--out", archive});
  ASSERT_EQ(made.value("file", ""), archive);
  EXPECT_THAT(FileIn(archive, "./this-node/status.json"), HasSubstr("\"node\""));
  EXPECT_THAT(FileIn(archive, "./this-node/configuration.yaml"), HasSubstr("receive: 2GiB"));
  EXPECT_THAT(FileIn(archive, "./this-node/version.txt"), HasSubstr("daemon "));
  EXPECT_THAT(FileIn(archive, "./this-node/spans.json"), HasSubstr("StoreDaemon/"));
  EXPECT_THAT(FileIn(archive, "./nodes/*/spans.json"), HasSubstr("StoreEngine/"));
  EXPECT_THAT(FileIn(archive, "./nodes/*/log.txt"), HasSubstr("transfer "));
  EXPECT_THAT(FileIn(archive, "./global-store/version.txt"), HasSubstr("global-store "));
  EXPECT_THAT(FileIn(archive, "./cluster.json"), HasSubstr("\"nodes\""));
  const std::string left_out = FileIn(archive, "./left_out.txt");
  EXPECT_THAT(left_out, HasSubstr("global-store: spans and log lines: the flight recorder is off"));
  EXPECT_EQ(made["left_out"].size(), 1u) << left_out;
  struct stat found{};
  ASSERT_EQ(stat(archive.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u) << "only its user may read it";

  const CommandResult again = OnNode(0, {"debug", "bundle", "--out", archive});
  EXPECT_EQ(again.exit_code, 1) << again.output;
  EXPECT_THAT(again.output, HasSubstr("create the archive"));
}

TEST_F(CommandLine, DebugBundle_ListsNodeThatCannotBeReached) {
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->daemon(1).Wait(SteadyNow() + kStepTimeout).status());
  const std::string archive = directory_->path() + "/bundle.tar.gz";
  const CommandResult made = OnNode(0, {"debug", "bundle", "--out", archive});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("left out: nodes/0-"));
  EXPECT_THAT(FileIn(archive, "./left_out.txt"), HasSubstr("nodes/0-"));
}

TEST_F(CommandLine, PutLsGetRm_WorkAcrossNodes) {
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  const nlohmann::json put = Json(0, {"put", model, "--key", "llama/prod"});
  const std::string id = put.value("artifact_id", "");
  EXPECT_THAT(id, ::testing::StartsWith("tc2:"));

  const nlohmann::json listed = Json(1, {"ls"});
  ASSERT_EQ(listed["artifacts"].size(), 1u);
  EXPECT_EQ(listed["artifacts"][0]["artifact_id"], id);
  EXPECT_EQ(listed["artifacts"][0]["keys"][0], "llama/prod");

  const CommandResult get = OnNode(1, {"get", "llama/prod", "--device", "gpu:0"});
  EXPECT_EQ(get.exit_code, 0) << get.output;
  EXPECT_THAT(get.output, HasSubstr(id));

  const CommandResult removed = OnNode(1, {"rm", "llama/prod"});
  EXPECT_EQ(removed.exit_code, 0) << removed.output;
  EXPECT_TRUE(Json(0, {"ls"})["artifacts"].empty());
  EXPECT_EQ(OnNode(0, {"get", "llama/prod"}).exit_code, 1);
}

TEST_F(CommandLine, GetOut_WritesFileOfTheSameArtifact) {
  const std::string model = MakeModel("sharded", 20 << 20, /*shards=*/2);
  const nlohmann::json put = Json(0, {"put", model, "--key", "m"});
  const std::string out = directory_->path() + "/out.safetensors";
  const CommandResult get = OnNode(1, {"get", "m", "--out", out});
  ASSERT_EQ(get.exit_code, 0) << get.output;
  // The same tensors in the same order with the same metadata: the same artifact.
  EXPECT_EQ(Json(1, {"put", out})["artifact_id"], put["artifact_id"]);
}

// By their paths below the folder.
std::map<std::string, std::string> TextsIn(const std::string& folder) {
  std::map<std::string, std::string> texts;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().extension() == ".safetensors") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    texts[std::filesystem::relative(entry.path(), folder).string()] = text.str();
  }
  return texts;
}

TEST_F(CommandLine, GetOutFolder_WritesModelWithItsFiles) {
  const std::string model = MakeModel("sharded", 20 << 20, /*shards=*/2);
  std::filesystem::create_directory(model + "/1_Pooling");
  std::ofstream(model + "/config.json") << R"({"model_type": "llama"})";
  std::ofstream(model + "/1_Pooling/config.json") << "{}";
  std::ofstream(model + "/LICENSE");
  std::ofstream(model + "/tokenizer.json") << std::string(3 << 20, 't');
  const nlohmann::json put = Json(0, {"put", model, "--key", "m"});
  const std::string files_id = put.value("files_id", "");
  ASSERT_NE(files_id, "");

  const std::string out = directory_->path() + "/out/m";
  const CommandResult get = OnNode(1, {"get", "m", "--out", out});
  ASSERT_EQ(get.exit_code, 0) << get.output;
  std::map<std::string, std::string> texts = TextsIn(model);
  texts.erase("model.safetensors.index.json");  // of shards that are one file now
  EXPECT_EQ(TextsIn(out), texts);

  // The written folder is the same two artifacts again.
  const nlohmann::json again = Json(1, {"put", out, "--key", "again"});
  EXPECT_EQ(again["artifact_id"], put["artifact_id"]);
  EXPECT_EQ(again.value("files_id", ""), files_id);

  // The tensors alone, under the same key: it keeps its files. What rm deletes takes them along.
  EXPECT_EQ(Json(1, {"put", out + "/model.safetensors", "--key", "m"}).value("files_id", ""), files_id);
  EXPECT_EQ(Json(1, {"put", out + "/model.safetensors", "--key", "other"}).value("files_id", ""), "");
  ASSERT_EQ(OnNode(0, {"rm", "m", "--force"}).exit_code, 0);
  EXPECT_TRUE(Json(0, {"ls"})["artifacts"].empty());
}

TEST_F(CommandLine, Replicate_BringsTheFilesOfTheKey) {
  const std::string model = MakeModel("sharded", 4 << 20, /*shards=*/2);
  std::ofstream(model + "/config.json") << "{}";
  (void)Json(0, {"put", model, "--key", "m"});
  ASSERT_EQ(OnNode(0, {"replicate", "m", "--to", "node-1"}).exit_code, 0);
  EXPECT_TRUE(testing::Eventually([&] { return Json(1, {"replica", "ls"})["replicas"].size() == 2; }))
      << Json(1, {"replica", "ls"}).dump();
}

TEST_F(CommandLine, GetTensors_PullsOnlyTheirChunksAndLaterGetTheRest) {
  const std::string model = MakeModel("model.safetensors", 16 << 20);
  ASSERT_EQ(OnNode(0, {"put", model, "--key", "m"}).exit_code, 0);
  const std::string out = directory_->path() + "/some.safetensors";
  const CommandResult some = OnNode(1, {"get", "m", "--tensors", "*layers.0.*", "--out", out});
  ASSERT_EQ(some.exit_code, 0) << some.output;
  EXPECT_THAT(some.output, HasSubstr("partial: "));
  EXPECT_LT(std::filesystem::file_size(out), std::filesystem::file_size(model));
  const nlohmann::json partial = Json(1, {"replica", "ls"})["replicas"][0];
  EXPECT_EQ(partial["state"], "REPLICA_STATE_PARTIAL");
  EXPECT_LT(partial["chunks_present"], partial["chunks_total"]);

  // As the get itself says it.
  const nlohmann::json again = Json(1, {"get", "m", "--tensors", "*layers.0.*"});
  EXPECT_EQ(again["replica"]["state"], "REPLICA_STATE_PARTIAL");
  EXPECT_EQ(again["replica"]["chunks_present"], partial["chunks_present"]);
  EXPECT_EQ(again["replica"]["chunks_total"], partial["chunks_total"]);

  const CommandResult none = OnNode(1, {"get", "m", "--tensors", "no.such*"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.output, HasSubstr("\"no.such*\""));
  EXPECT_EQ(OnNode(1, {"get", "m", "--tensors", "*layers.0.*", "--device", "disk"}).exit_code, 1);

  const nlohmann::json rest = Json(1, {"get", "m"});
  EXPECT_EQ(rest["replica"]["state"], "REPLICA_STATE_READY");
  EXPECT_EQ(rest["transfer"]["verified_chunks"].get<int>() + partial["chunks_present"].get<int>(),
            partial["chunks_total"].get<int>());
}

TEST_F(CommandLine, EmptyPathMissingFolderOrHugeSize_IsAnError) {
  const CommandResult empty = OnNode(0, {"put", ""});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_THAT(empty.output, HasSubstr("INVALID_ARGUMENT: put: the path of the model is empty"));
  EXPECT_EQ(RunCommand({"make-model", ""}).exit_code, 1);

  const UniqueFd here(open(".", O_PATH | O_CLOEXEC));
  const std::string gone = directory_->path() + "/gone";
  ASSERT_EQ(mkdir(gone.c_str(), 0700), 0);
  ASSERT_EQ(chdir(gone.c_str()), 0);
  ASSERT_EQ(rmdir(gone.c_str()), 0);
  const CommandResult put = OnNode(0, {"put", "model.safetensors"});
  const CommandResult get = OnNode(0, {"get", "none", "--out", "out.safetensors"});
  const CommandResult make = RunCommand({"make-model", "model.safetensors", "--size", "4MiB"});
  ASSERT_EQ(fchdir(here.get()), 0);
  EXPECT_EQ(put.exit_code, 1) << put.output;
  EXPECT_THAT(put.output,
              HasSubstr("NOT_FOUND: find the absolute path of model.safetensors: No such file or directory"));
  EXPECT_EQ(get.exit_code, 1) << get.output;
  EXPECT_EQ(make.exit_code, 1) << make.output;

  // Nor does a size that fits nowhere end otherwise.
  const std::string out = directory_->path() + "/huge.safetensors";
  const CommandResult huge = RunCommand({"make-model", out, "--size", "100000TiB"});
  EXPECT_EQ(huge.exit_code, 1);
  EXPECT_THAT(huge.output, HasSubstr("at most"));
  const CommandResult large = RunCommand({"make-model", out, "--size", "15TiB"});
  EXPECT_EQ(large.exit_code, 1);
  EXPECT_THAT(large.output, HasSubstr("RESOURCE_EXHAUSTED"));
}

TEST_F(CommandLine, KeyBindWithExpectedRevision_ComparesAndSwaps) {
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  const std::string id = Json(0, {"put", model}).value("artifact_id", "");
  EXPECT_EQ(OnNode(0, {"key", "bind", "k", id, "--expect-revision", "0"}).exit_code, 0);
  const CommandResult stale = OnNode(0, {"key", "bind", "k", id, "--expect-revision", "0"});
  EXPECT_EQ(stale.exit_code, 1);
  EXPECT_THAT(stale.output, HasSubstr("revision"));
  EXPECT_EQ(OnNode(0, {"key", "bind", "k", id, "--expect-revision", "1"}).exit_code, 0);
  const CommandResult resolved = OnNode(1, {"key", "resolve", "k"});
  EXPECT_THAT(resolved.output, HasSubstr(id));
  EXPECT_THAT(resolved.output, HasSubstr("revision 2"));
  EXPECT_EQ(OnNode(1, {"key", "rm", "k"}).exit_code, 0);
  EXPECT_EQ(OnNode(1, {"key", "resolve", "k"}).exit_code, 1);
}

TEST_F(CommandLine, Gc_DeletesArtifactsWithoutKey) {
  const std::string kept = MakeModel("kept.safetensors", 4 << 20, 1, 1);
  const std::string dropped = MakeModel("dropped.safetensors", 4 << 20, 1, 2);
  const std::string kept_id = Json(0, {"put", kept, "--key", "k"}).value("artifact_id", "");
  const std::string dropped_id = Json(0, {"put", dropped}).value("artifact_id", "");
  const CommandResult none = OnNode(0, {"gc", "--older-than", "1h"});
  EXPECT_EQ(none.exit_code, 0) << none.output;
  EXPECT_THAT(none.output, ::testing::Not(HasSubstr(dropped_id)));
  EXPECT_THAT(OnNode(0, {"gc", "--older-than", "0s", "--dry-run"}).output, HasSubstr(dropped_id));
  EXPECT_THAT(OnNode(0, {"gc", "--older-than", "0s"}).output, HasSubstr(dropped_id));
  const nlohmann::json listed = Json(0, {"ls"});
  ASSERT_EQ(listed["artifacts"].size(), 1u);
  EXPECT_EQ(listed["artifacts"][0]["artifact_id"], kept_id);
}

TEST_F(CommandLine, Status_ShowsClusterDaemonAndLimits) {
  const CommandResult status = OnNode(0, {"status"});
  EXPECT_EQ(status.exit_code, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("node-0"));
  EXPECT_THAT(status.output, HasSubstr("node-1"));
  const nlohmann::json json = Json(0, {"status"});
  EXPECT_EQ(json["cluster"]["nodes"].size(), 2u);
  EXPECT_FALSE(json["daemon"]["node"].contains("labels"));
  // As SetUp configures node 0 alone.
  EXPECT_THAT(status.output, HasSubstr("limits     send unlimited, receive 2.00 GiB a second"));
  EXPECT_EQ(json["daemon"]["limits"]["receive"], std::to_string(uint64_t{2} << 30));
  EXPECT_THAT(OnNode(1, {"status"}).output, HasSubstr("limits     send unlimited, receive unlimited"));
}

TEST_F(CommandLine, InvalidFlagValue_IsRefusedInOneLine) {
  const std::vector<std::vector<std::string>> commands = {{"get", "m", "--out", ""},
                                                          {"get", "m", "--timeout", "30"},
                                                          {"put", "m", "--key", ""},
                                                          {"bench", "p2p", "--runs", "0"},
                                                          {"replicate", "m", "--to", ""}};
  for (const std::vector<std::string>& command : commands) {
    SCOPED_TRACE(command[0] + " " + command[1] + " " + command.back());
    const CommandResult result = RunCommand(command);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.output, HasSubstr("--"));
    EXPECT_LT(result.output.size(), 200u) << result.output;
  }
}

TEST_F(CommandLine, GetOutIntoMissingFolder_FailsBeforeTransfer) {
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  (void)Json(0, {"put", model, "--key", "m"});
  const std::string out = directory_->path() + "/no-such-folder/m.safetensors";
  const CommandResult get = OnNode(1, {"get", "m", "--out", out});
  EXPECT_EQ(get.exit_code, 1);
  EXPECT_THAT(get.output, HasSubstr("no-such-folder"));
  EXPECT_TRUE(Json(1, {"replica", "ls"})["replicas"].empty());
}

TEST_F(CommandLine, MakeModelJson_EscapesItsPath) {
  const std::string path = directory_->path() + "/a \"quoted\" name.safetensors";
  const CommandResult made = RunCommand({"make-model", path, "--size", "4MiB", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_EQ(nlohmann::json::parse(made.output, nullptr, /*allow_exceptions=*/false).value("path", ""), path);
}

TEST_F(CommandLine, CommandOfTheWorkshop_WithoutItsProgramIsAnError) {
  const std::string folder = directory_->path() + "/alone", log = directory_->path() + "/alone.log";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(DefaultOptions().binary, folder + "/tensorcast");
  const auto run = [&](const std::string& path) -> CommandResult {
    std::filesystem::remove(log);
    const auto process =
        Process::Start({.argv = {folder + "/tensorcast", "make-model", directory_->path() + "/m.safetensors",
                                 "--size", "4MiB", "--json"},
                        .environment = {{"PATH", path}},
                        .log_path = log});
    if (!process.ok()) return {.output = process.status().ToString()};
    return {.exit_code = (*process)->Wait(SteadyNow() + kStepTimeout).value_or(-1),
            .output = FileTail(log, 100)};
  };
  const CommandResult missing = run("/no/such/folder");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.output,
              HasSubstr("find program tensorcast-bench: " + folder + " and PATH do not have this program"));
  EXPECT_THAT(missing.output, HasSubstr("\"code\": \"NOT_FOUND\""));
  const CommandResult on_path = run(std::filesystem::path(DefaultOptions().binary).parent_path());
  EXPECT_EQ(on_path.exit_code, 0) << on_path.output;
}

TEST_F(CommandLine, UnreachableDaemon_IsNamed) {
  const std::string address = "unix:" + directory_->path() + "/absent.sock";
  const CommandResult result = RunCommand({"ls", "--daemon", address});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("absent.sock"));
}

TEST_F(CommandLine, MisspelledConfigurationKey_ErrorSuggestsTheRightOne) {
  const std::string path = directory_->path() + "/config.yaml";
  std::ofstream(path) << "daemon:\n  host_pol: 1GiB\n";
  const CommandResult result = RunCommand({"config", "check", "--config", path});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("host_pol"));
  EXPECT_THAT(result.output, HasSubstr("host_pool"));
  EXPECT_EQ(RunCommand({"no-such-command"}).exit_code, 2);
  EXPECT_EQ(RunCommand({"--help"}).exit_code, 0);
}

}  // namespace
}  // namespace tensorcast
