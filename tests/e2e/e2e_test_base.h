// Shared by the end-to-end tests: a cluster of real processes with small pools and GPUs (tests/stand_ins),
// clients, and models.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/device/testing/device_faults.h"
#include "tensorcast/client.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/model/compare.h"
#include "tools/workshop/model/llama_model.h"

namespace tensorcast {

inline constexpr absl::Duration kStepTimeout = absl::Seconds(60);

#define TC_ASSERT_OK(expr)                                  \
  do {                                                      \
    const absl::Status tc_assert_status = (expr);           \
    ASSERT_TRUE(tc_assert_status.ok()) << tc_assert_status; \
  } while (false)

#define TC_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  TC_ASSERT_OK_AND_ASSIGN_IMPL(TC_STATUS_CONCAT(tc_assert_or_, __LINE__), lhs, expr)
#define TC_ASSERT_OK_AND_ASSIGN_IMPL(result, lhs, expr) \
  auto result = (expr);                                 \
  ASSERT_TRUE(result.ok()) << result.status();          \
  lhs = *std::move(result)

class E2eTest : public ::testing::Test {
 protected:
  void SetUp() override;
  // Prints the processes' logs when the test failed.
  void TearDown() override;

  // Options with the binary, a separate folder, 192 MiB pools and two GPUs of 128 MiB per node.
  ClusterOptions DefaultOptions() const;
  // Starts the cluster and a client for each daemon.
  void StartCluster(const ClusterOptions& options);
  void StartCluster() { StartCluster(DefaultOptions()); }

  // Faults for this node's GPUs, in a cluster that is then started with these options.
  absl::StatusOr<std::shared_ptr<DeviceFaults>> AddDeviceFaults(ClusterOptions& options, int node);
  // Lets no copy to or from these GPUs end until its delay is set to 0, which holds a get to them for as long
  // as a test wants, however fast the machine is.
  static void HoldCopies(DeviceFaults& faults);
  static absl::Status AwaitHeldCopy(const DeviceFaults& faults);

  client::Client& client(int node) { return *clients_[node]; }
  // A separate client, which stands for another process in the tests.
  absl::StatusOr<std::unique_ptr<client::Client>> NewClient(int node);
  static RequestContext Context(absl::Duration timeout = kStepTimeout) {
    return RequestContext::Background(timeout);
  }

  // A model of about `bytes`, made once per path.
  std::string MakeModel(const std::string& name, uint64_t bytes, int shards = 1, uint64_t seed = 1);
  // Compares an attached replica with the model's files.
  absl::StatusOr<uint64_t> Compare(const client::Replica& replica, const std::string& model);

  // Waits until the files that this node imported were compared with their artifacts: from then on they count
  // as copies.
  absl::Status AwaitOriginsCompared(int node);

  // Runs the tensorcast binary with these arguments; returns its exit code and its output.
  struct CommandResult {
    int exit_code = -1;
    std::string output;  // stdout and stderr
  };
  CommandResult RunCommand(std::vector<std::string> arguments);

  std::unique_ptr<TemporaryDirectory> directory_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<std::unique_ptr<client::Client>> clients_;
};

}  // namespace tensorcast
