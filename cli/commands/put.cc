#include <cstdio>

#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/json.h"
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

void Print(const client::PutResult& result, const PutFlags& flags) {
  std::printf("%s%s\n", result.artifact_id.c_str(), result.existed ? " (was already stored)" : "");
  if (!flags.key.empty()) {
    std::printf("key %s, revision %llu\n", flags.key.c_str(),
                static_cast<unsigned long long>(result.key_revision));
  }
  if (result.transfer.has_value()) {
    const absl::Duration elapsed = result.transfer->end - result.transfer->start;
    std::printf("%s in %s s, %s\n%s", FormatBytes(result.transfer->bytes).c_str(),
                FormatSeconds(elapsed).c_str(), FormatRate(result.transfer->bytes, elapsed).c_str(),
                DescribeStages(*result.transfer).c_str());
  }
}

void PrintJson(const client::PutResult& result) {
  v1::PutArtifactResult message;
  message.set_artifact_id(result.artifact_id);
  message.set_existed(result.existed);
  message.set_key_revision(result.key_revision);
  message.mutable_replica()->set_replica_id(result.replica_id);
  if (result.transfer.has_value()) *message.mutable_transfer() = rpc::ToProto(*result.transfer);
  std::fputs(ToJson(message).c_str(), stdout);
}

absl::Status Put(const CommonFlags& common, const PutFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
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
  TC_ASSIGN_OR_RETURN(const client::PutResult result,
                      client->Import(InterruptibleContext(), flags.model, options));
  common.json ? PrintJson(result) : Print(result, flags);
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

int RunPut(const CommonFlags& common, const PutFlags& flags) {
  if (flags.expected_revision.has_value() && flags.key.empty()) {
    return Fail(absl::InvalidArgumentError("--expect-revision needs --key"));
  }
  if (flags.keep.has_value() && flags.key.empty()) {
    return Fail(absl::InvalidArgumentError("--keep needs --key"));
  }
  if (flags.model.empty()) return Fail(absl::InvalidArgumentError("the path of the model is empty"));
  return ExitCode(Put(common, flags));
}

}  // namespace

Command PutCommand() {
  return {.name = "put", .help = "Store a safetensors model", .bind = Bind(AddFlags, RunPut)};
}

}  // namespace tensorcast::cli
