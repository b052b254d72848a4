// Global stores on a real etcd of three members under programs that bind, resolve and delete keys all the
// time: whatever is killed, stopped, cut off or full, what they are told has to be what one store could have
// told them that does one thing at a time (tools/workshop/chaos/key_history.h).
#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "global_store/metadata/etcd/testing/etcd_cluster.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "tests/robustness/proxy.h"
#include "tests/robustness/robustness_test_base.h"
#include "tests/robustness/settable_clock.h"
#include "tools/workshop/chaos/key_load.h"

namespace tensorcast {
namespace {

using global_store::etcd::EtcdCluster;

constexpr int kStores = 2;
constexpr int kMembers = 3;
constexpr int kLostItsLease = 1;  // exit code
constexpr size_t kSome = 40;      // changes, of a second or so

class FailoverUnderLoad : public RobustnessTest {
 protected:
  // `of_stores`: their environment. Between each store and each member of etcd, and between the daemons and
  // each store, there is a proxy.
  void StartUnderLoad(const Environment& of_stores = {}) {
    TC_ASSERT_OK_AND_ASSIGN(etcd_, EtcdCluster::Start(directory_->path() + "/etcd", kMembers));
    ClusterOptions options = FastOptions();
    options.global_store_environment = of_stores;
    options.global_store_settings = {"global_store.metadata_store=etcd",
                                     "global_store.heartbeat_interval=200ms", "global_store.node_ttl=2s"};
    std::vector<std::string> addresses;
    for (int store = 0; store < kStores; ++store) {
      options.global_store_addresses.push_back(absl::StrCat(EtcdCluster::Host(), ":", 7000 + store));
      proxy_[store].ForwardTo(options.global_store_addresses.back());
      addresses.push_back(proxy_[store].address());
      std::vector<std::string> endpoints;
      for (int member = 0; member < kMembers; ++member) {
        to_etcd_[store][member].ForwardTo(etcd_->endpoints()[member]);
        endpoints.push_back(to_etcd_[store][member].address());
      }
      options.settings_of_global_store.push_back(
          {"global_store.etcd.endpoints=" + absl::StrJoin(endpoints, ",")});
    }
    options.daemon_settings.push_back("daemon.global_store=" + absl::StrJoin(addresses, ","));
    StartRobustCluster(options);
    if (HasFatalFailure()) return;

    chaos::KeyLoadOptions load{
        .daemons = {cluster_->addresses(0).unix_socket, cluster_->addresses(1).unix_socket}};
    for (const char* name : {"a", "b"}) {
      const std::string model = MakeModel(absl::StrCat(name, ".safetensors"), 4 << 20, 1, *name);
      TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, name, model));
      load.artifacts.push_back(put.artifact_id);
    }
    TC_ASSERT_OK_AND_ASSIGN(load_, chaos::KeyLoad::Start(load));
    ASSERT_TRUE(load_->AwaitAcknowledged(kSome, Soon()));
  }

  // As a supervisor does: those that lost their lease are started again.
  void Supervise() {
    for (int store = 0; store < kStores; ++store) {
      if (cluster_->global_store(store).running()) continue;
      TC_ASSERT_OK_AND_ASSIGN(const int code, cluster_->global_store(store).Wait(Soon()));
      EXPECT_THAT(code, ::testing::AnyOf(kLostItsLease, -SIGKILL, 128 + SIGKILL)) << "store " << store;
      TC_ASSERT_OK(cluster_->RestartGlobalStore(store));
    }
  }
  // Programs get on again.
  void AwaitProgress() {
    const SteadyTime deadline = Soon();
    while (!load_->AwaitAcknowledged(kSome, std::min(deadline, SteadyNow() + absl::Seconds(2)))) {
      ASSERT_LT(SteadyNow(), deadline) << load_->history().acknowledged() << " changes were acknowledged";
      ASSERT_NO_FATAL_FAILURE(Supervise());
    }
  }
  void ExpectNothingLost() {
    ASSERT_NO_FATAL_FAILURE(AwaitProgress());
    load_->Stop();
    TC_ASSERT_OK(load_->Check());
    TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
    RecordProperty("acknowledged", static_cast<int>(load_->history().acknowledged()));
    RecordProperty("without_answer", static_cast<int>(load_->history().unknown()));
  }
  void AwaitEndOf(int store) {
    TC_ASSERT_OK_AND_ASSIGN(const int code, cluster_->global_store(store).Wait(Soon()));
    EXPECT_EQ(code, kLostItsLease);
  }

  std::unique_ptr<EtcdCluster> etcd_;
  std::array<std::array<Proxy, kMembers>, kStores> to_etcd_;
  std::array<Proxy, kStores> proxy_;  // the daemons'
  std::unique_ptr<chaos::KeyLoad> load_;
};

TEST_F(FailoverUnderLoad, LeaderKilled_NextLeaderTakesOverWithoutLoss) {
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad());
  for (int round = 0; round < 2; ++round) {
    TC_ASSERT_OK(cluster_->AwaitLeader(Soon()));
    TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
    ASSERT_NO_FATAL_FAILURE(AwaitProgress());
    ASSERT_NO_FATAL_FAILURE(Supervise());
  }
  ExpectNothingLost();
}

