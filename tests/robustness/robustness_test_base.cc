#include "tests/robustness/robustness_test_base.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "security/testing/test_authority.h"

namespace tensorcast {

ClusterOptions RobustnessTest::FastOptions() const {
  ClusterOptions options = DefaultOptions();
  // A grant of a process that was killed ends, and a peer that hangs is given up, within a test's patience.
  options.global_store_settings.push_back("global_store.grant_ttl=5s");
  options.daemon_settings.push_back("daemon.peer_timeout=1s");
  return options;
}

void RobustnessTest::StartRobustCluster(const ClusterOptions& options) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(options));
  invariants_ = std::make_unique<chaos::Invariants>(*cluster_, *devices_);
}

absl::StatusOr<client::PutResult> RobustnessTest::Import(int node, const std::string& key,
                                                         const std::string& model, bool durable) {
  TC_ASSIGN_OR_RETURN(client::PutResult put,
                      client(node).Import(Context(), model, {.key = key, .durable = durable}));
  invariants_->Acknowledge(key, put.artifact_id, model);
  return put;
}

absl::Status RobustnessTest::DropReplicas(int node, const std::string& artifact_id) {
  TC_ASSIGN_OR_RETURN(const auto admin, Admin(node));
  TC_ASSIGN_OR_RETURN(const auto replicas, admin->ListReplicas(Context(), artifact_id));
  for (const v1::Replica& replica : replicas) {
    // Packed files stay: what is dropped can be read again.
    if (replica.location().kind() == v1::LOCATION_KIND_DISK) continue;
    const absl::Status evicted = admin->EvictReplica(Context(), replica.replica_id(), /*force=*/true);
    if (!absl::IsNotFound(evicted)) TC_RETURN_IF_ERROR(evicted);
  }
  return absl::OkStatus();
}

absl::Status RobustnessTest::AwaitReplicas(int node, const std::string& artifact_id, int replicas) {
  TC_ASSIGN_OR_RETURN(const auto admin, Admin(node));
  return invariants_->Await(node, Soon(), [&](const v1::GetStatusResponse&) -> absl::Status {
    TC_ASSIGN_OR_RETURN(const auto artifacts, admin->ListArtifacts(Context(), /*unkeyed_only=*/false,
                                                                   absl::ZeroDuration(), /*replicas=*/true));
    for (const v1::Artifact& artifact : artifacts) {
      if (artifact.artifact_id() != artifact_id) continue;
      if (artifact.replicas_size() == replicas) return absl::OkStatus();
      return absl::InternalError(absl::StrCat(artifact.replicas_size(), " replicas, not ", replicas));
    }
    return absl::NotFoundError(absl::StrCat("artifact ", artifact_id, " is not listed"));
  });
}

absl::Status RobustnessTest::AwaitNoIngests(int node) {
  return invariants_->Await(node, Soon(), [](const v1::GetStatusResponse& status) -> absl::Status {
    if (status.active_transfers() == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(status.active_transfers(), " ingests still run"));
  });
}

void RobustnessTest::Reconnect(int node) { TC_ASSERT_OK_AND_ASSIGN(clients_[node], NewClient(node)); }

namespace {

// Of a process with this certificate.
std::vector<std::string> SecuritySettings(const security::Identity::Files& files) {
  return {"security.ca=" + files.ca, "security.certificate=" + files.certificate, "security.key=" + files.key,
          "security.denied=" + files.denied};
}

}  // namespace

void UseCertificates(ClusterOptions& options, const security::testing::TestAuthority& authority) {
  const auto append = [](std::vector<std::string>& to, std::vector<std::string> settings) {
    to.insert(to.end(), settings.begin(), settings.end());
  };
  append(options.global_store_settings, SecuritySettings(authority.Issue("global-store")));
  // First, so that addresses that are set already stand.
  options.global_store_settings.insert(options.global_store_settings.begin(),
                                       "global_store.listen=127.0.0.1:0");
  options.daemon_settings.insert(options.daemon_settings.begin(), "daemon.listen=127.0.0.1:0");
  options.settings_of_daemon.resize(options.daemons);
  for (int node = 0; node < options.daemons; ++node) {
    append(options.settings_of_daemon[node],
           SecuritySettings(authority.Issue(absl::StrCat("node/node-", node))));
  }
}

bool RunTool(std::vector<std::string> argv) {
  const auto process = Process::Start({.argv = std::move(argv), .log_path = "/dev/null"});
  return process.ok() && (*process)->Wait(SteadyNow() + kStepTimeout).value_or(-1) == 0;
}

// It is free once this returns, and may be taken by another process before it is used.
int FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return 0;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.sin_port);
}

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

UniqueFd ConnectTcp(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return UniqueFd();
  return fd;
}

UniqueFd ConnectUnix(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return UniqueFd();
  return fd;
}

}  // namespace tensorcast
