#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/output.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/replica/transfer_report.h"
#include "core/safetensors/beside.h"
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
  std::string out;             // write a .safetensors file, or a folder
  absl::Duration timeout = absl::InfiniteDuration();
  client::GetOptions get;
};

void PrintReplica(const client::Replica& replica, const GetFlags& flags) {
  PrintF("%s\nreplica %s at %s\n", replica.artifact_id(), replica.replica_id(),
         replica.location().ToString());
  // The tensors that were asked for; the replica may have others, too.
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
    if (transfer->bytes_present > 0) PrintF("%s were already there\n", FormatBytes(transfer->bytes_present));
  } else {
    Print("the replica was already there\n");
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

bool IsFile(const std::string& out) { return out.ends_with(".safetensors"); }

// Checked before the bytes are moved, which can take long.
absl::Status CheckOut(const std::string& out) {
  const std::filesystem::path path(out);
  std::error_code error;
  if (!IsFile(out)) {
    constexpr std::string_view kIndexName = "model.safetensors.index.json";
    if (std::filesystem::exists(path / kIndexName, error)) {
      return absl::FailedPreconditionError(
          absl::StrCat("write to ", out, ": the folder has the ", kIndexName,
                       " of another model, and readers would follow that index; name another folder"));
    }
    std::filesystem::create_directories(path, error);
    if (error) return ErrnoStatus(error.value(), "make the folder of --out", out);
  }
  const std::filesystem::path folder = IsFile(out) ? path.parent_path() : path;
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

// Memory may go bad after it was filled. The replica is verified before it is written, and what was written
// is removed again when the daemon reports damage meanwhile.
absl::Status WriteVerified(const client::Replica& replica, const std::vector<std::string>& written,
                           absl::FunctionRef<absl::Status(const ImageLayout& layout)> write) {
  TC_ASSIGN_OR_RETURN(const ImageLayout layout, LayoutOf(replica));
  TC_RETURN_IF_ERROR(replica.Verify());
  TC_RETURN_IF_ERROR(write(layout));
  // Any other error, such as a daemon that is away, does not say that the bytes are wrong: they were verified
  // above.
  const absl::Status damaged = replica.Check();
  if (!absl::IsDataLoss(damaged)) return absl::OkStatus();
  for (const std::string& path : written) unlink(path.c_str());
  return Annotate(damaged, absl::StrCat("write ", absl::StrJoin(written, ", "), " (removed again)"));
}

absl::Status WriteTensors(const client::Replica& replica, const std::string& path,
                          const RequestContext& context) {
  const auto bytes_of = [&replica](const Tensor& tensor) { return replica.Find(tensor.name)->host; };
  return WriteVerified(replica, {path}, [&](const ImageLayout& layout) {
    return WriteSafetensors(path, layout, replica.metadata(), bytes_of, context);
  });
}

// An artifact id names no files itself. Where the keys that bind files with the artifact agree on them, these
// are its files; where they do not, or cannot be asked for, stderr says so and there are none.
std::string FilesOfKeys(client::Client& client, const std::string& artifact_id,
                        const RequestContext& context) {
  const absl::StatusOr<std::vector<client::KeyInfo>> keys = client.ListKeys(context, "");
  if (!keys.ok()) {
    std::fprintf(
        stderr,
        "tensorcast: get %s: this get writes only the tensors, not the other files of the model, because the "
        "keys of the artifact cannot be listed: %s\n",
        artifact_id.c_str(), Printable(keys.status().ToString()).c_str());
    return "";
  }
  std::vector<std::string> names;
  std::set<std::string> files;
  for (const client::KeyInfo& key : *keys) {
    if (key.artifact_id != artifact_id || key.files_id.empty()) continue;
    names.push_back(key.name);
    files.insert(key.files_id);
  }
  if (files.size() <= 1) return files.empty() ? "" : *files.begin();
  std::fprintf(
      stderr,
      "tensorcast: get %s: this get writes only the tensors, not the other files of the model, because the "
      "keys of the artifact bind different files; get one of the keys: %s\n",
      artifact_id.c_str(), Printable(absl::StrJoin(names, ", ")).c_str());
  return "";
}

// The files after the tensors, so that a folder with config.json is whole.
absl::Status WriteFolder(client::Client& client, const client::Replica& replica, const GetFlags& flags,
                         const RequestContext& context) {
  const std::string& folder = flags.out;
  const std::string files_id =
      IsArtifactId(flags.artifact) ? FilesOfKeys(client, flags.artifact, context) : replica.files_id();
  std::unique_ptr<client::Replica> files;
  if (!files_id.empty()) {
    TC_ASSIGN_OR_RETURN(files, client.Get(context, files_id, {.wait_for_space = true}));
  }
  // Readers look for an adapter's weights under a name of their own.
  const auto has = [&files](std::string_view path) { return files != nullptr && files->Find(path).ok(); };
  const bool adapter = has("adapter_config.json") && !has("config.json");
  const std::string_view name = adapter ? "adapter_model.safetensors" : "model.safetensors";
  TC_RETURN_IF_ERROR(WriteTensors(replica, absl::StrCat(folder, "/", name), context));
  if (files == nullptr) return absl::OkStatus();
  std::vector<std::string> written;
  for (const client::TensorView& file : files->tensors()) {
    written.push_back(absl::StrCat(folder, "/", file.name));
  }
  const auto bytes_of = [&files](const Tensor& file) { return files->Find(file.name)->host; };
  return WriteVerified(*files, written, [&](const ImageLayout& layout) {
    return WriteFiles(folder, layout, bytes_of, context);
  });
}

absl::Status Get(const CommonFlags& common, const GetFlags& flags) {
  const bool writes = !flags.out.empty();
  if (writes && flags.device != "cpu") {
    return absl::InvalidArgumentError(absl::StrCat("get ", flags.artifact,
                                                   ": --out writes from host memory, and --device is ",
                                                   flags.device, "; give --device cpu"));
  }
  if (writes) TC_RETURN_IF_ERROR(CheckOut(flags.out));
  // --timeout bounds the connection, the get and the writing together.
  const RequestContext context = InterruptibleContext(flags.timeout);
  TC_ASSIGN_OR_RETURN(client::ClientOptions connection, ConfiguredClient(common));
  connection.connect_timeout = std::min(connection.connect_timeout, flags.timeout);
  TC_ASSIGN_OR_RETURN(const auto client, client::Client::Connect(connection));
  ProgressBar bar("get");  // with several locations: the one that reported last
  client::GetOptions options = flags.get;
  // Without --out the replica is made and not attached to, so this process does not hold it.
  options.attach = writes;
  options.on_progress = bar.callback();
  const std::vector<std::string> locations = absl::StrSplit(flags.device, ',');
  TC_ASSIGN_OR_RETURN(const Replicas replicas, client->GetAt(context, flags.artifact, locations, options));
  const auto& replica = replicas.front();
  if (writes) {
    const absl::Status written = IsFile(flags.out) ? WriteTensors(*replica, flags.out, context)
                                                   : WriteFolder(*client, *replica, flags, context);
    TC_RETURN_IF_ERROR(Annotate(written, absl::StrCat("get ", flags.artifact)));
    // The warning comes after the work: a replica of the key as it was last known is a success.
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
  flags.Add(
      "--out", values.out,
      "File for the tensors, if its name ends in .safetensors; else folder for the tensors and for the\n"
      "files that the key binds with them (config.json, tokenizer). If several keys bind different\n"
      "files with the artifact, give a key: an artifact id writes the tensors only",
      {.not_empty = true, .path = true});
  flags.Add("--wait", values.get.wait_for_space,
            "Wait until the pool has space and, with --advance, until no process uses the earlier\n"
            "version, instead of failing at once");
  flags.Add(
      "--advance", values.get.advance,
      "Write the version over the replica of an earlier version at the same location, cpu or gpu:N: memory\n"
      "for one image is then enough. Without a stored difference to this version, the daemon writes over\n"
      "the least recently used replica at this location that has tensors of the same names, types and\n"
      "shapes, whatever its key. The get fails if that replica is pinned or is the last copy of its\n"
      "artifact, or, without --wait, if it is in use");
  flags.Add("--confirmed", values.get.confirmed, kConfirmedHelp);
  flags.Add("--pin", values.get.pin, kPinHelp);
  flags.Add("--timeout", values.timeout, "Give up after this time, such as 30s", {.min = 0.001});
}

}  // namespace

Command GetCommand() {
  return {.name = "get",
          .help = "Bring an artifact to this daemon",
          .spanned = true,
          .bind = Bind(AddFlags, Get)};
}

}  // namespace tensorcast::cli
