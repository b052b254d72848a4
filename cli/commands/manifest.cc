// `tensorcast manifest`: makes the manifest of a model that is not stored, in this process and without a
// daemon.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "core/artifact/object_uri.h"
#include "core/disk/import_roots.h"
#include "core/safetensors/manifest_beside.h"
#include "core/safetensors/safetensors.h"
#include "nlohmann/json.hpp"
#include "objects/open.h"

namespace tensorcast::cli {
namespace {

struct ManifestFlags {
  std::string model;
  std::string out;
};

absl::Status MakeManifestFile(const CommonFlags& common, const ManifestFlags& flags) {
  const RequestContext context = InterruptibleContext();
  objects::OpenOptions open;
  // A daemon opens only what its operator listed, since it reads for others. This process is the user's own.
  open.files = std::make_shared<const ImportRoots>(ImportRoots::Everything());
  const std::unique_ptr<ObjectStore> store = objects::OpenObjects(std::move(open));
  TC_ASSIGN_OR_RETURN(const SafetensorsModel model, OpenSafetensors(context, *store, flags.model));
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> manifest, MakeManifest(context, model));
  // Whole or not at all: an import that finds half a manifest beside the model would be refused.
  TC_RETURN_IF_ERROR(ReplaceFile(flags.out, manifest->bytes(), 0644));
  return Show(common, nlohmann::json({{"artifact_id", manifest->id()}}), absl::StrCat(manifest->id(), "\n"));
}

void AddFlags(Flags& flags, ManifestFlags& values) {
  flags.Add(
      "model", values.model,
      "A .safetensors file, a folder of shards with their index, or a URI that `put` accepts. This command\n"
      "reads the URI with its own credentials, without a daemon",
      {.required = true, .not_empty = true, .path = true});
  flags.Add("--out", values.out,
            "File to write. Put a copy of this file next to the model (model.tcmanifest in a folder,\n"
            "NAME.tcmanifest next to NAME.safetensors), and imports by URI compare each chunk with the\n"
            "copy's digests",
            {.required = true, .not_empty = true, .path = true});
}

}  // namespace

Command ManifestCommand() {
  return {.name = "manifest",
          .help = "Read a model and write its manifest to a file",
          .role = Role::kLocal,
          .bind = Bind(AddFlags, MakeManifestFile)};
}

}  // namespace tensorcast::cli
