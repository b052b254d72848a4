// `tensorcast doctor` on a real cluster: it finds nothing where nothing is wrong, and names what is.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A finding as its level, its subject, and the rest.
struct Found {
  std::string level;
  std::string subject;
  std::string text;
};
void PrintTo(const Found& found, std::ostream* out) {
  *out << found.level << " " << found.subject << ": " << found.text;
}

MATCHER_P3(Says, level, subject, words, "") {
  return arg.level == level && arg.subject == subject && arg.text.find(words) != std::string::npos;
}

// At whatever level: a busy machine with a full disk is not what these tests are about.
MATCHER_P2(Tells, subject, words, "") {
  return arg.subject == subject && arg.text.find(words) != std::string::npos;
}

class DoctorE2e : public E2eTest {
 protected:
  struct Diagnosis {
    int exit_code = -1;
    std::vector<Found> findings = {};
    std::vector<Found> Of(const std::string& level) const {
      std::vector<Found> those;
      for (const Found& found : findings) {
        if (found.level == level) those.push_back(found);
      }
      return those;
    }
  };

  Diagnosis Diagnose(const std::string& daemon, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"doctor", "--json", "--daemon", daemon};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = RunCommand(words);
    Diagnosis diagnosis{.exit_code = result.exit_code};
    const nlohmann::json list = nlohmann::json::parse(result.output, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(list.is_array()) << result.output;
    for (const nlohmann::json& one : list) {
      diagnosis.findings.push_back({one.value("level", ""), one.value("subject", ""),
                                    absl::StrCat(one.value("check", ""), ": ", one.value("found", ""), "; ",
                                                 one.value("change", ""))});
    }
    return diagnosis;
  }
  const std::string& SocketOf(int node) const { return cluster_->addresses(node).unix_socket; }

  void IssueCertificate(const std::string& name, const std::string& valid_for) {
    const CommandResult issued =
        RunCommand({"certs", "issue", name, "--folder", Certs(), "--valid-for", valid_for});
    ASSERT_EQ(issued.exit_code, 0) << issued.output;
  }
  std::string Certs() const { return directory_->path() + "/certs"; }
  std::vector<std::string> As(const std::string& file) const {
    return {"security.ca=" + Certs() + "/ca.pem", "security.certificate=" + Certs() + "/" + file + ".pem",
            "security.key=" + Certs() + "/" + file + ".key"};
  }
};

TEST_F(DoctorE2e, HealthyCluster_HasNoFailure) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const Diagnosis diagnosis = Diagnose(SocketOf(0), {"--cluster"});
  EXPECT_EQ(diagnosis.exit_code, 0);
  EXPECT_THAT(diagnosis.Of("fail"), IsEmpty());
  EXPECT_THAT(diagnosis.findings,
              AllOf(Contains(Says("ok", "node-1", "reachability: reached by node-0")),
                    Contains(Says("ok", "node-0", "reachability: reached by node-1")),
                    Contains(Tells("node-1", "clock: ")), Contains(Says("ok", "node-0", "version: ")),
                    Contains(Tells("this host", "disk: ")),
                    Contains(Says("ok", "global store", "members: there is one"))));

  // Without --cluster only the connections of the others are checked.
  const Diagnosis own = Diagnose(SocketOf(0));
  EXPECT_EQ(own.exit_code, 0);
  EXPECT_THAT(own.findings, Contains(Says("ok", "node-1", "reachability: reached by node-0")));
  EXPECT_THAT(own.findings, ::testing::Not(Contains(Tells("node-1", "clock: "))));

  const CommandResult text = RunCommand({"doctor", "--daemon", SocketOf(0)});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.output, HasSubstr("0 failed, "));
}

TEST_F(DoctorE2e, StoppedNode_IsNamed) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGSTOP));
  const Diagnosis diagnosis = Diagnose(SocketOf(0), {"--cluster"});
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGCONT));
  EXPECT_EQ(diagnosis.exit_code, 1);
  EXPECT_THAT(diagnosis.Of("fail"), Contains(Says("fail", "node-1", "answer: this node does not answer at")));
}

