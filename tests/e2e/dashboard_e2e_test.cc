// `tensorcast dashboard` beside a real cluster: its documents equal those of the commands, and it reports
// what it cannot reach.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/testing/eventually.h"
#include "cli/dashboard/test_http.h"
#include "tests/e2e/e2e_test_base.h"
#include "tools/workshop/cluster/process.h"

namespace tensorcast {
namespace {

using dashboard::testing::BodyOf;
using dashboard::testing::ConnectTo;
using dashboard::testing::Get;
using dashboard::testing::HeaderOf;
using dashboard::testing::ReadUntil;
using dashboard::testing::SendTo;
using dashboard::testing::StatusOf;
using ::testing::HasSubstr;

class DashboardE2e : public E2eTest {
 protected:
  // Starts a dashboard on a free port, and logs in with the address that it prints.
  void StartDashboard(const std::string& daemon) {
    const std::string log = directory_->path() + "/dashboard.log";
    TC_ASSERT_OK_AND_ASSIGN(
        process_, Process::Start({.argv = {DefaultOptions().binary, "dashboard", "--listen", "127.0.0.1:0",
                                           "--json", "--daemon", daemon},
                                  .log_path = log}));
    nlohmann::json printed;
    ASSERT_TRUE(testing::Eventually([&] {
      std::ifstream file(log);
      printed = nlohmann::json::parse(std::istreambuf_iterator<char>(file), {}, nullptr,
                                      /*allow_exceptions=*/false);
      return printed.is_object();
    })) << FileTail(log, 20);
    port_ = printed.value("port", 0);
    LogIn(printed.value("address", ""));
  }
  void LogIn(const std::string& address) {
    const size_t target = address.find("/login");
    ASSERT_NE(target, std::string::npos) << address;
    const std::string answer = Get(port_, address.substr(target));
    EXPECT_EQ(StatusOf(answer), 303) << answer;
    const std::string cookie = HeaderOf(answer, "Set-Cookie");
    cookie_ = absl::StrCat("Cookie: ", cookie.substr(0, cookie.find(';')), "\r\n");
  }
  nlohmann::json Document(const std::string& path) {
    const std::string answer = Get(port_, absl::StrCat("/api/", path), cookie_);
    EXPECT_EQ(StatusOf(answer), 200) << answer;
    return nlohmann::json::parse(BodyOf(answer), nullptr, /*allow_exceptions=*/false);
  }
  // What the command prints with --json at a node's daemon.
  nlohmann::json Command(int node, std::vector<std::string> words) {
    for (const std::string& word :
         {std::string("--json"), std::string("--daemon"), cluster_->addresses(node).unix_socket}) {
      words.push_back(word);
    }
    const CommandResult result = RunCommand(words);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return nlohmann::json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  }

  std::unique_ptr<Process> process_;
  uint16_t port_ = 0;
  std::string cookie_;
};

TEST_F(DashboardE2e, Documents_AreThoseOfTheCommands) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  const std::string id = Command(0, {"put", model, "--key", "llama/prod"}).value("artifact_id", "");
  Command(1, {"get", "llama/prod"});
  StartDashboard(cluster_->addresses(0).unix_socket);

  EXPECT_EQ(Document("artifacts")["artifacts"], Command(0, {"ls"})["artifacts"]);
  EXPECT_EQ(Document("keys")["keys"], Command(0, {"key", "ls"})["keys"]);
  EXPECT_EQ(Document("transfer?node=node-1&transfer=last"), Command(1, {"explain"}));
  const nlohmann::json status = Document("status");
  const nlohmann::json own = Command(0, {"status"});
  EXPECT_EQ(status["daemon"]["node"], own["daemon"]["node"]);
  EXPECT_EQ(status["cluster"]["artifacts"], own["cluster"]["artifacts"]);
  EXPECT_EQ(status["nodes"], 2);
  EXPECT_TRUE(status["problems"].empty()) << status["problems"];

