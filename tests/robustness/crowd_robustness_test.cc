// Many clients of one daemon, each a process of its own, and some of them killed.
#include <gmock/gmock.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

constexpr int kProcesses = 20;
constexpr int kHeldLeases = 10;  // of each
constexpr char kHoldSeconds[] = "60";

class Crowd : public RobustnessTest {
 protected:
  absl::Status AwaitLeases(uint32_t leases) {
    return invariants().Await(0, Soon(), [leases](const v1::GetStatusResponse& status) -> absl::Status {
      if (status.leases() == leases && status.tickets() == 0) return absl::OkStatus();
      return absl::InternalError(absl::StrCat(status.leases(), " leases, not ", leases));
    });
  }
};

TEST_F(Crowd, TwoHundredLeasesOfTwentyProcesses_EndWithTheirProcesses) {
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  TC_ASSERT_OK(client(0).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(AwaitLeases(0));
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));

  std::vector<std::unique_ptr<Process>> clients;
  for (int i = 0; i < kProcesses; ++i) {
    TC_ASSERT_OK_AND_ASSIGN(
        clients.emplace_back(),
        Process::Start({.argv = {TENSORCAST_CHAOS_VICTIM, cluster_->addresses(0).unix_socket, "hold", "m",
                                 "cpu", "", model, kHoldSeconds},
                        .log_path = absl::StrCat(directory_->path(), "/client-", i, ".log"),
                        .ready_pipe = true}));
  }
  TC_ASSERT_OK(AwaitLeases(kProcesses * kHeldLeases));
  for (int i = 0; i < kProcesses / 2; ++i) TC_ASSERT_OK(clients[i]->Signal(SIGKILL));
  TC_ASSERT_OK(AwaitLeases(kProcesses / 2 * kHeldLeases));
  // One daemon, one copy: the clients that are left still hold it.
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  clients.clear();
  TC_ASSERT_OK(AwaitLeases(0));
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

}  // namespace
}  // namespace tensorcast
