// One model, many receivers, each on a host of its own behind a slow link: they feed each other, and one
// that dies, stops or is cancelled in the middle makes no other fail.
//
// What is counted is what left the source's host, never how long anything took.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "tests/robustness/robustness_test_base.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;

constexpr int kSource = 0;
constexpr int kReceivers = 4;  // nodes 1 to 4
constexpr uint64_t kModelBytes = 32 << 20;
constexpr uint64_t kLink = 100'000'000;  // bits a second: an image takes three seconds
constexpr absl::Duration kLook = absl::Milliseconds(20);

class FanOut : public RobustnessTest {
 protected:
  using Gets = std::vector<std::unique_ptr<client::PendingGet>>;

  // So many hosts, each with a link of its own and so many nodes.
  void StartCrowd(int hosts = 1 + kReceivers, int nodes_a_host = 1) {
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Make(hosts);
    if (!network.ok()) GTEST_SKIP() << network.status();
    network_ = *std::move(network);
    ClusterOptions options = FastOptions();
    network_->Use(options, nodes_a_host);
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(put_, Import(kSource, "m", model_, /*durable=*/true));
    for (int host = 0; host < hosts; ++host) {
      const absl::Status slow = network_->Throttle(host, kLink);
      if (!slow.ok()) GTEST_SKIP() << "links cannot be made slow here: " << slow;
    }
  }

  // At all receivers at once.
  Gets StartGets() {
    Gets gets;
    for (int node = 1; node < cluster_->daemons(); ++node) {
      gets.push_back(client(node).StartGet(Context(), "m", {}));
    }
    return gets;
  }

  void ExpectDone(int node, client::PendingGet& get) {
    SCOPED_TRACE(absl::StrCat("node-", node));
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, get.Wait(Soon()));
    TC_ASSERT_OK(Compare(*replica, model_).status());
  }
  // All but those of `except`.
  void ExpectDone(const Gets& gets, int except = 0) {
    for (size_t i = 0; i < gets.size(); ++i) {
      const int node = static_cast<int>(i) + 1;
      if (node == except) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectDone(node, *gets[i]));
    }
  }

  void DropAtReceivers() {
    for (int node = 1; node < cluster_->daemons(); ++node) {
      TC_ASSERT_OK(AwaitNoIngests(node));
      TC_ASSERT_OK(DropReplicas(node, put_.artifact_id));
    }
  }

  uint64_t Sent(int node) {
    const absl::StatusOr<uint64_t> sent = network_->SentBytes(node);
    EXPECT_TRUE(sent.ok()) << sent.status();
    return sent.value_or(0);
  }

  uint64_t SentByAll() {
    uint64_t sent = 0;
    for (int node = 0; node < cluster_->daemons(); ++node) sent += Sent(node);
    return sent;
  }

  // Waits until so much more has left the node.
  void AwaitSent(int node, uint64_t from, uint64_t bytes) {
    TC_ASSERT_OK(invariants().Await(node, Soon(), [&](const v1::GetStatusResponse&) -> absl::Status {
      const uint64_t sent = Sent(node) - from;
      return sent >= bytes ? absl::OkStatus()
                           : absl::UnavailableError(absl::StrCat(sent, " bytes were sent"));
    }));
  }

  // A receiver of which others have read, the first to be seen; 0 when none was.
  int AwaitFeeder() {
    absl::Mutex mutex;
    int feeder = 0;
    RequestContext context = Context();
    std::vector<std::thread> watchers;
    for (int node = 1; node < cluster_->daemons(); ++node) {
      watchers.emplace_back([&, node] {
        const auto admin = Admin(node);
        if (!admin.ok()) return;
        (void)(*admin)->WatchStatus(context, kLook, [&](const v1::GetStatusResponse& status) {
          const bool feeds =
              std::ranges::any_of(status.servings(), [](const auto& it) { return it.bytes() > 0; });
          absl::MutexLock lock(&mutex);
          if (feeds && feeder == 0) feeder = node;
          return feeder == 0;
        });
        context.cancellation.Cancel();
      });
    }
    for (std::thread& watcher : watchers) watcher.join();
    return feeder;
  }

  std::unique_ptr<Network> network_;
  std::string model_;
  client::PutResult put_;
};

TEST_F(FanOut, FourReceivers_FeedEachOtherAndLeaveNothingBehind) {
  ASSERT_NO_FATAL_FAILURE(StartCrowd());
  if (IsSkipped()) return;
  // What is opened once for all is open after the first time.
  ASSERT_NO_FATAL_FAILURE(ExpectDone(StartGets()));
  ASSERT_NO_FATAL_FAILURE(DropAtReceivers());
  TC_ASSERT_OK(AwaitReplicas(kSource, put_.artifact_id, 2));
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  const uint64_t before = Sent(kSource);
  ASSERT_NO_FATAL_FAILURE(ExpectDone(StartGets()));
  // Four copies where no receiver feeds another.
  EXPECT_LT(Sent(kSource) - before, kModelBytes * 5 / 2);
  ASSERT_NO_FATAL_FAILURE(DropAtReceivers());
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(FanOut, TwoSources_ReceiverPullsFromBothAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartCrowd(3));
  if (IsSkipped()) return;
  TC_ASSERT_OK_AND_ASSIGN(const auto second, client(1).Get(Context(), "m", {}));
  TC_ASSERT_OK(AwaitReplicas(2, put_.artifact_id, 3));
  const uint64_t before[] = {Sent(0), Sent(1)};
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(2).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*replica, model_).status());
  for (int node : {0, 1}) EXPECT_GT(Sent(node) - before[node], kModelBytes / 4) << "node-" << node;
}

