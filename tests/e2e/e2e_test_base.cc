#include "tests/e2e/e2e_test_base.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "tests/stand_ins/test_gpus.h"

namespace tensorcast {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void E2eTest::SetUp() {
  TC_ASSERT_OK_AND_ASSIGN(directory_, TemporaryDirectory::Create("tensorcast-e2e"));
  TC_ASSERT_OK_AND_ASSIGN(devices_, stand_ins::OpenClientGpus());
}

void E2eTest::TearDown() {
  clients_.clear();
  if (HasFailure() && cluster_ != nullptr) {
    std::cerr << "global store's log ends:\n"
              << FileTail(directory_->path() + "/global-store/log", 40) << "\n";
    for (int i = 0; i < cluster_->daemons(); ++i) {
      std::cerr << "daemon " << i << "'s log ends:\n"
                << FileTail(cluster_->daemon_directory(i) + "/log", 40) << "\n";
    }
  }
  cluster_.reset();
}

// Short intervals, so that tests wait little; peer_timeout is long enough for a busy machine.
ClusterOptions E2eTest::DefaultOptions() const {
  ClusterOptions options{.binary = stand_ins::BinaryWithGpus(), .directory = directory_->path()};
  options.global_store_settings = {"global_store.heartbeat_interval=200ms", "global_store.node_ttl=3s"};
  options.daemon_settings = {"daemon.host_pool=192MiB", "daemon.staging_buffers=2", "daemon.peer_timeout=5s"};
  for (std::string& setting : stand_ins::GpuSettings()) options.daemon_settings.push_back(std::move(setting));
  return options;
}

void E2eTest::StartCluster(const ClusterOptions& options) {
  ClusterOptions with_gpus = options;
  with_gpus.daemon_environments.resize(options.daemons);
  for (int node = 0; node < options.daemons; ++node) {
    // What the options say comes after it, and stands.
    Environment& environment = with_gpus.daemon_environments[node];
    Environment gpus = stand_ins::GpuEnvironment(node);
    environment.insert(environment.begin(), gpus.begin(), gpus.end());
  }
  TC_ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(with_gpus));
  for (int node = 0; node < cluster_->daemons(); ++node) {
    TC_ASSERT_OK_AND_ASSIGN(clients_.emplace_back(), NewClient(node));
  }
}

absl::StatusOr<std::shared_ptr<DeviceFaults>> E2eTest::AddDeviceFaults(ClusterOptions& options, int node) {
  const std::string path = absl::StrCat(directory_->path(), "/device-faults-", node);
  options.binary = stand_ins::BinaryWithGpuFaults();
  if (options.daemon_environments.size() <= static_cast<size_t>(node)) {
    options.daemon_environments.resize(node + 1);
  }
  options.daemon_environments[node].push_back({kDeviceFaultsVariable, path});
  return OpenDeviceFaults(path);
}

// Longer than any test: a copy is held until the test sets the delay back.
void E2eTest::HoldCopies(DeviceFaults& faults) {
  faults.copy_delay_ns = absl::ToInt64Nanoseconds(absl::Hours(1));
}

absl::Status E2eTest::AwaitHeldCopy(const DeviceFaults& faults) {
  const SteadyTime deadline = SteadyNow() + kStepTimeout;
  while (faults.delayed_copies == 0) {
    if (SteadyNow() > deadline) return absl::DeadlineExceededError("no copy came to be held");
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<client::Client>> E2eTest::NewClient(int node) {
  return client::Client::Connect(
      {.daemon = cluster_->addresses(node).unix_socket, .devices = devices_.get()});
}

std::string E2eTest::MakeModel(const std::string& name, uint64_t bytes, int shards, uint64_t seed) {
  const std::string path = directory_->path() + "/" + name;
  EXPECT_TRUE(WriteLlamaModel(path, {.bytes = bytes, .shards = shards, .seed = seed}).ok());
  return path;
}

absl::StatusOr<uint64_t> E2eTest::Compare(const client::Replica& replica, const std::string& model) {
  return CompareReplica(replica.tensors(), model, devices_.get());
}

absl::Status E2eTest::AwaitOriginsCompared(int node) {
  TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(cluster_->addresses(node).unix_socket));
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, admin->GetStatus(Context()));
  const SteadyTime deadline = SteadyNow() + kStepTimeout;
  while (SteadyNow() < deadline) {
    TC_ASSIGN_OR_RETURN(const auto artifacts,
                        admin->ListArtifacts(Context(), /*unkeyed_only=*/false, absl::ZeroDuration()));
    bool compared = true;
    for (const v1::Artifact& artifact : artifacts) {
      for (const v1::Origin& origin : artifact.origins()) {
        compared &= origin.compared() || origin.node_id() != status.node().node_id();
      }
    }
    if (compared) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(20));
  }
  return absl::DeadlineExceededError("the origins of this node are not compared");
}

E2eTest::CommandResult E2eTest::RunCommand(std::vector<std::string> arguments) {
  static int counter = 0;
  CommandResult result;
  const std::string log = absl::StrCat(directory_->path(), "/command-", counter++, ".log");
  arguments.insert(arguments.begin(), stand_ins::BinaryWithGpus());
  auto process = Process::Start({.argv = std::move(arguments), .log_path = log});
  if (!process.ok()) {
    result.output = std::string(process.status().message());
    return result;
  }
  const absl::StatusOr<int> code = (*process)->Wait(SteadyNow() + kStepTimeout);
  result.exit_code = code.value_or(-1);
  result.output = ReadFile(log);
  return result;
}

}  // namespace tensorcast
