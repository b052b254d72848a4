// A malicious node with a valid certificate (tools/workshop/chaos/liar.h): it can neither shut out other
// nodes, nor make them lose replicas, nor control a terminal.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/testing/eventually.h"
#include "core/handles/handle_server.h"
#include "rpc/credentials.h"
#include "security/testing/test_authority.h"
#include "tests/robustness/robustness_test_base.h"
#include "tools/workshop/chaos/liar.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kModelBytes = 4 << 20;

class LiarTest : public RobustnessTest {
 protected:
  void SetUp() override {
    RobustnessTest::SetUp();
    ClusterOptions options = FastOptions();
    options.settings_of_daemon = {{"daemon.host_id=host-0"}, {"daemon.host_id=host-1"}};
    UseCertificates(options, authority_);
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model_));
    artifact_ = put.artifact_id;
    TC_ASSERT_OK(AwaitReplicas(1, artifact_, 1));
    std::filesystem::rename(model_, model_ + ".moved");  // no origin is left
    model_ += ".moved";
    TC_ASSERT_OK_AND_ASSIGN(liar_, StartLiar({}));
  }

  absl::StatusOr<std::unique_ptr<chaos::Liar>> StartLiar(chaos::LiarOptions options) {
    options.global_store = cluster_->global_store_address();
    options.credentials = std::make_shared<rpc::Credentials>(authority_.Load("node/" + options.name));
    return chaos::Liar::Start(options);
  }
  std::vector<v1::Artifact> Artifacts() {
    const auto admin = Admin(0);
    EXPECT_TRUE(admin.ok()) << admin.status();
    const auto artifacts =
        (*admin)->ListArtifacts(Context(), /*unkeyed_only=*/false, absl::ZeroDuration(), /*replicas=*/true);
    EXPECT_TRUE(artifacts.ok()) << artifacts.status();
    return artifacts.value_or(std::vector<v1::Artifact>());
  }
  void ExpectGets(int node) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(node).Get(Context(), "m"));
    TC_ASSERT_OK(Compare(*replica, model_).status());
  }
  std::string LogOf(const std::string& process) const {
    std::ifstream file(absl::StrCat(directory_->path(), "/", process, "/log"));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  security::testing::TestAuthority authority_;
  std::string model_;
  std::string artifact_;
  std::unique_ptr<chaos::Liar> liar_;
};

TEST_F(LiarTest, EscapeSequencesFromNode_ReachNoTerminal) {
  const absl::Status refused =
      liar_->Register([](v1::Node& node) { node.set_grpc_address("10.0.0.1\x1B[2J:1"); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_FALSE(liar_->Register([](v1::Node& node) { node.add_lanes("\x1B]0;title\x07"); }).ok());
  // Its errors come when it is asked for bytes, which it has none of.
  TC_ASSERT_OK(liar_->Claim(Artifacts()));
  for (int i = 0; i < 20 && liar_->asked() == 0; ++i) {
    ASSERT_NO_FATAL_FAILURE(ExpectGets(1));
    TC_ASSERT_OK(DropReplicas(1, artifact_));
  }
  EXPECT_GT(liar_->asked(), 0);
  const std::string& daemon = cluster_->addresses(1).unix_socket;
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"status"}, {"ls"}, {"explain"}, {"top", "--once"}}) {
    std::vector<std::string> words = command;
    words.insert(words.end(), {"--daemon", daemon});
    EXPECT_THAT(RunCommand(words).output, Not(HasSubstr("\x1B"))) << command.front();
  }
  EXPECT_THAT(LogOf("node-1"), Not(HasSubstr("\x1B")));
}

TEST_F(LiarTest, ReplicaIdsClaimedFirstByLiar_ShutNoNodeOut) {
  const std::vector<v1::Artifact> artifacts = Artifacts();
  ASSERT_NO_FATAL_FAILURE(ExpectGets(1));
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
  for (int node = 0; node < 2; ++node) TC_ASSERT_OK(cluster_->daemon(node).Signal(SIGSTOP));
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  EXPECT_TRUE(testing::Eventually([&] { return liar_->Register([](v1::Node&) {}).ok(); }));
  TC_ASSERT_OK(liar_->Claim(artifacts));
  for (int node = 0; node < 2; ++node) TC_ASSERT_OK(cluster_->daemon(node).Signal(SIGCONT));
  // Those of both nodes, and two lies.
  TC_ASSERT_OK(AwaitReplicas(0, artifact_, 4));
  TC_ASSERT_OK(DropReplicas(1, artifact_));
  ExpectGets(1);
}

