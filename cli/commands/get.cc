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
  std::string artifact;        // a key or an id
  std::string device = "cpu";  // one location, or several with commas between them
  std::string out;             // write a .safetensors file
  absl::Duration timeout = absl::InfiniteDuration();
  client::GetOptions get;
};

void PrintReplica(const client::Replica& replica, const GetFlags& flags) {
  PrintF("%s\nreplica %s at %s\n", replica.artifact_id(), replica.replica_id(),
         replica.location().ToString());
  if (const size_t chosen = replica.tensors().size(); chosen < replica.tensor_count()) {
    uint64_t bytes = 0;
    for (const client::TensorView& tensor : replica.tensors()) bytes += tensor.nbytes;
    PrintF("partial: %u of %u tensors, %s of %s\n", chosen, replica.tensor_count(), FormatBytes(bytes),
           FormatBytes(replica.image_bytes()));
  }
  if (const auto& transfer = replica.transfer(); transfer.has_value()) {
    const absl::Duration elapsed = transfer->end - transfer->start;
    PrintF("%s in %s s, %s, %u chunks verified\n%s", FormatBytes(transfer->bytes), FormatSeconds(elapsed),
           FormatRate(transfer->bytes, elapsed), transfer->verified_chunks, DescribeStages(*transfer));
    if (transfer->bytes_present > 0) PrintF("%s were there already\n", FormatBytes(transfer->bytes_present));
  } else {
    Print("it was already there\n");
  }
  if (!flags.out.empty()) PrintF("wrote %s\n", flags.out);
}

// One replica is an object; several are an array, in the order of --device.
void PrintJson(const Replicas& replicas) {
  std::vector<std::string> results;
  for (const auto& replica : replicas) results.push_back(ToJson(client::AdminClient::ResultOf(*replica)));
  const std::string json = absl::StrJoin(results, ",");
  std::printf("%s", results.size() == 1 ? json.c_str() : absl::StrCat("[", json, "]\n").c_str());
}

// Checked before the bytes are moved, which can take long.
absl::Status CheckFolderOf(const std::string& out) {
  const std::filesystem::path folder = std::filesystem::path(out).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "write to", absl::StrCat("the folder of --out ", out));
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
  const bool writes = !flags.out.empty();
  if (writes && flags.device != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("get ", flags.artifact, ": --out writes from host memory; use it with --device cpu"));
  }
  if (writes) TC_RETURN_IF_ERROR(CheckFolderOf(flags.out));
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  ProgressBar bar("get");  // with several locations: the one that reported last
  client::GetOptions options = flags.get;
  options.attach = writes;
  options.on_progress = bar.callback();
  const RequestContext context = InterruptibleContext(flags.timeout);
  const std::vector<std::string> locations = absl::StrSplit(flags.device, ',');
  TC_ASSIGN_OR_RETURN(const Replicas replicas, client->GetAt(context, flags.artifact, locations, options));
  const auto& replica = replicas.front();
  if (writes) {
    TC_ASSIGN_OR_RETURN(const ImageLayout layout, LayoutOf(*replica));
    const auto bytes_of = [&replica](const Tensor& tensor) { return replica->Find(tensor.name)->host; };
    // Memory may go bad after it was filled. The replica is verified before it is written, and the file is
    // removed again when the daemon reports damage meanwhile.
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
      "--lane", values.get.lane,
      absl::StrCat("Use only this lane: ", absl::StrJoin(transport::LaneNames(), ", "), " or ", kDiskLane));
  flags.Add(
      "--tensors", values.get.tensors,
      "Fetch only these tensors into host memory: names, or quoted patterns such as 'model.layers.[0-7].*'",
      {.not_empty = true});
  flags.Add("--out", values.out, "Write the tensors to this .safetensors file",
            {.not_empty = true, .path = true});
  flags.Add("--wait", values.get.wait_for_space, "Wait for space in the pool instead of failing at once");
  flags.Add("--confirmed", values.get.confirmed, kConfirmedHelp);
  flags.Add("--pin", values.get.pin, kPinHelp);
  flags.Add("--timeout", values.timeout, "Give up after this time, such as 30s", {.min = 0.001});
}

}  // namespace

Command GetCommand() {
  return {.name = "get", .help = "Bring an artifact to this daemon", .bind = Bind(AddFlags, Get)};
}

}  // namespace tensorcast::cli
