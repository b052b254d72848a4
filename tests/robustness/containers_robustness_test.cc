// Daemons and clients in containers: PID and user namespaces of their own, in which the other side has no
// process id and another user id. Host memory changes hands all the same, and the lease of a client that dies
// ends.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

// A command prefix: runs the rest in its own namespaces, as their root, and kills it with its waiting parent.
constexpr char kContained[] = "unshare --pid --user --map-root-user --fork --kill-child";

class Containers : public RobustnessTest {
 protected:
  // A program that runs `command` in a container.
  std::string Contained(const std::string& name, const std::string& command) const {
    const std::string script = absl::StrCat(directory_->path(), "/", name);
    std::ofstream(script) << "#!/bin/sh\nexec " << kContained << " '" << command << "' \"$@\"\n";
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    return script;
  }
  static bool CanContain() { return RunTool({"/bin/sh", "-c", absl::StrCat(kContained, " true")}); }

  // A client that holds the replica of "m" at this location, in a container where `contained` says so.
  absl::StatusOr<std::unique_ptr<Process>> Hold(const std::string& location, bool contained) {
    const std::string program =
        contained ? Contained("holder", TENSORCAST_LEASE_HOLDER) : TENSORCAST_LEASE_HOLDER;
    TC_ASSIGN_OR_RETURN(auto holder,
                        Process::Start({.argv = {program, cluster_->addresses(0).unix_socket, "m", location},
                                        .log_path = absl::StrCat(directory_->path(), "/holder.log"),
                                        .ready_pipe = true}));
    TC_RETURN_IF_ERROR(holder->WaitReady(Soon()).status());
    return holder;
  }
  absl::Status AwaitLeases(int leases) {
    return invariants().Await(0, Soon(), [&](const v1::GetStatusResponse& status) -> absl::Status {
      if (static_cast<int>(status.leases()) == leases) return absl::OkStatus();
      return absl::InternalError(absl::StrCat(status.leases(), " leases, not ", leases));
    });
  }
  void ExpectHeldUntilKilled(bool contained) {
    TC_ASSERT_OK_AND_ASSIGN(const auto holder, Hold("cpu", contained));
    TC_ASSERT_OK(AwaitLeases(1));
    TC_ASSERT_OK(holder->Signal(SIGKILL));
    TC_ASSERT_OK(AwaitLeases(0));
    // The devices' own way to share memory, CUDA's as the fake one's, needs one PID namespace. Where there
    // are two it is refused, and nothing is held for a client that could not open it.
    EXPECT_FALSE(Hold("gpu:0", contained).ok());
    TC_ASSERT_OK(AwaitLeases(0));
  }
};

TEST_F(Containers, ClientInContainer_IsServedAndItsLeasesEndWithIt) {
  if (!CanContain()) GTEST_SKIP() << "no PID and user namespaces here: this test needs `unshare`";
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(FastOptions()));
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 4 << 20)).status());
  ExpectHeldUntilKilled(/*contained=*/true);
}

TEST_F(Containers, DaemonsInContainers_ServeClientsAnywhereAndEachOther) {
  if (!CanContain()) GTEST_SKIP() << "no PID and user namespaces here: this test needs `unshare`";
  ClusterOptions options = FastOptions();
  options.binary = Contained("tensorcast", options.binary);
  ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  TC_ASSERT_OK(Import(0, "m", model).status());
  ExpectHeldUntilKilled(/*contained=*/false);
  ExpectHeldUntilKilled(/*contained=*/true);
  {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {.lane = "local"}));
    TC_ASSERT_OK(Compare(*replica, model).status());
  }
  // The process that waits for a container keeps SIGTERM from it.
  for (int node : {0, 1}) TC_ASSERT_OK(cluster_->daemon(node).Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
}

}  // namespace
}  // namespace tensorcast