// What reached it before it was stopped, and what reaches it then, is answered only by the next leader.
TEST_F(FailoverUnderLoad, LeaderStoppedBeyondItsLease_AnswersNoCallsAndEnds) {
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad());
  const auto stub = v1::GlobalStore::NewStub(rpc::MakeChannel(absl::StrCat(EtcdCluster::Host(), ":", 7000)));
  v1::ResolveKeyRequest resolve;
  resolve.set_key("a");
  const auto ask = [&] {
    return rpc::CallUnary(*stub, &v1::GlobalStore::Stub::ResolveKey, Context(), resolve,
                          {.retry_for = absl::ZeroDuration()})
        .status();
  };
  TC_ASSERT_OK(ask());
  TC_ASSERT_OK(cluster_->global_store(0).Signal(SIGSTOP));
  ASSERT_NO_FATAL_FAILURE(AwaitProgress()) << "the other one leads, so the lease has ended";
  absl::Status answer;
  std::thread asking([&] { answer = ask(); });
  TC_ASSERT_OK(cluster_->global_store(0).Signal(SIGCONT));
  asking.join();
  EXPECT_FALSE(answer.ok());
  ASSERT_NO_FATAL_FAILURE(AwaitEndOf(0));
  ASSERT_NO_FATAL_FAILURE(Supervise());
  ExpectNothingLost();
}

TEST_F(FailoverUnderLoad, LeaderCutOffFromEtcd_EndsAndNextLeaderTakesOver) {
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad());
  for (Proxy& proxy : to_etcd_[0]) proxy.Cut();
  ASSERT_NO_FATAL_FAILURE(AwaitEndOf(0));
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  for (Proxy& proxy : to_etcd_[0]) proxy.Heal();
  ASSERT_NO_FATAL_FAILURE(Supervise());
  ExpectNothingLost();
}

// No daemon can tell whether it is gone or only not heard: it leads on, and is there again when it is
// heard again.
TEST_F(FailoverUnderLoad, LeaderCutOffFromDaemons_LeadsOnAfterTheCut) {
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad());
  proxy_[0].Cut();
  ASSERT_TRUE(load_->AwaitUnknown(8, Soon()));
  EXPECT_TRUE(cluster_->global_store(0).running());
  proxy_[0].Heal();
  ExpectNothingLost();
  EXPECT_TRUE(cluster_->global_store(0).running());
}

TEST_F(FailoverUnderLoad, OneEtcdMemberAtATimeFails_WorkContinues) {
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad());
  TC_ASSERT_OK_AND_ASSIGN(const int leader, etcd_->Leader());
  for (const int member : {leader, (leader + 1) % kMembers}) {
    etcd_->Kill(member);
    ASSERT_NO_FATAL_FAILURE(AwaitProgress());
    etcd_->Restart(member);
    ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  }
  etcd_->Signal((leader + 2) % kMembers, SIGSTOP);
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  etcd_->Signal((leader + 2) % kMembers, SIGCONT);
  ExpectNothingLost();
}

TEST_F(FailoverUnderLoad, TwoEtcdMembersFail_CallsWaitUntilTheyReturn) {
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad());
  etcd_->Kill(0);
  etcd_->Kill(1);
  ASSERT_TRUE(load_->AwaitUnknown(8, Soon()));
  etcd_->Restart(0);
  etcd_->Restart(1);
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  etcd_->Signal(1, SIGSTOP);
  etcd_->Signal(2, SIGSTOP);
  ASSERT_TRUE(load_->AwaitUnknown(8, Soon()));
  etcd_->Signal(1, SIGCONT);
  etcd_->Signal(2, SIGCONT);
  ExpectNothingLost();
}

// As when they were on one machine.
TEST_F(FailoverUnderLoad, LeadersOfStoreAndEtcdKilledAtOnce_WorkContinues) {
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad());
  TC_ASSERT_OK_AND_ASSIGN(const int leader, etcd_->Leader());
  TC_ASSERT_OK(cluster_->global_store(0).Signal(SIGKILL));
  etcd_->Kill(leader);
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  etcd_->Restart(leader);
  ExpectNothingLost();
}

TEST_F(FailoverUnderLoad, ClockSet_LeaderKeepsItsLease) {
  if (const std::string missing = SettableClock::Missing(); !missing.empty()) GTEST_SKIP() << missing;
  const SettableClock clock(directory_->path());
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad(clock.environment()));
  for (const char* offset : {"+6h", "-6h", "+0"}) {
    SCOPED_TRACE(offset);
    clock.Set(offset);
    ASSERT_TRUE(load_->AwaitAcknowledged(kSome, Soon()));
  }
  for (int store = 0; store < kStores; ++store) EXPECT_TRUE(cluster_->global_store(store).running()) << store;
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
  TC_ASSERT_OK_AND_ASSIGN(const auto status, admin->GetClusterStatus(Context()));
  EXPECT_EQ(status.store_epoch(), 1u) << "it has led all the while";
  ExpectNothingLost();
}

class FullMember : public FailoverUnderLoad {
 protected:
  void TearDown() override {
    FailoverUnderLoad::TearDown();
    load_.reset();
    etcd_.reset();
    if (!disk_.empty()) umount2(disk_.c_str(), MNT_DETACH);
  }
  std::string disk_;
};

TEST_F(FullMember, EtcdMemberWithFullDisk_WorkContinuesWithoutIt) {
  // Room for its log, which it takes in pieces of 64 MB ahead, and little else.
  const std::string disk = directory_->path() + "/etcd/m1";
  std::filesystem::create_directories(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=192m") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here (" << std::strerror(errno)
                 << "); this takes root";
  }
  disk_ = disk;
  ASSERT_NO_FATAL_FAILURE(StartUnderLoad());
  const std::string ballast = disk + "/ballast";
  {
    std::ofstream file(ballast, std::ios::binary);
    const std::string block(64 << 10, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())) && file.flush()) {
    }
    ASSERT_FALSE(file.good()) << "the disk is not full";
  }
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  // Whether or not it has noticed: it is started again without room, and then with some.
  etcd_->Restart(1);
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  std::filesystem::remove(ballast);
  etcd_->Restart(1);
  etcd_->Kill(0);
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  etcd_->Restart(0);
  ExpectNothingLost();
}

}  // namespace
}  // namespace tensorcast
