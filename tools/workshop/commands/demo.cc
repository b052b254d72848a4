// The main job with real processes: one global store and two daemons. A model is put on one node, brought to
// the other over each lane, attached, and compared with the file byte for byte.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/units.h"
#include "cli/commands/command.h"
#include "cli/commands/programs.h"
#include "cli/commands/workshop_commands.h"
#include "cli/output/output.h"
#include "client/admin.h"
#include "core/device/device_runtime.h"
#include "core/device/fake_device.h"
#include "core/safetensors/safetensors.h"
#include "tensorcast/client.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/commands/commands.h"
#include "tools/workshop/model/compare.h"
#include "tools/workshop/model/llama_model.h"

namespace tensorcast::workshop {
namespace {

using cli::Bind;
using cli::CommonFlags;
using cli::ExitCode;
using cli::Flags;
using cli::FormatBytes;
using cli::FormatRate;
using cli::FormatSeconds;
using cli::InterruptibleContext;
using cli::ProgressBar;
using cli::Role;
using cli::Table;

struct DemoFlags {
  std::string model;  // empty: one is made
  std::string size = "1GiB";
};

constexpr char kKey[] = "demo/model";

struct Move {
  std::string to;  // location on node B
  std::string lane;
};

struct MoveResult {
  std::string what, from, to;
  TransferReport transfer;
  std::string checked;
};

// One row a stage, with the busiest source's figures: the demo's transfers have one source each.
struct StageRates {
  std::string fetch = "-", verify = "-", place = "-";
};

StageRates RatesOf(const TransferReport& transfer) {
  StageRates rates;
  for (const StageReport& stage : transfer.stages) {
    const std::string rate = FormatRate(stage.bytes, stage.busy);
    if (stage.stage == Stage::kFetch) rates.fetch = rate;
    if (stage.stage == Stage::kVerify) rates.verify = rate;
    if (stage.stage == Stage::kPlace) rates.place = rate;
  }
  return rates;
}

std::string LaneOf(const TransferReport& transfer) {
  return transfer.stages.empty() ? "-" : transfer.stages.front().source.lane;
}

// GB/s of one thread's memcpy into memory that was touched before: the yardstick of the table.
double PlainCopyRate(uint64_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  std::vector<double> rates;
  for (int i = 0; i < 3; ++i) {
    const SteadyTime start = SteadyNow();
    std::memcpy(to.data(), from.data(), bytes);
    rates.push_back(static_cast<double>(bytes) / absl::ToDoubleSeconds(SteadyNow() - start) / 1e9);
  }
  std::sort(rates.begin(), rates.end());
  return rates[1];
}

class Demo {
 public:
  Demo(const CommonFlags& common, const DemoFlags& flags) : common_(common), flags_(flags) {}

  absl::Status Run() {
    TC_RETURN_IF_ERROR(PrepareModel());
    TC_RETURN_IF_ERROR(StartCluster());
    TC_RETURN_IF_ERROR(Put());
    for (const Move& move :
         {Move{"gpu:0", "tcp"}, Move{"cpu", "tcp"}, Move{"gpu:0", "local"}, Move{"cpu", "local"}}) {
      TC_RETURN_IF_ERROR(Materialize(move));
    }
    const double plain_copy =
        PlainCopyRate(std::min<uint64_t>(results_.front().transfer.bytes, uint64_t{1} << 30));
    Print(plain_copy);
    Say("stopping the processes");
    return cluster_->Stop();
  }

 private:
  void Say(const std::string& line) const { std::fprintf(stderr, "demo: %s\n", line.c_str()); }