TEST_F(LiarTest, FalseAccusations_TakeNoReplicaOutOfService) {
  TC_ASSERT_OK(liar_->Accuse(Artifacts(), /*with_grants=*/false));
  ASSERT_NO_FATAL_FAILURE(ExpectGets(1));
  TC_ASSERT_OK(DropReplicas(1, artifact_));
  TC_ASSERT_OK(AwaitReplicas(1, artifact_, 1));
  // Under a grant: until the accused node has digested its replica again.
  TC_ASSERT_OK(liar_->Accuse(Artifacts(), /*with_grants=*/true));
  EXPECT_TRUE(testing::Eventually([&] { return client(1).Get(Context(), "m").ok(); }));
  EXPECT_TRUE(
      testing::Eventually([&] { return LogOf("node-0").find("matches its manifest") != std::string::npos; }));
}

TEST_F(LiarTest, UnprovenCopies_DoNotAllowEvictionOfLastCopy) {
  TC_ASSERT_OK(liar_->Claim(Artifacts()));
  TC_ASSERT_OK(AwaitReplicas(0, artifact_, 3));
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto held, admin->ListReplicas(Context(), artifact_));
  ASSERT_EQ(held.size(), 1u);
  const absl::Status evicted = admin->EvictReplica(Context(), held[0].replica_id(), /*force=*/false);
  EXPECT_EQ(evicted.code(), absl::StatusCode::kFailedPrecondition) << evicted;
  EXPECT_THAT(std::string(evicted.message()), HasSubstr("liar did not prove"));
  // With a copy on a node that has the bytes it may go.
  ASSERT_NO_FATAL_FAILURE(ExpectGets(1));
  TC_ASSERT_OK(AwaitReplicas(0, artifact_, 4));
  TC_ASSERT_OK(admin->EvictReplica(Context(), held[0].replica_id(), /*force=*/false));
  ExpectGets(1);
}

// It says that it is on the victim's host, and hands over memory that it truncates.
TEST_F(LiarTest, MemoryThatShrinks_IsNotMapped) {
  constexpr uint64_t kPoolBytes = 32 << 20;
  const UniqueFd memory(memfd_create("pool of a liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(memory.get(), kPoolBytes), 0);
  const std::string socket = directory_->path() + "/liar.sock";
  TC_ASSERT_OK_AND_ASSIGN(const auto handles, HandleServer::Start({.path = socket}));
  const std::vector<v1::Artifact> artifacts = Artifacts();
  ASSERT_EQ(artifacts.size(), 1u);
  const auto image_bytes = artifacts[0].image_bytes();
  const auto claims = std::make_shared<std::atomic<int>>(0);
  TC_ASSERT_OK_AND_ASSIGN(
      const auto neighbour,
      StartLiar({.name = "neighbour", .host_id = "host-1", .handle_socket = socket, .ticket = [&] {
                   Claim claim;
                   const uint64_t granules =
                       (image_bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
                   claim.handles = {"lie", artifact_, image_bytes,
                                    HostHandles{.pool_id = "lies",
                                                .segments = {{.number = 0, .bytes = kPoolBytes}},
                                                .extents = {{0, 0, 0, granules}}}};
                   claim.fds = {memory.get()};
                   // When the receiver has let go, or has just got it.
                   std::thread([fd = dup(memory.get()), claims] {
                     absl::SleepFor(absl::Milliseconds(1));
                     ++*claims;
                     (void)!ftruncate(fd, 0);
                     close(fd);
                   }).detach();
                   return handles->IssueTicket(std::move(claim));
                 }}));
  TC_ASSERT_OK(neighbour->Claim(artifacts));
  for (int i = 0; i < 10 && *claims == 0; ++i) {
    ASSERT_NO_FATAL_FAILURE(ExpectGets(1));
    TC_ASSERT_OK(DropReplicas(1, artifact_));
    ASSERT_EQ(ftruncate(memory.get(), kPoolBytes), 0);
  }
  EXPECT_GT(*claims, 0) << "no daemon attached to the liar";
  EXPECT_TRUE(cluster_->daemon(1).running());
  ExpectGets(1);
}

}  // namespace
}  // namespace tensorcast
