// What an eavesdropper learns from every packet of a node while a model is pulled from it: with certificates
// nothing of the model, of the grant's token or of the pull's id; without, all of it, so the search works.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>

#include <bitset>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "security/testing/test_authority.h"
#include "tests/robustness/robustness_test_base.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast {
namespace {

constexpr uint64_t kModelBytes = 4 << 20;
constexpr size_t kWindowBytes = 16;
constexpr int kDistinctBytes = 8;  // in a window that nothing but the model has
constexpr int kSource = 0;
constexpr int kReceiver = 1;

// What was heard. Only what the packets carry is looked at, so that a needle is not cut by a header.
struct Heard {
  uint64_t windows = 0;     // of the model
  bool token = false;       // of a grant
  bool descriptor = false;  // with the pull's id
  bool hello = false;       // the same
  bool name = false;        // of the artifact, anywhere
  uint64_t bytes = 0;
};

// A packet socket that hears all that goes to and from the node that this thread is in, and keeps it, at most
// some hundred MiB, until it is read; not set when it failed.
UniqueFd HearAll() {
  UniqueFd fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
  constexpr int kKept = 256 << 20;
  sockaddr_ll link{};
  link.sll_family = AF_PACKET;
  link.sll_protocol = htons(ETH_P_ALL);
  link.sll_ifindex = static_cast<int>(if_nametoindex("eth0"));
  if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kKept, sizeof(kKept)) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&link), sizeof(link)) != 0) {
    return UniqueFd();
  }
  return fd;
}

class Capture : public RobustnessTest {
 protected:
  // The whole of a get of a model, and an import before it.
  void HearAPull(bool secured, Heard& heard) {
    absl::StatusOr<std::unique_ptr<Network>> made = Network::Make(2);
    if (!made.ok()) GTEST_SKIP() << made.status();
    network_ = *std::move(made);
    ClusterOptions options = FastOptions();
    network_->Use(options);
    if (secured) UseCertificates(options, authority_);
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    UniqueFd captured;
    TC_ASSERT_OK(network_->Inside(kSource, [&] { captured = HearAll(); }));
    ASSERT_TRUE(captured);
    const std::string model = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(kSource, "m", model));
    TC_ASSERT_OK(AwaitReplicas(kReceiver, put.artifact_id, 1));
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(kReceiver).Get(Context(), "m", {.lane = "tcp"}));
    TC_ASSERT_OK(Compare(*replica, model).status());
    Search(captured.get(), model, put.artifact_id, heard);
    EXPECT_GT(heard.bytes, kModelBytes) << "the capture is not whole";
  }

 private:
  // Windows of the model that are its own: as many bytes of zeros may be in any packet.
  static absl::flat_hash_set<std::string> WindowsOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string model((std::istreambuf_iterator<char>(file)), {});
    absl::flat_hash_set<std::string> windows;
    for (size_t at = 0; at + kWindowBytes <= model.size(); at += 4 * kWindowBytes) {
      std::bitset<256> distinct;
      for (size_t i = 0; i < kWindowBytes; ++i) distinct.set(static_cast<uint8_t>(model[at + i]));
      if (distinct.count() >= kDistinctBytes) windows.insert(model.substr(at, kWindowBytes));
    }
    return windows;
  }

  static void Search(int captured, const std::string& model, const std::string& artifact_id, Heard& heard) {
    const absl::flat_hash_set<std::string> windows = WindowsOf(model);
    ASSERT_GT(windows.size(), kModelBytes / 200);
    // In a token every name is behind its length, in two bytes (rpc/grant_token/FORMAT.md).
    const std::string in_token = absl::StrCat(
        std::string(1, '\0'), std::string(1, static_cast<char>(artifact_id.size())), artifact_id);
    std::string packet(256 << 10, '\0');
    for (;;) {
      const ssize_t got = recv(captured, packet.data(), packet.size(), MSG_DONTWAIT);
      if (got < 0) return;
      const std::string_view bytes(packet.data(), got);
      heard.bytes += bytes.size();
      heard.token |= absl::StrContains(bytes, in_token);
      heard.name |= absl::StrContains(bytes, artifact_id);
      // How they begin, with the version, so that no random bytes are taken for one.
      heard.descriptor |= absl::StrContains(bytes, "TCPD\x01");
      heard.hello |= absl::StrContains(bytes, "TCTP\x04");
      for (size_t at = 0; at + kWindowBytes <= bytes.size(); ++at) {
        heard.windows += windows.contains(bytes.substr(at, kWindowBytes)) ? 1 : 0;
      }
    }
  }

  security::testing::TestAuthority authority_;
  std::unique_ptr<Network> network_;
};

TEST_F(Capture, CaptureWithCertificates_ShowsNoModelBytesTokensOrNames) {
  Heard heard;
  ASSERT_NO_FATAL_FAILURE(HearAPull(/*secured=*/true, heard));
  if (IsSkipped()) return;
  EXPECT_EQ(heard.windows, 0u) << "bytes of the model";
  EXPECT_FALSE(heard.token);
  EXPECT_FALSE(heard.descriptor);
  EXPECT_FALSE(heard.hello);
  EXPECT_FALSE(heard.name);
}

TEST_F(Capture, CaptureWithoutCertificates_ShowsModelBytesTokensAndNames) {
  Heard heard;
  ASSERT_NO_FATAL_FAILURE(HearAPull(/*secured=*/false, heard));
  if (IsSkipped()) return;
  EXPECT_GT(heard.windows, kModelBytes / 200);
  EXPECT_TRUE(heard.token);
  EXPECT_TRUE(heard.descriptor);
  EXPECT_TRUE(heard.hello);
  EXPECT_TRUE(heard.name);
}

}  // namespace
}  // namespace tensorcast