// Half of the image is nowhere else then: no receiver can finish, and none waits for ever. What each has by
// then is not pulled again.
TEST_F(FanOut, OnlySourceKilledAtHalf_GetsFailNamingItAndLaterResume) {
  ASSERT_NO_FATAL_FAILURE(StartCrowd());
  if (IsSkipped()) return;
  const uint64_t before_all = SentByAll();
  const uint64_t before = Sent(kSource);
  const Gets gets = StartGets();
  ASSERT_NO_FATAL_FAILURE(AwaitSent(kSource, before, kModelBytes / 2));
  TC_ASSERT_OK(cluster_->daemon(kSource).Signal(SIGKILL));
  for (size_t i = 0; i < gets.size(); ++i) {
    const auto replica = gets[i]->Wait(Soon());
    ASSERT_FALSE(replica.ok());
    EXPECT_FALSE(absl::IsDeadlineExceeded(replica.status())) << replica.status();
    EXPECT_THAT(std::string(replica.status().message()), HasSubstr("node-0"));
  }
  TC_ASSERT_OK(cluster_->daemon(kSource).Wait(Soon()).status());
  TC_ASSERT_OK(cluster_->RestartDaemon(kSource));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  ASSERT_NO_FATAL_FAILURE(ExpectDone(StartGets()));
  // Of so small an image what was under way, and is lost, is a tenth for each.
  EXPECT_LT(SentByAll() - before_all, kReceivers * kModelBytes * 5 / 4);
}

// Three nodes on each of two hosts, of which the first has the image.
class FanOutToHostmates : public FanOut {
 protected:
  static constexpr int kNodesAHost = 3;
  static constexpr int kFirst = kNodesAHost;  // of the second host

  // At the nodes of the second host, at once.
  Gets StartGetsThere() {
    Gets gets;
    for (int node = kFirst; node < 2 * kNodesAHost; ++node) {
      gets.push_back(client(node).StartGet(Context(), "m", {}));
    }
    return gets;
  }
  // Of the second host, the node that pulls over the network; 0 while there is none that others attached to.
  int FindPuller() {
    for (int node = kFirst; node < 2 * kNodesAHost; ++node) {
      const auto admin = Admin(node);
      if (!admin.ok()) continue;
      const auto status = (*admin)->GetStatus(Context());
      if (!status.ok() || status->leases() == 0 || status->running_transfers().empty()) continue;
      const auto& sources = status->running_transfers(0).sources();
      if (std::ranges::any_of(sources, [](const auto& source) { return source.lane() == "tcp"; })) {
        return node;
      }
    }
    return 0;
  }
};

TEST_F(FanOutToHostmates, FanOutToOneHost_ImageCrossesNetworkOnce) {
  ASSERT_NO_FATAL_FAILURE(StartCrowd(/*hosts=*/2, kNodesAHost));
  if (IsSkipped()) return;
  const uint64_t before = Sent(kSource);
  const Gets gets = StartGetsThere();
  std::set<std::string> lanes;
  for (const auto& get : gets) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(Soon()));
    TC_ASSERT_OK(Compare(*replica, model_).status());
    for (const SourceReport& source : replica->transfer()->sources) {
      lanes.insert(absl::StrCat(source.source.lane, source.source.name == "node-0" ? " from afar" : ""));
    }
  }
  EXPECT_THAT(lanes, ::testing::UnorderedElementsAre("tcp from afar", "local"));
  EXPECT_LT(Sent(kSource) - before, kModelBytes * 5 / 4);
}

TEST_F(FanOutToHostmates, PullerOfHostKilled_HostmatesKeepItsChunksAndFinish) {
  ASSERT_NO_FATAL_FAILURE(StartCrowd(/*hosts=*/2, kNodesAHost));
  if (IsSkipped()) return;
  const uint64_t before = Sent(kSource);
  const Gets gets = StartGetsThere();
  int puller = 0;
  ASSERT_TRUE(testing::Eventually([&] { return (puller = FindPuller()) > 0; }));
  ASSERT_NO_FATAL_FAILURE(AwaitSent(kSource, before, kModelBytes / 2));
  TC_ASSERT_OK(cluster_->daemon(puller).Signal(SIGKILL));
  uint64_t from_puller = 0;
  for (int node = kFirst; node < 2 * kNodesAHost; ++node) {
    if (node == puller) continue;
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, gets[node - kFirst]->Wait(Soon()));
    TC_ASSERT_OK(Compare(*replica, model_).status());
    for (const SourceReport& source : replica->transfer()->sources) {
      if (source.source.name == absl::StrCat("node-", puller)) from_puller += source.bytes;
    }
  }
  EXPECT_GT(from_puller, 0);
}

class FeederFault : public FanOut, public ::testing::WithParamInterface<int> {};

TEST_P(FeederFault, FeederKilledOrStopped_OtherReceiversFinish) {
  ASSERT_NO_FATAL_FAILURE(StartCrowd());
  if (IsSkipped()) return;
  const Gets gets = StartGets();
  const int feeder = AwaitFeeder();
  ASSERT_GT(feeder, 0) << "no receiver feeds another";
  TC_ASSERT_OK(cluster_->daemon(feeder).Signal(GetParam()));
  ASSERT_NO_FATAL_FAILURE(ExpectDone(gets, /*except=*/feeder));
  if (GetParam() != SIGSTOP) return;
  TC_ASSERT_OK(cluster_->daemon(feeder).Signal(SIGCONT));
  ExpectDone(feeder, *gets[feeder - 1]);
}

INSTANTIATE_TEST_SUITE_P(FanOut, FeederFault, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) { return info.param == SIGKILL ? "Killed" : "Stopped"; });

}  // namespace
}  // namespace tensorcast
