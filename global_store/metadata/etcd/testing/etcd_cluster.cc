#include "global_store/metadata/etcd/testing/etcd_cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace tensorcast::global_store::etcd {
namespace {

constexpr int kClients = 2379;
constexpr int kPeers = 2380;
constexpr absl::Duration kStart = absl::Seconds(60);
constexpr absl::Duration kAnswer = absl::Seconds(2);

std::string Address(int member, int port) {
  return absl::StrCat(EtcdCluster::Host(), ":", port + 10 * member);
}

}  // namespace

EtcdCluster::EtcdCluster(std::filesystem::path folder, int members, std::vector<std::string> flags, bool tls)
    : folder_(std::move(folder)), flags_(std::move(flags)), tls_(tls), members_(members) {}

std::string EtcdCluster::Host() {
  const unsigned pid = static_cast<unsigned>(getpid());
  return absl::StrCat("127.", 64 + (pid >> 16) % 64, ".", pid >> 8 & 255, ".", pid & 255);
}

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> endpoints;
  for (size_t i = 0; i < members_.size(); ++i) endpoints.push_back(Address(static_cast<int>(i), kClients));
  return endpoints;
}

void EtcdCluster::Spawn(int member) {
  const auto url = [&](int port) {
    return absl::StrCat(tls_ && port == kClients ? "https://" : "http://", Address(member, port));
  };
  std::vector<std::string> peers;
  for (size_t i = 0; i < members_.size(); ++i) {
    peers.push_back(absl::StrCat("m", i, "=http://", Address(static_cast<int>(i), kPeers)));
  }
  std::vector<std::string> arguments = {
      TENSORCAST_ETCD,
      absl::StrCat("--name=m", member),
      absl::StrCat("--data-dir=", (folder_ / absl::StrCat("m", member)).string()),
      "--listen-client-urls=" + url(kClients),
      "--advertise-client-urls=" + url(kClients),
      "--listen-peer-urls=" + url(kPeers),
      "--initial-advertise-peer-urls=" + url(kPeers),
      "--initial-cluster=" + absl::StrJoin(peers, ","),
      "--log-level=error"};
  arguments.insert(arguments.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string log = folder_ / absl::StrCat("m", member, ".log");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  members_[member] = std::max(child, 0);
}

absl::StatusOr<std::unique_ptr<EtcdCluster>> EtcdCluster::Start(const std::filesystem::path& folder,
                                                                int members, std::vector<std::string> flags,
                                                                ClientOptions login) {
  std::filesystem::create_directories(folder);
  const bool tls = !login.ca.empty();
  std::unique_ptr<EtcdCluster> cluster(new EtcdCluster(folder, members, std::move(flags), tls));
  for (int i = 0; i < members; ++i) cluster->Spawn(i);
  login.endpoints = cluster->endpoints();
  TC_ASSIGN_OR_RETURN(const auto client, Client::Create(login));
  etcdserverpb::RangeRequest any;
  any.set_key("any");
  const absl::Status answers = client->Range(RequestContext::Background(kStart), any).status();
  if (answers.ok()) return cluster;
  return Annotate(answers, absl::StrCat("etcd does not start (tools/setup.sh --tests brings it; logs in ",
                                        folder.string(), ")"));
}

EtcdCluster::~EtcdCluster() {
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) Kill(i);
}

absl::StatusOr<int> EtcdCluster::Leader() const {
  for (int i = 0; i < members(); ++i) {
    TC_ASSIGN_OR_RETURN(const auto client, Client::Create({.endpoints = {Address(i, kClients)}}));
    const auto status = client->Status(RequestContext::Background(kAnswer));
    if (status.ok() && status->leader() == status->header().member_id()) return i;
  }
  return absl::UnavailableError("no member of etcd leads");
}

void EtcdCluster::Signal(int member, int signal) const {
  if (members_[member] > 0) kill(members_[member], signal);
}

void EtcdCluster::Kill(int member) {
  Signal(member, SIGKILL);
  if (members_[member] > 0) waitpid(members_[member], nullptr, 0);
  members_[member] = 0;
}

void EtcdCluster::Restart(int member) {
  Kill(member);
  Spawn(member);
}

}  // namespace tensorcast::global_store::etcd
