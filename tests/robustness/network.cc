#include "tests/robustness/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

std::string Hub() { return absl::StrCat("tcrob", getpid(), "-hub"); }
std::string Namespace(int node) { return absl::StrCat("tcrob", getpid(), "-", node); }
std::string Link(int node) { return absl::StrCat("node", node); }
// Of the bridge: 0; of the nodes: from 1. From the range for benchmarks, which no real network uses.
std::string Address(int host) { return absl::StrCat("198.18.77.", host + 1); }

bool Run(const std::string& program, std::vector<std::string> arguments) {
  for (const char* folder : {"/usr/sbin/", "/sbin/"}) {
    const std::string path = folder + program;
    if (access(path.c_str(), X_OK) != 0) continue;
    arguments.insert(arguments.begin(), path);
    return RunTool(arguments);
  }
  return false;
}

bool Ip(std::vector<std::string> arguments) { return Run("ip", std::move(arguments)); }

bool InHub(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-n", Hub()});
  return Ip(std::move(arguments));
}

}  // namespace

Network::~Network() {
  for (int node = 0; node < nodes_; ++node) Ip({"netns", "del", Namespace(node)});
  Ip({"netns", "del", Hub()});
}

bool Network::SetUp() {
  if (geteuid() != 0 || !Ip({"netns", "add", Hub()}) ||
      !InHub({"link", "add", "bridge0", "type", "bridge"}) ||
      !InHub({"addr", "add", Address(0) + "/24", "dev", "bridge0"}) ||
      !InHub({"link", "set", "bridge0", "up"}) || !InHub({"link", "set", "lo", "up"})) {
    return false;
  }
  for (int node = 0; node < nodes_; ++node) {
    if (!AddNode(node)) return false;
  }
  return true;
}

bool Network::AddNode(int node) {
  const std::string space = Namespace(node);
  return Ip({"netns", "add", space}) &&
         InHub({"link", "add", Link(node), "type", "veth", "peer", "name", "eth0", "netns", space}) &&
         InHub({"link", "set", Link(node), "master", "bridge0"}) &&
         InHub({"link", "set", Link(node), "up"}) &&
         Ip({"-n", space, "addr", "add", Address(node + 1) + "/24", "dev", "eth0"}) &&
         Ip({"-n", space, "link", "set", "eth0", "up"}) && Ip({"-n", space, "link", "set", "lo", "up"});
}

void Network::Use(ClusterOptions& options) const { Use(options, Ports{}); }

void Network::UseDocumentedPorts(ClusterOptions& options) const {
  Use(options, {.global_store = 7000, .daemon = 7001, .tcp = 7002, .ucx = 7010});
}

void Network::Use(ClusterOptions& options, const Ports& ports) const {
  options.daemons = nodes_;
  options.global_store_network_namespace = Hub();
  options.global_store_settings.push_back(
      absl::StrCat("global_store.listen=", Address(0), ":", ports.global_store));
  options.global_store_settings.emplace_back("security.insecure=true");  // the test's own network
  options.daemon_settings.emplace_back("security.insecure=true");
  for (int node = 0; node < nodes_; ++node) {
    const std::string address = Address(node + 1);
    options.settings_of_daemon.push_back({absl::StrCat("daemon.listen=", address, ":", ports.daemon),
                                          absl::StrCat("daemon.host_id=host-", node)});
    // In place of loopback, where the cluster has its lanes.
    for (const std::string& lane : options.lanes) {
      const bool tcp = lane == "tcp";
      options.settings_of_daemon.back().push_back(absl::StrCat(
          tcp ? "daemon.tcp_listen=" : "daemon.ucx_listen=", address, ":", tcp ? ports.tcp : ports.ucx));
    }
    options.network_namespaces.push_back(Namespace(node));
  }
}

// By rules of the routing: there is `ip` wherever there are namespaces, but not everywhere a packet filter.
bool Network::AllowOnly(int node, const std::vector<std::string>& ports) {
  const auto rule = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"-n", Namespace(node), "rule"});
    return Ip(std::move(words));
  };
  const std::string allow = "100", refuse = "200";
  while (rule({"del", "pref", allow})) {
  }
  rule({"del", "pref", refuse});
  for (const std::string& range : ports) {
    for (const char* end : {"dport", "sport"}) {
      if (!rule({"add", "pref", allow, "ipproto", "tcp", end, range, "lookup", "main"})) return false;
    }
  }
  return rule({"add", "pref", refuse, "to", Address(0) + "/24", "ipproto", "tcp", "prohibit"});
}

UniqueFd Network::Capture(int node) const {
  UniqueFd captured;
  // A thread is in a namespace for itself; what it opens there stays there.
  std::thread in_hub([&] {
    const UniqueFd hub(open(absl::StrCat("/run/netns/", Hub()).c_str(), O_RDONLY | O_CLOEXEC));
    if (!hub || setns(hub.get(), CLONE_NEWNET) != 0) return;
    UniqueFd fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
    constexpr int kKept = 256 << 20;
    sockaddr_ll link{};
    link.sll_family = AF_PACKET;
    link.sll_protocol = htons(ETH_P_ALL);
    link.sll_ifindex = static_cast<int>(if_nametoindex(Link(node).c_str()));
    if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kKept, sizeof(kKept)) != 0 ||
        bind(fd.get(), reinterpret_cast<const sockaddr*>(&link), sizeof(link)) != 0) {
      return;
    }
    captured = std::move(fd);
  });
  in_hub.join();
  return captured;
}

bool Network::Cut(int node) { return InHub({"link", "set", Link(node), "down"}); }
bool Network::Heal(int node) { return InHub({"link", "set", Link(node), "up"}); }

bool Network::Throttle(int node, uint64_t bits_per_second) {
  return Run("ip", {"netns", "exec", Namespace(node), "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
                    "rate", absl::StrCat(bits_per_second, "bit"), "burst", "64kb", "latency", "100ms"});
}

}  // namespace tensorcast
