#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "core/artifact/manifest.h"
#include "proto/global_store.pb.h"

namespace tensorcast::cli {
namespace {

struct RemoveFlags {
  std::string artifact;  // a key or an id
  bool force = false;
};

// Removes the key and, when no other key is bound to it (or with --force, all of them), the artifact. Looks
// before it deletes anything, so that a refusal changes nothing.
absl::Status RemoveArtifact(const CommonFlags& common, const RemoveFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  std::string artifact_id = flags.artifact;
  std::vector<v1::Key> keys;  // to be removed
  if (!IsArtifactId(flags.artifact)) {
    TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse resolved,
                        admin->ResolveKey(context, flags.artifact, /*confirmed=*/true));
    keys.push_back(resolved.key());
    artifact_id = resolved.key().artifact_id();
  }
  TC_ASSIGN_OR_RETURN(const v1::ListKeysResponse listed, admin->ListKeys(context, ""));
  // An id says which version is meant; a key does not say that other keys' earlier versions are.
  const auto keeper = std::ranges::find_if(listed.keys(), [&](const v1::Key& key) {
    return std::ranges::count(key.earlier(), artifact_id, &v1::KeyVersion::artifact_id) > 0;
  });
  if (keeper != listed.keys().end() && !keys.empty() && !flags.force) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rm ", flags.artifact, ": nothing was deleted: key ", keeper->name(), " keeps the artifact ",
        artifact_id, " as an earlier version; --force deletes it all the same"));
  }
  const size_t named = keys.size();
  for (const v1::Key& key : listed.keys()) {
    if (key.artifact_id() == artifact_id && key.name() != flags.artifact) keys.push_back(key);
  }
  if (keys.size() > named && !flags.force) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rm ", flags.artifact, ": nothing was deleted: ", keys.size() - named,
        named == 0 ? " keys" : " other keys", " are bound to artifact ", artifact_id, ", such as ",
        keys[named].name(), "; --force deletes them too, `tensorcast key rm` only a key"));
  }
  for (const v1::Key& key : keys) {
    // Of this revision: a key that was bound anew meanwhile stays, and names another artifact.
    TC_RETURN_IF_ERROR(admin->DeleteKey(context, key.name(), key.revision()));
  }
  TC_RETURN_IF_ERROR(admin->DeleteArtifact(context, artifact_id));
  if (!common.json) std::printf("deleted %s\n", artifact_id.c_str());
  if (common.json) std::printf("{\"artifact_id\": \"%s\"}\n", artifact_id.c_str());
  return absl::OkStatus();
}

void AddFlags(Flags& flags, RemoveFlags& values) {
  flags.Add("artifact", values.artifact, "A key, which is removed too, or an artifact id",
            {.required = true, .not_empty = true});
  flags.Add("--force", values.force, "Delete an artifact to which other keys are bound, with these keys");
}

}  // namespace

Command RemoveCommand() {
  return {.name = "rm",
          .help = "Delete an artifact and the key that names it",
          .spanned = true,
          .bind = Bind(AddFlags, RemoveArtifact)};
}

}  // namespace tensorcast::cli
