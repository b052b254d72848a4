#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "core/artifact/object_uri.h"
#include "proto/daemon.pb.h"
#include "rpc/convert/transfer_reports.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {
namespace {

struct PutFlags {
  std::string model;
  bool no_files = false;
  client::PutOptions put;
};

std::string PutText(const v1::PutArtifactResult& result, const std::optional<std::string>& key) {
  std::string text = absl::StrCat(result.artifact_id(), result.existed() ? " (was already stored)\n" : "\n");
  if (key.has_value()) absl::StrAppend(&text, "key ", *key, ", revision ", result.key_revision(), "\n");
  if (!result.files_id().empty()) absl::StrAppend(&text, "files ", result.files_id(), "\n");
  if (result.has_difference()) {
    const v1::Difference& difference = result.difference();
    absl::StrAppend(&text, "difference ", difference.artifact_id(), ", ",
                    FormatBytes(difference.image_bytes()), ", from ", difference.base_id(), "\n");
  } else if (!result.no_difference().empty()) {
    absl::StrAppend(&text, "no difference was stored: ", result.no_difference(), "\n");
  }
  const absl::StatusOr<TransferReport> transfer = rpc::FromProto(result.transfer());
  // A put that found the artifact has no transfer.
  if (!result.has_transfer() || !transfer.ok()) return text;
  const absl::Duration elapsed = transfer->end - transfer->start;
  return absl::StrCat(text, FormatBytes(transfer->bytes), " in ", FormatSeconds(elapsed), " s, ",
                      FormatRate(transfer->bytes, elapsed), "\n", DescribeStages(*transfer));
}

absl::Status Put(const CommonFlags& common, const PutFlags& flags) {
  client::PutOptions options = flags.put;
  options.files = !flags.no_files;
  // Before the daemon is asked, and in the words of the command line: the client's own check names fields.
  if (!options.key.has_value() && (options.expected_revision.has_value() || options.keep.has_value())) {
    return absl::InvalidArgumentError(absl::StrCat("put ", ShownUri(flags.model), ": ",
                                                   options.keep.has_value() ? "--keep" : "--expect-revision",
                                                   " needs --key; name the key to bind"));
  }
  if (flags.model.empty()) {
    return absl::InvalidArgumentError("put: the path of the model is empty; name a file, a folder or a URI");
  }
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  ProgressBar bar("put");
  options.on_progress = bar.callback();
  // The daemon reads the files; this process waits and shows the progress.
  TC_ASSIGN_OR_RETURN(const v1::PutArtifactResult result,
                      admin->Import(InterruptibleContext(), flags.model, options));
  return Show(common, result, [&] { return PutText(result, options.key); });
}

void AddFlags(Flags& flags, PutFlags& values) {
  flags.Add("model", values.model,
            "A .safetensors file, a folder with a .safetensors file or with model.safetensors.index.json,\n"
            "or a URI: s3://BUCKET/PREFIX, gs://..., https://HOST/FILE, hf://ORG/NAME[@REVISION].\n"
            "--key also binds the other files of a folder (config.json, tokenizer). The daemon reads a\n"
            "URI with its own credentials or, if these may not read the URI, with yours (AWS_*, profiles,\n"
            "HF_TOKEN)",
            {.required = true, .path = true});
  flags.Add("--key", values.put.key, "Key to bind to the artifact", {.not_empty = true});
  flags.Add("--expect-revision", values.put.expected_revision,
            "Bind only if the key has this revision (0: the key does not exist)");
  flags.Add("--keep", values.put.keep,
            "Number of versions that the key keeps from now on, including this one; older versions are\n"
            "evicted when memory is needed. Default: the number of the previous put or bind, else\n"
            "global_store.keep_versions_by_prefix, else global_store.keep_versions",
            {.min = 1, .max = 1000});
  flags.Add(
      "--base", values.put.base,
      "Also publish the difference from an earlier version, so that nodes with that version pull only\n"
      "what changed: auto (the version that --key names now), a key, an artifact id, or none. Default:\n"
      "daemon.difference_base",
      {.not_empty = true});
  flags.Add("--require-difference", values.put.require_difference,
            "Fail, and publish nothing, if the put cannot make the difference from the base version");
  flags.Add("--no-files", values.no_files, "Put only the tensors of a folder, without its other files");
  flags.Add("--durable", values.put.durable, "Return only after the artifact was also packed to disk");
  flags.Add(
      "--archive", values.put.archive,
      "Return only after the artifact was also packed into this object store, s3://BUCKET/PREFIX, which\n"
      "must be listed in daemon.archives of the daemon",
      {.not_empty = true});
  flags.Add("--manifest-beside", values.put.manifest_beside,
            "Also write the manifest to a file next to the model. Later imports by URI compare each chunk\n"
            "with this file. If the model is a URI, the URI must be below an entry of\n"
            "daemon.archives of the daemon");
  flags.Add("--device", values.put.location, "Location of the first replica", {.show_default = true});
  flags.Add("--wait", values.put.wait_for_space, "Wait for space in the pool instead of failing at once");
  flags.Add("--pin", values.put.pin, kPinHelp);
  flags.Add("--verify", values.put.verify,
            "Read the files twice and compare both readings. This detects writes through mmap during the\n"
            "put. Such writes change neither size nor mtime on tmpfs, overlayfs and network file systems");
}

}  // namespace

Command PutCommand() {
  return {.name = "put", .help = "Store a safetensors model", .spanned = true, .bind = Bind(AddFlags, Put)};
}

}  // namespace tensorcast::cli
