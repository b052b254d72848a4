#include "tools/workshop/cluster/network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {
namespace {

constexpr absl::Duration kToolTimeout = absl::Seconds(20);

// What a link lets through at once after a pause, as time at its rate: enough for the timers of a busy
// machine, too little to be seen in what a transfer takes.
constexpr double kBurstSeconds = 0.020;
constexpr uint64_t kMinBurst = 64 << 10;
constexpr uint64_t kMaxBurst = 2 << 20;
constexpr char kQueue[] = "50ms";  // that may wait before a link; more is dropped

constexpr char kNodeLink[] = "eth0";
std::string HubLink(int node) { return absl::StrCat("node", node); }
// Of the bridge: 1; of the nodes: from 2. From the range for benchmarks, which no real network uses.
std::string HostAddress(int host) { return absl::StrCat("198.18.77.", host); }
constexpr int kMaxNodes = 250;

// Names the namespace to other processes, too.
std::string PathOf(const UniqueFd& space) { return absl::StrCat("/proc/", getpid(), "/fd/", space.get()); }

// A thread is in a namespace for itself; what it opens there stays there.
absl::Status OnThread(absl::FunctionRef<absl::Status()> enter, absl::FunctionRef<void()> work) {
  absl::Status entered;
  std::thread thread([&] {
    entered = enter();
    if (entered.ok()) work();
  });
  thread.join();
  return entered;
}

absl::StatusOr<UniqueFd> MakeNamespace() {
  absl::StatusOr<UniqueFd> made = absl::InternalError("not made");
  const absl::Status status = OnThread(
      [] {
        return unshare(CLONE_NEWNET) == 0 ? absl::OkStatus()
                                          : ErrnoStatus(errno, "make", "a network namespace");
      },
      [&] {
        UniqueFd fd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
        made = fd ? absl::StatusOr<UniqueFd>(std::move(fd))
                  : ErrnoStatus(errno, "open", "/proc/thread-self/ns/net");
      });
  TC_RETURN_IF_ERROR(status);
  return made;
}

absl::StatusOr<std::string> FindTool(std::string_view name) {
  for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
    std::string path = absl::StrCat(folder, name);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return absl::NotFoundError(absl::StrCat("there is no `", name, "` here (Debian: iproute2)"));
}

absl::Status RunInside(const UniqueFd& space, std::vector<std::string> command) {
  const std::string text = absl::StrJoin(command, " ");
  TC_ASSIGN_OR_RETURN(command[0], FindTool(command[0]));
  // A file without a name: nothing is left behind, however this process ends.
  const UniqueFd output(memfd_create("output", MFD_CLOEXEC));
  if (!output) return ErrnoStatus(errno, "memfd_create", "for the output of " + text);
  TC_ASSIGN_OR_RETURN(const auto process, Process::Start({.argv = std::move(command),
                                                          .log_path = PathOf(output),
                                                          .network_namespace = PathOf(space)}));
  TC_ASSIGN_OR_RETURN(const int code, process->Wait(SteadyNow() + kToolTimeout));
  if (code == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(text, " failed with code ", code, ": ",
                                                    absl::StripAsciiWhitespace(FileTail(PathOf(output), 3))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Make(int nodes) {
  if (nodes > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrCat("at most ", kMaxNodes, " hosts, not ", nodes));
  }
  std::unique_ptr<Network> network(new Network);
  absl::Status status = network->AddHub();
  for (int node = 0; status.ok() && node < nodes; ++node) status = network->AddNode();
  if (status.ok()) return network;
  return absl::FailedPreconditionError(absl::StrCat(
      "hosts of their own on this machine take root, `ip` and network namespaces: ", status.message()));
}

absl::Status Network::AddHub() {
  TC_ASSIGN_OR_RETURN(hub_, MakeNamespace());
  TC_RETURN_IF_ERROR(RunInHub({"ip", "link", "add", "bridge0", "type", "bridge"}));
  TC_RETURN_IF_ERROR(RunInHub({"ip", "addr", "add", HostAddress(1) + "/24", "dev", "bridge0"}));
  TC_RETURN_IF_ERROR(RunInHub({"ip", "link", "set", "bridge0", "up"}));
  return RunInHub({"ip", "link", "set", "lo", "up"});
}

absl::Status Network::AddNode() {
  TC_ASSIGN_OR_RETURN(UniqueFd space, MakeNamespace());
  nodes_.push_back(std::move(space));
  const int node = nodes() - 1;
  const std::string link = HubLink(node);
  TC_RETURN_IF_ERROR(RunInHub(
      {"ip", "link", "add", link, "type", "veth", "peer", "name", kNodeLink, "netns", PathOf(nodes_[node])}));
  TC_RETURN_IF_ERROR(RunInHub({"ip", "link", "set", link, "master", "bridge0", "up"}));
  TC_RETURN_IF_ERROR(Run(node, {"ip", "addr", "add", Address(node) + "/24", "dev", kNodeLink}));
  TC_RETURN_IF_ERROR(Run(node, {"ip", "link", "set", kNodeLink, "up"}));
  return Run(node, {"ip", "link", "set", "lo", "up"});
}

std::string Network::Address(int node) { return HostAddress(node + 2); }
std::string Network::Subnet() { return HostAddress(0) + "/24"; }

void Network::Use(ClusterOptions& options, int daemons_a_node) const {
  UsePorts(options, Ports{}, daemons_a_node);
}

void Network::UseDocumentedPorts(ClusterOptions& options) const {
  UsePorts(options, {.global_store = 7000, .daemon = 7001, .tcp = 7002, .ucx = 7010}, /*daemons_a_node=*/1);
}

void Network::UsePorts(ClusterOptions& options, const Ports& ports, int daemons_a_node) const {
  options.daemons = nodes() * daemons_a_node;
  options.global_store_network_namespace = PathOf(hub_);
  options.global_store_settings.push_back(
      absl::StrCat("global_store.listen=", HostAddress(1), ":", ports.global_store));
  options.settings_of_daemon.resize(options.daemons);
  for (int daemon = 0; daemon < options.daemons; ++daemon) {
    const int node = daemon / daemons_a_node;
    std::vector<std::string>& settings = options.settings_of_daemon[daemon];
    settings.push_back(absl::StrCat("daemon.listen=", Address(node), ":", ports.daemon));
    settings.push_back(absl::StrCat("daemon.host_id=host-", node));
    // In place of loopback, where the cluster has its lanes.
    for (const std::string& lane : options.lanes) {
      const bool tcp = lane == "tcp";
      settings.push_back(absl::StrCat(tcp ? "daemon.tcp_listen=" : "daemon.ucx_listen=", Address(node), ":",
                                      tcp ? ports.tcp : ports.ucx));
    }
    options.network_namespaces.push_back(PathOf(nodes_[node]));
  }
}

absl::Status Network::Cut(int node) { return RunInHub({"ip", "link", "set", HubLink(node), "down"}); }
absl::Status Network::Heal(int node) { return RunInHub({"ip", "link", "set", HubLink(node), "up"}); }

absl::Status Network::Throttle(int node, uint64_t bits_per_second) {
  const auto burst = static_cast<uint64_t>(static_cast<double>(bits_per_second) / 8 * kBurstSeconds);
  const auto shape = [&](std::string link) -> std::vector<std::string> {
    return {"tc",
            "qdisc",
            "replace",
            "dev",
            std::move(link),
            "root",
            "tbf",
            "rate",
            absl::StrCat(bits_per_second, "bit"),
            "burst",
            absl::StrCat(std::clamp(burst, kMinBurst, kMaxBurst), "b"),
            "latency",
            kQueue};
  };
  // A queue shapes what leaves a link, so each direction has one: at the node for sending, at the bridge for
  // receiving.
  TC_RETURN_IF_ERROR(Run(node, shape(kNodeLink)));
  return RunInHub(shape(HubLink(node)));
}

absl::StatusOr<uint64_t> Network::SentBytes(int node) const {
  // After the name: eight figures of what was received, then those of what was sent, bytes first.
  constexpr size_t kSentBytesAt = 8;
  absl::StatusOr<uint64_t> sent = absl::InternalError("/proc/net/dev does not tell what a link sent");
  TC_RETURN_IF_ERROR(Inside(node, [&] {
    std::ifstream devices("/proc/thread-self/net/dev");
    for (std::string line; std::getline(devices, line);) {
      const std::vector<std::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
      if (parts.size() < 2 || absl::StripAsciiWhitespace(parts[0]) != kNodeLink) continue;
      const std::vector<std::string_view> figures = absl::StrSplit(parts[1], ' ', absl::SkipEmpty());
      uint64_t bytes = 0;
      if (figures.size() > kSentBytesAt && absl::SimpleAtoi(figures[kSentBytesAt], &bytes)) sent = bytes;
    }
  }));
  return sent;
}

absl::Status Network::Inside(int node, absl::FunctionRef<void()> work) const {
  return OnThread(
      [&] {
        return setns(nodes_[node].get(), CLONE_NEWNET) == 0
                   ? absl::OkStatus()
                   : ErrnoStatus(errno, "enter the network namespace of", absl::StrCat("node ", node));
      },
      work);
}

absl::Status Network::Run(int node, const std::vector<std::string>& command) const {
  return RunInside(nodes_[node], command);
}

absl::Status Network::RunInHub(const std::vector<std::string>& command) const {
  return RunInside(hub_, command);
}

}  // namespace tensorcast