  absl::Status PrepareModel() {
    TC_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create("tensorcast-demo"));
    model_ = flags_.model;
    if (model_.empty()) {
      TC_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(flags_.size));
      model_ = directory_->path() + "/model.safetensors";
      Say(absl::StrCat("writing a Llama-shaped bf16 model of about ", FormatBytes(bytes), " to ", model_));
      TC_RETURN_IF_ERROR(WriteLlamaModel(model_, {.bytes = bytes, .context = context_}));
    }
    TC_RETURN_IF_ERROR(context_.Check("demo"));
    TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(model_));
    image_bytes_ = model.layout.image_bytes;
    return absl::OkStatus();
  }

  absl::Status ChooseDevices() {
    absl::StatusOr<std::unique_ptr<DeviceRuntime>> cuda = CreateCudaRuntime();
    if (cuda.ok()) {
      devices_ = *std::move(cuda);
      Say(absl::StrCat("using ", devices_->devices().size(),
                       " real GPU(s): ", devices_->devices().front().name));
      return absl::OkStatus();
    }
    Say("no GPU here: two fake GPUs a node, with shared memory of this host");
    fake_ = true;
    TC_ASSIGN_OR_RETURN(devices_, CreateFakeRuntime({.device_count = 2, .device_bytes = DeviceBytes()}));
    return absl::OkStatus();
  }

  // A daemon's pool is 90 % of its device unless configured.
  uint64_t DeviceBytes() const { return image_bytes_ + image_bytes_ / 4 + (uint64_t{64} << 20); }

  absl::Status StartCluster() {
    TC_RETURN_IF_ERROR(ChooseDevices());
    ClusterOptions options{.directory = directory_->path()};
    TC_ASSIGN_OR_RETURN(options.binary, cli::FindProgram(cli::kTensorcast));
    // The image, and room for the staging buffers.
    options.daemon_settings = {absl::StrCat("daemon.host_pool=", image_bytes_ + (uint64_t{320} << 20)),
                               absl::StrCat("daemon.device_runtime=", fake_ ? "fake" : "cuda")};
    // A model of one's own may be anywhere, or a folder of links to anywhere; these daemons have no other
    // users.
    if (!flags_.model.empty()) options.daemon_settings.push_back("daemon.import_roots=[/]");
    if (fake_) {
      options.daemon_settings.push_back("daemon.fake_devices=2");
      options.daemon_settings.push_back(absl::StrCat("daemon.fake_device_memory=", DeviceBytes()));
    }
    Say("starting a global store and two daemons");
    TC_ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(options));
    for (int node = 0; node < 2; ++node) {
      TC_ASSIGN_OR_RETURN(clients_[node],
                          client::Client::Connect(
                              {.daemon = cluster_->addresses(node).unix_socket, .devices = devices_.get()}));
    }
    TC_ASSIGN_OR_RETURN(admin_, client::AdminClient::Connect(cluster_->addresses(1).unix_socket));
    return absl::OkStatus();
  }

  absl::Status Put() {
    Say(absl::StrCat("put on node-0 under the key ", kKey));
    ProgressBar bar("put");
    TC_ASSIGN_OR_RETURN(const client::PutResult put,
                        clients_[0]->Import(context_, model_, {.key = kKey, .on_progress = bar.callback()}));
    if (!put.transfer.has_value()) return absl::InternalError("the put reported no transfer");
    artifact_id_ = put.artifact_id;
    results_.push_back({"put", "file", "node-0 cpu", *put.transfer, "digests computed"});
    return absl::OkStatus();
  }

  absl::Status Materialize(const Move& move) {
    Say(absl::StrCat("get on node-1 into ", move.to, " over the lane ", move.lane));
    ProgressBar bar(absl::StrCat("get ", move.to, " ", move.lane));
    TC_ASSIGN_OR_RETURN(
        std::unique_ptr<client::Replica> replica,
        clients_[1]->Get(context_, kKey,
                         {.location = move.to, .lane = move.lane, .on_progress = bar.callback()}));
    if (!replica->transfer().has_value()) {
      return absl::InternalError("the replica was there before it was asked for");
    }
    TC_ASSIGN_OR_RETURN(const uint64_t compared, Compare(*replica));
    results_.push_back({"get", "node-0 cpu", "node-1 " + move.to, *replica->transfer(),
                        absl::StrCat(replica->transfer()->verified_chunks,
                                     " chunk digests; attached client compared ", FormatBytes(compared))});
    const std::string replica_id = replica->replica_id();
    replica.reset();
    // The next move is to come from node 0 again, not from this copy.
    return admin_->EvictReplica(context_, replica_id, /*force=*/true);
  }

  absl::StatusOr<uint64_t> Compare(const client::Replica& replica) {
    if (replica.artifact_id() != artifact_id_) {
      return absl::DataLossError("the key resolved to another artifact");
    }
    return CompareReplica(replica.tensors(), model_, devices_.get(), context_);
  }

  void Print(double plain_copy) const {
    if (common_.json) {
      PrintJson(plain_copy);
      return;
    }
    Table table(
        {"what", "from", "to", "lane", "bytes", "seconds", "rate", "fetch", "verify", "place", "verified"});
    for (const MoveResult& result : results_) {
      const TransferReport& transfer = result.transfer;
      const absl::Duration elapsed = transfer.end - transfer.start;
      const StageRates rates = RatesOf(transfer);
      table.Add({result.what, result.from, result.to, LaneOf(transfer), absl::StrCat(transfer.bytes),
                 FormatSeconds(elapsed), FormatRate(transfer.bytes, elapsed), rates.fetch, rates.verify,
                 rates.place, result.checked});
    }
    std::printf("\n%s\n", table.ToString().c_str());
    std::printf(
        "fetch, verify, place: the rate of one thread while it is in that stage. A fetch that digests on the "
        "way "
        "leaves\nnothing to the verify stage.\n");
    std::printf("A plain one-thread memory copy on this machine just now: %s.\n",
                FormatRate(plain_copy * 1e9).c_str());
    std::printf("Every get was attached by a client process and equals the file, tensor for tensor.%s\n",
                fake_ ? " The GPUs were fake." : "");
  }

  void PrintJson(double plain_copy) const {
    nlohmann::json moves = nlohmann::json::array();
    for (const MoveResult& result : results_) {
      const absl::Duration elapsed = result.transfer.end - result.transfer.start;
      moves.push_back({{"what", result.what},
                       {"from", result.from},
                       {"to", result.to},
                       {"lane", LaneOf(result.transfer)},
                       {"bytes", result.transfer.bytes},
                       {"seconds", absl::ToDoubleSeconds(elapsed)},
                       {"verified_chunks", result.transfer.verified_chunks}});
    }
    const nlohmann::json all = {{"artifact_id", artifact_id_},
                                {"fake_devices", fake_},
                                {"plain_copy_gb_per_second", plain_copy},
                                {"moves", moves}};
    std::printf("%s\n", all.dump(2).c_str());
  }

  const CommonFlags& common_;
  const DemoFlags& flags_;
  RequestContext context_ = InterruptibleContext();
  std::unique_ptr<TemporaryDirectory> directory_;
  std::string model_;
  uint64_t image_bytes_ = 0;
  bool fake_ = false;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<client::Client> clients_[2];
  std::unique_ptr<client::AdminClient> admin_;
  std::string artifact_id_;
  std::vector<MoveResult> results_;
};

void AddFlags(Flags& flags, DemoFlags& values) {
  flags.Add("--model", values.model, "A .safetensors file or sharded folder; default: a generated model");
  flags.Add("--size", values.size, "Size of the generated model, without --model",
            {.show_default = true, .size = true});
}

int RunDemo(const CommonFlags& common, const DemoFlags& flags) {
  const absl::Status status = Demo(common, flags).Run();
  return ExitCode(status);
}

}  // namespace

cli::Command DemoCommand() {
  return {.name = cli::kDemo.name,
          .help = cli::kDemo.help,
          .role = Role::kLocal,
          .bind = Bind(AddFlags, RunDemo)};
}

}  // namespace tensorcast::workshop
