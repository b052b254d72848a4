#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/commands/commands.h"
#include "cli/commands/json.h"
#include "cli/output/output.h"
#include "client/admin.h"
#include "client/client.h"
#include "core/artifact/manifest.h"

namespace tensorcast::cli {
namespace {

// Removes the key and, when no other key is bound to it (or with --force, all of them), the artifact.
absl::Status RemoveArtifact(const CommonFlags& common, const RemoveFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  std::string artifact_id = flags.artifact;
  if (!IsArtifactId(flags.artifact)) {
    TC_ASSIGN_OR_RETURN(const client::KeyInfo key, client->ResolveKey(context, flags.artifact));
    artifact_id = key.artifact_id;
    TC_RETURN_IF_ERROR(client->DeleteKey(context, flags.artifact, key.revision));
  }
  if (flags.force) {
    TC_ASSIGN_OR_RETURN(const auto keys, client->ListKeys(context, ""));
    for (const client::KeyInfo& key : keys) {
      if (key.artifact_id == artifact_id)
        TC_RETURN_IF_ERROR(client->DeleteKey(context, key.name, key.revision));
    }
  }
  TC_RETURN_IF_ERROR(admin->DeleteArtifact(context, artifact_id, /*only_if_unkeyed=*/true));
  if (!common.json) std::printf("deleted %s\n", artifact_id.c_str());
  if (common.json) std::printf("{\"artifact_id\": \"%s\"}\n", artifact_id.c_str());
  return absl::OkStatus();
}

absl::Status EvictReplica(const CommonFlags& common, const RemoveFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_RETURN_IF_ERROR(admin->EvictReplica(InterruptibleContext(), flags.replica, flags.force));
  if (!common.json) std::printf("evicted %s\n", flags.replica.c_str());
  if (common.json) std::printf("{\"replica_id\": \"%s\"}\n", flags.replica.c_str());
  return absl::OkStatus();
}

absl::Status Gc(const CommonFlags& common, const GcFlags& flags) {
  TC_ASSIGN_OR_RETURN(const absl::Duration age, ParseDuration(flags.older_than));
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  TC_ASSIGN_OR_RETURN(const auto artifacts, admin->ListArtifacts(context, /*unkeyed_only=*/true, age));
  v1::ListArtifactsResponse dropped;
  uint64_t bytes = 0;
  for (const v1::Artifact& artifact : artifacts) {
    if (!flags.dry_run) {
      const absl::Status status =
          admin->DeleteArtifact(context, artifact.artifact_id(), /*only_if_unkeyed=*/true);
      if (absl::IsFailedPrecondition(status)) continue;  // a key was bound meanwhile
      TC_RETURN_IF_ERROR(status);
    }
    bytes += artifact.image_bytes();
    *dropped.add_artifacts() = artifact;
    if (!common.json)
      std::printf("%s  %s\n", artifact.artifact_id().c_str(), FormatBytes(artifact.image_bytes()).c_str());
  }
  if (common.json) std::fputs(ToJson(dropped).c_str(), stdout);
  if (!common.json) {
    std::printf("%s %d artifacts, %s each copy\n", flags.dry_run ? "would delete" : "deleted",
                dropped.artifacts_size(), FormatBytes(bytes).c_str());
  }
  return absl::OkStatus();
}

}  // namespace

int RunRemove(const CommonFlags& common, const RemoveFlags& flags) {
  if (flags.artifact.empty() == flags.replica.empty()) {
    return Fail(absl::InvalidArgumentError("rm wants either an artifact (a key or an id) or --replica"));
  }
  return ExitCode(flags.replica.empty() ? RemoveArtifact(common, flags) : EvictReplica(common, flags));
}

int RunGc(const CommonFlags& common, const GcFlags& flags) { return ExitCode(Gc(common, flags)); }

int RunPin(const CommonFlags& common, const PinFlags& flags) {
  const auto pin = [&]() -> absl::Status {
    TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
    TC_RETURN_IF_ERROR(admin->SetPinned(InterruptibleContext(), flags.replica, flags.pinned));
    if (!common.json) std::printf("%s %s\n", flags.pinned ? "pinned" : "unpinned", flags.replica.c_str());
    if (common.json)
      std::printf("{\"replica_id\": \"%s\", \"pinned\": %s}\n", flags.replica.c_str(),
                  flags.pinned ? "true" : "false");
    return absl::OkStatus();
  };
  return ExitCode(pin());
}

}  // namespace tensorcast::cli
