#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/output.h"
#include "core/artifact/layout.h"
#include "core/replica/transfer_report.h"
#include "core/safetensors/safetensors.h"
#include "proto/daemon.pb.h"
#include "tensorcast/client.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::cli {
namespace {

using Replicas = std::vector<std::unique_ptr<client::Replica>>;

struct GetFlags {
  std::string artifact;  // a key or an id
  std::string device = "cpu";
  std::string lane;
  std::string out;  // write a .safetensors file
  std::vector<std::string> tensors;
  bool wait_for_space = false;
  bool confirmed = false;
  bool pin = false;
  absl::Duration timeout = absl::InfiniteDuration();
};

void PrintReplica(const client::Replica& replica, const GetFlags& flags) {
  std::printf("%s\nreplica %s at %s\n", replica.artifact_id().c_str(), replica.replica_id().c_str(),
              replica.location().ToString().c_str());
  if (const size_t chosen = replica.tensors().size(); chosen < replica.tensor_count()) {
    uint64_t bytes = 0;
    for (const client::TensorView& tensor : replica.tensors()) bytes += tensor.nbytes;
    std::printf("partial: %zu of %zu tensors, %s of %s\n", chosen, replica.tensor_count(),
                FormatBytes(bytes).c_str(), FormatBytes(replica.image_bytes()).c_str());
  }
  if (const auto& transfer = replica.transfer(); transfer.has_value()) {
    const absl::Duration elapsed = transfer->end - transfer->start;
    std::printf("%s in %s s, %s, %u chunks verified\n%s", FormatBytes(transfer->bytes).c_str(),
                FormatSeconds(elapsed).c_str(), FormatRate(transfer->bytes, elapsed).c_str(),
                transfer->verified_chunks, DescribeStages(*transfer).c_str());
    if (transfer->bytes_present > 0) {
      std::printf("%s were there already\n", FormatBytes(transfer->bytes_present).c_str());
    }
  } else {
    std::printf("it was already there\n");
  }
  if (!flags.out.empty()) std::printf("wrote %s\n", flags.out.c_str());
}

// One replica is an object; several are an array, in the order of --device.
void PrintJson(const Replicas& replicas) {
  std::vector<std::string> results;
  for (const auto& replica : replicas) results.push_back(ToJson(client::AdminClient::ResultOf(*replica)));
  const std::string json = absl::StrJoin(results, ",");
  std::printf("%s", results.size() == 1 ? json.c_str() : absl::StrCat("[", json, "]\n").c_str());
}

// Before the bytes are moved, which can take long.
absl::Status CheckFolderOf(const std::string& out) {
  const std::filesystem::path folder = std::filesystem::path(out).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "write to the folder of --out,", folder.string());
}

// Where these tensors would lie in an image of them alone, which follows from what they are.
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
  if (!flags.out.empty() && flags.device != "cpu") {
    return absl::InvalidArgumentError("--out writes from host memory: use it with --device cpu");
  }
  if (!flags.out.empty()) TC_RETURN_IF_ERROR(CheckFolderOf(flags.out));
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  ProgressBar bar("get");  // of several places, which advance side by side, that of which news came last
  client::GetOptions options{.lane = flags.lane,
                             .wait_for_space = flags.wait_for_space,
                             .attach = !flags.out.empty(),
                             .tensors = flags.tensors,
                             .confirmed = flags.confirmed,
                             .pin = flags.pin,
                             .on_progress = bar.callback()};
  const RequestContext context = InterruptibleContext(flags.timeout);
  const std::vector<std::string> locations = absl::StrSplit(flags.device, ',');
  TC_ASSIGN_OR_RETURN(const Replicas replicas, client->GetAt(context, flags.artifact, locations, options));
  const auto& replica = replicas.front();
  if (!flags.out.empty()) {
    TC_ASSIGN_OR_RETURN(const ImageLayout layout, LayoutOf(*replica));
    const auto bytes_of = [&replica](const Tensor& tensor) { return replica->Find(tensor.name)->host; };
    // Memory may go bad after it was filled: nothing wrong is written, and nothing that was found wrong
    // meanwhile stays.
    TC_RETURN_IF_ERROR(replica->Verify());
    TC_RETURN_IF_ERROR(WriteSafetensors(flags.out, layout, replica->metadata(), bytes_of, context));
    if (const absl::Status damaged = replica->Check(); absl::IsDataLoss(damaged)) {
      unlink(flags.out.c_str());
      return Annotate(damaged, absl::StrCat("get ", flags.artifact, ": ", flags.out, " was removed again"));
    }
  }
  if (replica->key_unconfirmed()) WarnUnconfirmed(flags.artifact, replica->key_revision());
  if (common.json) {
    PrintJson(replicas);
  } else {
    for (const auto& one : replicas) PrintReplica(*one, flags);
  }
  return absl::OkStatus();
}

void AddFlags(Flags& flags, GetFlags& values) {
  flags.Add("artifact", values.artifact, "A key, or an artifact id (tc2:...)", {.required = true});
  flags.Add("--device", values.device,
            "Location of the replica: gpu:N, gpu:all, cpu or disk, or several: gpu:0,gpu:1",
            {.show_default = true});
  flags.Add(
      "--lane", values.lane,
      absl::StrCat("Use only this lane: ", absl::StrJoin(transport::LaneNames(), ", "), " or ", kDiskLane));
  flags.Add(
      "--tensors", values.tensors,
      "Fetch only these tensors into host memory: names, or quoted patterns such as 'model.layers.[0-7].*'",
      {.not_empty = true});
  flags.Add("--out", values.out, "Write the tensors to this .safetensors file",
            {.not_empty = true, .path = true});
  flags.Add("--wait", values.wait_for_space, "Wait for space in the pool instead of failing at once");
  flags.Add("--confirmed", values.confirmed, kConfirmedHelp);
  flags.Add("--pin", values.pin, kPinHelp);
  flags.Add("--timeout", values.timeout, "Give up after this time, such as 30s", {.min = 0.001});
}

}  // namespace

Command GetCommand() {
  return {.name = "get", .help = "Bring an artifact to this daemon", .bind = Bind(AddFlags, Get)};
}

}  // namespace tensorcast::cli
