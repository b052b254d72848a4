#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "core/artifact/manifest.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {
namespace {

struct RemoveFlags {
  std::string artifact;  // a key or an id
  std::string replica;   // evict this replica only
  std::string node;      // or unbind this node id
  bool force = false;
};

// Removes the key and, when no other key is bound to it (or with --force, all of them), the artifact. Looks
// before it deletes anything, so that a refusal changes nothing.
absl::Status RemoveArtifact(const CommonFlags& common, const RemoveFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  std::string artifact_id = flags.artifact;
  std::vector<client::KeyInfo> keys;  // to be removed
  if (!IsArtifactId(flags.artifact)) {
    TC_ASSIGN_OR_RETURN(keys.emplace_back(), client->ResolveKey(context, flags.artifact, /*confirmed=*/true));
    artifact_id = keys.front().artifact_id;
  }
  TC_ASSIGN_OR_RETURN(std::vector<client::KeyInfo> others, client->ListKeys(context, ""));
  // An id says which version is meant; a key does not say that other keys' earlier versions are.
  const auto keeper = std::ranges::find_if(others, [&](const client::KeyInfo& key) {
    return std::ranges::count(key.earlier, artifact_id, &client::KeyInfo::Version::artifact_id) > 0;
  });
  if (keeper != others.end() && !keys.empty() && !flags.force) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rm ", flags.artifact, ": nothing was deleted: key ", keeper->name, " keeps the artifact ",
        artifact_id, " as an earlier version; --force deletes it all the same"));
  }
  std::erase_if(others, [&](const client::KeyInfo& key) {
    return key.artifact_id != artifact_id || key.name == flags.artifact;
  });
  if (!others.empty() && !flags.force) {
    return absl::FailedPreconditionError(
        absl::StrCat("nothing was deleted: ", others.size(), keys.empty() ? " keys" : " other keys",
                     " are bound to artifact ", artifact_id, ", such as ", others.front().name,
                     "; --force deletes them too, `tensorcast key rm` only a key"));
  }
  keys.insert(keys.end(), others.begin(), others.end());
  for (const client::KeyInfo& key : keys) {
    // Of this revision: a key that was bound anew meanwhile stays, and names another artifact.
    TC_RETURN_IF_ERROR(client->DeleteKey(context, key.name, key.revision));
  }
  TC_RETURN_IF_ERROR(admin->DeleteArtifact(context, artifact_id));
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

absl::Status ForgetNode(const CommonFlags& common, const RemoveFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const absl::Status forgotten = admin->ForgetNode(InterruptibleContext(), flags.node);
  if (absl::IsUnimplemented(forgotten)) {
    return absl::FailedPreconditionError(
        "rm --node: this address is a daemon's; give the global store's own address as --daemon");
  }
  TC_RETURN_IF_ERROR(forgotten);
  if (!common.json) std::printf("node id %s is unbound\n", flags.node.c_str());
  if (common.json) std::printf("{\"node_id\": \"%s\"}\n", flags.node.c_str());
  return absl::OkStatus();
}

void AddFlags(Flags& flags, RemoveFlags& values) {
  flags.Add("artifact", values.artifact, "A key, which is removed too, or an artifact id");
  flags.Add("--replica", values.replica,
            "Evict only this replica from this daemon; with a key or an artifact id, all its replicas here",
            {.not_empty = true});
  flags.Add("--node", values.node,
            "At the global store's address: release the name that a node id is bound to",
            {.not_empty = true});
  flags.Add("--force", values.force,
            "Remove even the last copy, or an artifact to which other keys are bound");
}

int RunRemove(const CommonFlags& common, const RemoveFlags& flags) {
  if (!flags.artifact.empty() + !flags.replica.empty() + !flags.node.empty() != 1) {
    return Fail(
        absl::InvalidArgumentError("rm needs either an artifact (a key or an id) or --replica, or --node"));
  }
  if (!flags.replica.empty()) return ExitCode(EvictReplica(common, flags));
  return ExitCode(flags.node.empty() ? RemoveArtifact(common, flags) : ForgetNode(common, flags));
}

}  // namespace

Command RemoveCommand() {
  return {.name = "rm",
          .help = "Delete an artifact, evict one replica, or forget a node",
          .spanned = true,
          .bind = Bind(AddFlags, RunRemove)};
}

}  // namespace tensorcast::cli