TEST_F(DoctorE2e, LowDescriptorLimit_Warns) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  // What `ulimit -n 2000` before a start makes of it.
  const rlimit low{.rlim_cur = 2000, .rlim_max = 2000};
  ASSERT_EQ(prlimit(cluster_->daemon(1).pid(), RLIMIT_NOFILE, &low, nullptr), 0);
  const Diagnosis diagnosis = Diagnose(SocketOf(0), {"--cluster"});
  EXPECT_EQ(diagnosis.exit_code, 0);
  EXPECT_THAT(diagnosis.findings,
              Contains(Says("warn", "node-1", "of max 2000 descriptors are open; a busy daemon needs")));
}

TEST_F(DoctorE2e, ClientRole_IsToldWhatNeedsAnOperator) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const Diagnosis diagnosis = Diagnose(absl::StrCat("unix:", cluster_->daemon_directory(0), "/client.sock"));
  EXPECT_EQ(diagnosis.exit_code, 0);
  EXPECT_THAT(diagnosis.findings,
              Contains(Says("warn", "cluster", "not checked from node-0: a probe needs the operator role")));
}

TEST_F(DoctorE2e, CertificateThatEndsSoon_Warns) {
  const CommandResult made =
      RunCommand({"certs", "init", "--folder", Certs(), "--trust-domain", "test.example"});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  ASSERT_NO_FATAL_FAILURE(IssueCertificate("global-store", "90d"));
  ASSERT_NO_FATAL_FAILURE(IssueCertificate("node/node-0", "90d"));
  ASSERT_NO_FATAL_FAILURE(IssueCertificate("node/node-1", "10d"));
  ASSERT_NO_FATAL_FAILURE(IssueCertificate("operator/ada", "90d"));
  ClusterOptions options = DefaultOptions();
  options.daemons = 2;
  options.global_store_settings = As("global-store");
  options.global_store_settings.emplace_back("global_store.listen=127.0.0.1:0");
  for (const char* node : {"node-node-0", "node-node-1"}) {
    std::vector<std::string> settings = As(node);
    settings.emplace_back("daemon.listen=127.0.0.1:0");
    options.settings_of_daemon.push_back(std::move(settings));
  }
  ASSERT_NO_FATAL_FAILURE(StartCluster(options));
  std::vector<std::string> words = {"--cluster"};
  for (const std::string& setting : As("operator-ada")) words.insert(words.end(), {"--set", setting});
  const Diagnosis diagnosis = Diagnose(SocketOf(0), words);
  EXPECT_EQ(diagnosis.exit_code, 0);
  EXPECT_THAT(diagnosis.Of("fail"), IsEmpty());
  EXPECT_THAT(
      diagnosis.findings,
      AllOf(Contains(Says(
                "warn", "node-1",
                "certificate: the certificate of spiffe://test.example/tensorcast/node/node-1 expires in")),
            Contains(Says("ok", "node-0", "certificate: ")),
            Contains(Says("ok", "node-1", "reachability: reached by node-0"))));

  // Without a certificate of its own this program does not reach node-1, and node-0 does.
  const Diagnosis without = Diagnose(SocketOf(0), {"--cluster"});
  EXPECT_EQ(without.exit_code, 0);
  EXPECT_THAT(without.findings,
              Contains(Says("warn", "node-1", "not checked: this node does not answer this host")));
}

TEST_F(DoctorE2e, NoDaemon_SaysWhereItLooked) {
  const std::string nowhere = absl::StrCat("unix:", directory_->path(), "/daemon.sock");
  const Diagnosis diagnosis = Diagnose(nowhere);
  EXPECT_EQ(diagnosis.exit_code, 1);
  EXPECT_THAT(diagnosis.findings,
              Contains(Says("fail", "this host", "daemon: no daemon answers at " + nowhere)));
  EXPECT_THAT(diagnosis.findings, Contains(Says("ok", "this host", "/run/tensorcast")));
}

}  // namespace
}  // namespace tensorcast
