#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/output.h"

namespace tensorcast::cli {
namespace {

struct GcFlags {
  absl::Duration older_than = absl::Hours(24);
  bool dry_run = false;
};

void AddFlags(Flags& flags, GcFlags& values) {
  flags.Add("--older-than", values.older_than, "Min age of the artifacts to delete", {.show_default = true});
  flags.Add("--dry-run", values.dry_run, "List what would be deleted, and delete nothing");
}

absl::Status Gc(const CommonFlags& common, const GcFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  TC_ASSIGN_OR_RETURN(const auto artifacts,
                      admin->ListArtifacts(context, /*unkeyed_only=*/true, flags.older_than));
  v1::ListArtifactsResponse dropped;
  uint64_t bytes = 0;
  for (const v1::Artifact& artifact : artifacts) {
    if (!flags.dry_run) {
      const absl::Status status = admin->DeleteArtifact(context, artifact.artifact_id());
      // Since they were listed, a key was bound to it, or another client deleted it.
      if (absl::IsFailedPrecondition(status) || absl::IsNotFound(status)) continue;
      TC_RETURN_IF_ERROR(status);
    }
    bytes += artifact.image_bytes();
    *dropped.add_artifacts() = artifact;
    if (!common.json) {
      std::printf("%s  %s\n", artifact.artifact_id().c_str(), FormatBytes(artifact.image_bytes()).c_str());
    }
  }
  if (common.json) std::fputs(ToJson(dropped).c_str(), stdout);
  if (!common.json) {
    std::printf("%s %d artifacts, %s each copy\n", flags.dry_run ? "would delete" : "deleted",
                dropped.artifacts_size(), FormatBytes(bytes).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

Command GcCommand() {
  return {.name = "gc",
          .help = "Delete artifacts that no key names, and that none keeps as an earlier version",
          .spanned = true,
          .bind = Bind(AddFlags, Gc)};
}

}  // namespace tensorcast::cli
