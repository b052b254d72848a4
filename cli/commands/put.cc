#include <cstdio>

#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/output.h"
#include "proto/daemon.pb.h"
#include "rpc/convert/convert.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {
namespace {

struct PutFlags {
  std::string model;
  std::string key;
  std::optional<uint64_t> expected_revision;
  std::optional<uint64_t> keep;
  bool durable = false;
  std::string location = "cpu";
  bool wait_for_space = false;
  bool verify = false;
  bool pin = false;
};

absl::Status PrintPut(const v1::PutArtifactResult& result, const PutFlags& flags) {
  PrintF("%s%s\n", result.artifact_id(), result.existed() ? " (was already stored)" : "");
  if (!flags.key.empty()) PrintF("key %s, revision %u\n", flags.key, result.key_revision());
  if (!result.has_transfer()) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const TransferReport transfer, rpc::FromProto(result.transfer()));
  const absl::Duration elapsed = transfer.end - transfer.start;
  PrintF("%s in %s s, %s\n%s", FormatBytes(transfer.bytes), FormatSeconds(elapsed),
         FormatRate(transfer.bytes, elapsed), DescribeStages(transfer));
  return absl::OkStatus();
}

absl::Status Put(const CommonFlags& common, const PutFlags& flags) {
  if (flags.expected_revision.has_value() && flags.key.empty()) {
    return absl::InvalidArgumentError("--expect-revision needs --key");
  }
  if (flags.keep.has_value() && flags.key.empty()) return absl::InvalidArgumentError("--keep needs --key");
  if (flags.model.empty()) return absl::InvalidArgumentError("the path of the model is empty");
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  ProgressBar bar("put");
  client::PutOptions options{.expected_revision = flags.expected_revision,
                             .keep = flags.keep,
                             .durable = flags.durable,
                             .location = flags.location,
                             .wait_for_space = flags.wait_for_space,
                             .verify = flags.verify,
                             .pin = flags.pin,
                             .on_progress = bar.callback()};
  if (!flags.key.empty()) options.key = flags.key;
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult result,
                      admin->Import(InterruptibleContext(), flags.model, options));
  if (!common.json) return PrintPut(result, flags);
  std::fputs(ToJson(result).c_str(), stdout);
  return absl::OkStatus();
}

void AddFlags(Flags& flags, PutFlags& values) {
  flags.Add("model", values.model, "A .safetensors file, or a folder with model.safetensors.index.json",
            {.required = true, .path = true});
  flags.Add("--key", values.key, "Key to bind to the artifact", {.not_empty = true});
  flags.Add("--expect-revision", values.expected_revision,
            "Bind only if the key has this revision (0: the key does not exist)");
  flags.Add("--keep", values.keep,
            "Number of versions that the key keeps from now on, including the one put; older ones go when\n"
            "room is needed. Without it: what an earlier put gave, else global_store.keep_versions",
            {.min = 1, .max = 1000});
  flags.Add("--durable", values.durable, "Return only after the artifact was packed to disk too");
  flags.Add("--device", values.location, "Location of the first replica", {.show_default = true});
  flags.Add("--wait", values.wait_for_space, "Wait for space in the pool instead of failing at once");
  flags.Add("--pin", values.pin, kPinHelp);
  flags.Add("--verify", values.verify,
            "Read the files twice and compare: detects writes through a mapping during the put, where\n"
            "size and mtime do not show them (tmpfs, overlayfs, network file systems)");
}

}  // namespace

Command PutCommand() {
  return {.name = "put", .help = "Store a safetensors model", .bind = Bind(AddFlags, Put)};
}

}  // namespace tensorcast::cli