  const nlohmann::json artifact = Document(absl::StrCat("artifact?artifact=", id));
  EXPECT_GE(artifact.value("total", 0), 2) << artifact;
  const nlohmann::json key = Document("key?name=llama/prod");
  EXPECT_EQ(key["registered"], 2);
  EXPECT_EQ(key["total"], 2) << key;
  const nlohmann::json node = Document("node?node=node-1");
  EXPECT_EQ(node["replicas"], Command(1, {"replica", "ls"})["replicas"]);
  const nlohmann::json transfers = Document("transfers");
  EXPECT_EQ(transfers["asked"], 2) << transfers["problems"];
  EXPECT_FALSE(transfers["recent"].empty());
  EXPECT_EQ(Document("zones")["nodes"], 2);
  EXPECT_EQ(Document("nodes?q=node-1")["total"], 1);
  EXPECT_EQ(Document("tasks")["total"], 0);
  EXPECT_EQ(StatusOf(Get(port_, "/api/node?node=none", cookie_)), 404);
}

TEST_F(DashboardE2e, NewKey_ReachesATabAsAnEvent) {
  StartCluster();
  StartDashboard(cluster_->addresses(0).unix_socket);
  const UniqueFd tab = ConnectTo(port_);
  SendTo(tab, absl::StrCat("GET /api/events?view=keys HTTP/1.1\r\nHost: 127.0.0.1:", port_, "\r\n", cookie_,
                           "\r\n"));
  EXPECT_THAT(ReadUntil(tab, "\"total\":0"), HasSubstr("event: document"));
  Command(0, {"put", MakeModel("model.safetensors", 1 << 20), "--key", "new<b>"});
  EXPECT_THAT(ReadUntil(tab, "new<b>"), HasSubstr("new<b>"));
}

TEST_F(DashboardE2e, WithoutADaemon_StatusSaysSo) {
  StartDashboard(absl::StrCat("unix:", directory_->path(), "/none.sock"));
  const nlohmann::json status = Document("status");
  ASSERT_EQ(status["problems"].size(), 2u) << status;
  EXPECT_EQ(status["problems"][0]["subject"], "daemon");
  EXPECT_EQ(status["problems"][0]["error"]["code"], "UNAVAILABLE");
  EXPECT_EQ(StatusOf(Get(port_, "/api/keys", cookie_)), 502);
}

TEST_F(DashboardE2e, TokenCommand_LogsAnotherBrowserIn) {
  StartDashboard(absl::StrCat("unix:", directory_->path(), "/none.sock"));
  const std::string listen = absl::StrCat("127.0.0.1:", port_);
  const CommandResult token = RunCommand({"dashboard", "token", "--listen", listen, "--json"});
  ASSERT_EQ(token.exit_code, 0) << token.output;
  cookie_.clear();
  LogIn(nlohmann::json::parse(token.output, nullptr, /*allow_exceptions=*/false).value("address", ""));
  EXPECT_EQ(StatusOf(Get(port_, "/api/status", cookie_)), 200);

  const CommandResult second = RunCommand({"dashboard", "--listen", listen});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.output,
              HasSubstr(absl::StrCat("listen on ", listen, ": another process listens there")));
  TC_ASSERT_OK_AND_ASSIGN(const int code, process_->Stop(kStepTimeout));
  EXPECT_EQ(code, 130);
  EXPECT_EQ(RunCommand({"dashboard", "token", "--listen", listen}).exit_code, 1);
}

TEST_F(DashboardE2e, BadFlags_AreRefusedByName) {
  EXPECT_THAT(RunCommand({"dashboard", "--help"}).output, HasSubstr("--client-ca"));
  const CommandResult open = RunCommand({"dashboard", "--listen", "0.0.0.0:0"});
  EXPECT_EQ(open.exit_code, 1);
  EXPECT_THAT(open.output, HasSubstr("needs TLS; give --cert and --key"));
  EXPECT_THAT(RunCommand({"dashboard", "--cert", "x.pem"}).output, HasSubstr("give both --cert and --key"));
}

}  // namespace
}  // namespace tensorcast
