#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/json.h"
#include "cli/output/output.h"
#include "core/artifact/layout.h"
#include "core/replica/transfer_report.h"
#include "core/safetensors/safetensors.h"
#include "proto/daemon.pb.h"
#include "rpc/convert/convert.h"
#include "tensorcast/client.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::cli {
namespace {

struct GetFlags {
  std::string artifact;  // a key or an id
  std::string device = "cpu";
  std::string lane;
  std::string out;  // write a .safetensors file
  bool wait_for_space = false;
  double timeout_seconds = 0;  // 0: none
};

void Print(const client::Replica& replica, const GetFlags& flags) {
  std::printf("%s\nreplica %s at %s\n", replica.artifact_id().c_str(), replica.replica_id().c_str(),
              replica.location().ToString().c_str());
  if (const auto& transfer = replica.transfer(); transfer.has_value()) {
    const absl::Duration elapsed = transfer->end - transfer->start;
    std::printf("%s in %s s, %s GB/s, %u chunks verified\n%s", FormatBytes(transfer->bytes).c_str(),
                FormatSeconds(elapsed).c_str(), FormatRate(transfer->bytes, elapsed).c_str(),
                transfer->verified_chunks, DescribeStages(*transfer).c_str());
  } else {
    std::printf("it was already there\n");
  }
  if (!flags.out.empty()) std::printf("wrote %s\n", flags.out.c_str());
}

void PrintJson(const client::Replica& replica) {
  v1::MaterializeReplicaResult message;
  message.set_artifact_id(replica.artifact_id());
  message.mutable_replica()->set_replica_id(replica.replica_id());
  message.mutable_replica()->set_artifact_id(replica.artifact_id());
  *message.mutable_replica()->mutable_location() = rpc::ToProto(replica.location());
  message.set_already_present(!replica.transfer().has_value());
  message.set_key_revision(replica.key_revision());
  message.set_key_unconfirmed(replica.key_unconfirmed());
  if (replica.transfer().has_value()) *message.mutable_transfer() = rpc::ToProto(*replica.transfer());
  std::fputs(ToJson(message).c_str(), stdout);
}

// Before the bytes are moved, which can take long.
absl::Status CheckFolderOf(const std::string& out) {
  const std::filesystem::path folder = std::filesystem::path(out).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "write to the folder of --out,", folder.string());
}

// Where the tensors lie in the replica's image, which follows from what they are.
absl::StatusOr<ImageLayout> LayoutOf(const client::Replica& replica) {
  ImageLayout layout;
  for (const client::TensorView& tensor : replica.tensors()) {
    layout.tensors.push_back({.name = std::string(tensor.name),
                              .dtype = tensor.dtype,
                              .shape = {tensor.shape.begin(), tensor.shape.end()},
                              .nbytes = tensor.nbytes});
  }
  TC_RETURN_IF_ERROR(AssignOffsets(layout));
  return layout;
}

absl::Status Get(const CommonFlags& common, const GetFlags& flags) {
  if (!flags.out.empty()) TC_RETURN_IF_ERROR(CheckFolderOf(flags.out));
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  ProgressBar bar("get");
  client::GetOptions options{.location = flags.device,
                             .lane = flags.lane,
                             .wait_for_space = flags.wait_for_space,
                             .attach = !flags.out.empty(),
                             .on_progress = bar.callback()};
  const absl::Duration timeout =
      flags.timeout_seconds > 0 ? absl::Seconds(flags.timeout_seconds) : absl::InfiniteDuration();
  const RequestContext context = InterruptibleContext(timeout);
  TC_ASSIGN_OR_RETURN(const auto replica, client->Get(context, flags.artifact, options));
  if (!flags.out.empty()) {
    TC_ASSIGN_OR_RETURN(const ImageLayout layout, LayoutOf(*replica));
    TC_RETURN_IF_ERROR(WriteSafetensors(flags.out, layout, replica->metadata(), replica->image(), context));
  }
  if (replica->key_unconfirmed()) WarnUnconfirmed(flags.artifact, replica->key_revision());
  common.json ? PrintJson(*replica) : Print(*replica, flags);
  return absl::OkStatus();
}

void AddFlags(Flags& flags, GetFlags& values) {
  flags.Add("artifact", values.artifact, "A key, or an artifact id (tc2:...)", {.required = true});
  flags.Add("--device", values.device, "gpu:N, cpu or disk", {.show_default = true});
  flags.Add("--lane", values.lane,
            absl::StrCat("Force the way: ", absl::StrJoin(transport::LaneNames(), ", "), " or ", kDiskLane));
  flags.Add("--out", values.out, "Write the tensors to this .safetensors file", {.not_empty = true});
  flags.Add("--wait", values.wait_for_space, "Wait for space instead of failing when the pool is held");
  flags.Add("--timeout", values.timeout_seconds, "Give up after this many seconds", {.least = 0});
}

int RunGet(const CommonFlags& common, const GetFlags& flags) {
  if (!flags.out.empty() && flags.device != "cpu") {
    return Fail(absl::InvalidArgumentError("--out writes from host memory: use it with --device cpu"));
  }
  return ExitCode(Get(common, flags));
}

}  // namespace

Command GetCommand() {
  return {.name = "get", .help = "Bring an artifact to this daemon", .bind = Bind(AddFlags, RunGet)};
}

}  // namespace tensorcast::cli
