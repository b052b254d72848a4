// `tensorcast ls`, `rm` and `gc`: the artifacts that the global store knows.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "core/artifact/manifest.h"
#include "proto/daemon.pb.h"
#include "proto/global_store.pb.h"

namespace tensorcast::cli {
namespace {

struct ListFlags {
  bool nodes = false;
  bool long_form = false;
  bool differences = false;
};

using NodeNames = std::map<std::string, std::string>;  // by node id

// Empty where the global store does not answer: then the start of a node's id stands for its name.
NodeNames NamesOfNodes(client::AdminClient& admin) {
  NodeNames names;
  const auto status = admin.GetClusterStatus(InterruptibleContext());
  if (!status.ok()) return names;
  for (const v1::Node& node : status->nodes()) names[node.node_id()] = node.name();
  return names;
}

std::string NodeText(const std::string& id, const NodeNames& names) {
  const auto known = names.find(id);
  return known != names.end() ? known->second : id.substr(0, 8);
}

// Of a partial replica, what there is of it: " (12 of 264 chunks)"; of one that is not a source, why.
std::string PartText(const v1::Replica& replica) {
  if (replica.chunks_unverified() > 0) return " (not verified)";
  if (replica.state() != v1::REPLICA_STATE_PARTIAL) return "";
  return absl::StrCat(" (", replica.chunks_present(), " of ", replica.chunks_total(), " chunks)");
}

// "3"; where they are listed "cpu@node-a, gpu:0@node-b, cpu@node-c (12 of 264 chunks)". Of an artifact
// without a replica, the files that a get would read: "origin@node-a".
std::string ReplicasText(const v1::Artifact& artifact, const NodeNames& names) {
  if (artifact.replicas().empty() && artifact.replica_count() > 0) {
    return absl::StrCat(artifact.replica_count());
  }
  std::vector<std::string> places;
  for (const v1::Replica& replica : artifact.replicas()) {
    places.push_back(absl::StrCat(LocationText(replica.location()), "@", NodeText(replica.node_id(), names),
                                  PartText(replica)));
  }
  if (!places.empty()) return absl::StrJoin(places, ", ");
  for (const v1::Origin& origin : artifact.origins()) {
    places.push_back(absl::StrCat("origin@", NodeText(origin.node_id(), names)));
  }
  return places.empty() ? "0" : absl::StrJoin(places, ", ");
}

// A row for each object that an artifact was imported from.
std::string OriginsText(const std::vector<v1::Artifact>& artifacts, const NodeNames& names) {
  Table table({"artifact", "imported from", "size", "version", "imported by"});
  for (const v1::Artifact& artifact : artifacts) {
    for (const v1::Origin& origin : artifact.origins()) {
      for (const v1::Origin::Object& object : origin.objects()) {
        table.Add({artifact.artifact_id(), object.uri(), FormatBytes(object.bytes()), object.version(),
                   NodeText(origin.node_id(), names)});
      }
    }
  }
  return table.ToString();
}

// "llama/prod, llama/rl (kept)": keys that name it, then those that keep it as an earlier version.
std::string KeysText(const v1::Artifact& artifact) {
  std::vector<std::string> keys(artifact.keys().begin(), artifact.keys().end());
  for (const std::string& key : artifact.kept_by()) keys.push_back(absl::StrCat(key, " (kept)"));
  if (artifact.released()) keys.emplace_back("(deleted when space is needed)");
  return absl::StrJoin(keys, ", ");
}

// "291", and of an artifact of kind files "12 files".
std::string CountText(const v1::Artifact& artifact) {
  const bool files = artifact.kind() == static_cast<uint32_t>(ArtifactKind::kFiles);
  return absl::StrCat(artifact.tensor_count(), files ? " files" : "");
}

// Whether its text has the name of a node. Names cost a call that returns every node.
bool NamesNodes(const v1::Artifact& artifact) {
  return !artifact.replicas().empty() || (artifact.replica_count() == 0 && !artifact.origins().empty());
}

bool IsDifference(const v1::Artifact& artifact) {
  return artifact.kind() == static_cast<uint32_t>(ArtifactKind::kDifference);
}

// A row for each difference: the versions that it is between, not those that name it, since no key does.
std::string DifferencesText(const std::vector<v1::Artifact>& artifacts, const NodeNames& names) {
  Table table({"difference", "size", "base", "target", "replicas"});
  for (const v1::Artifact& artifact : artifacts) {
    const v1::Difference own = artifact.differences().empty() ? v1::Difference() : artifact.differences(0);
    table.Add({artifact.artifact_id(), FormatBytes(artifact.image_bytes()), own.base_id(), own.target_id(),
               ReplicasText(artifact, names)});
  }
  return table.ToString();
}

absl::Status ListArtifacts(const CommonFlags& common, const ListFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(auto artifacts, admin->ListArtifacts(InterruptibleContext(), /*unkeyed_only=*/false,
                                                           absl::ZeroDuration(), flags.nodes));
  std::erase_if(artifacts,
                [&](const v1::Artifact& artifact) { return IsDifference(artifact) != flags.differences; });
  v1::ListArtifactsResponse all;
  all.mutable_artifacts()->Assign(artifacts.begin(), artifacts.end());
  return Show(common, all, [&] {
    const bool named = flags.long_form || std::ranges::any_of(artifacts, NamesNodes);
    const NodeNames names = named ? NamesOfNodes(*admin) : NodeNames();
    if (flags.differences) return DifferencesText(artifacts, names);
    Table table({"artifact", "size", "tensors", "keys", "replicas"});
    for (const v1::Artifact& artifact : artifacts) {
      table.Add({artifact.artifact_id(), FormatBytes(artifact.image_bytes()), CountText(artifact),
                 KeysText(artifact), ReplicasText(artifact, names)});
    }
    return flags.long_form ? absl::StrCat(table.ToString(), "\n", OriginsText(artifacts, names))
                           : table.ToString();
  });
}

void AddFlags(Flags& flags, ListFlags& values) {
  flags.Add("--nodes", values.nodes,
            "List the node and location of each replica instead of the number of replicas");
  flags.Add("--long", values.long_form,
            "List also the files and objects that each artifact was imported from, with their versions");
  flags.Add("--differences", values.differences,
            "List the differences between versions of keys, with base and target, instead of artifacts");
}

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
  // The keys are looked at here, in this process, and can change before the deletions. The revision in
  // DeleteKey and the store's own refusal of an artifact with a key close that gap.
  TC_ASSIGN_OR_RETURN(const v1::ListKeysResponse listed, admin->ListKeys(context, ""));
  // An id says which version is meant; a key does not say that other keys' earlier versions are.
  const auto keeper = std::ranges::find_if(listed.keys(), [&](const v1::Key& key) {
    return std::ranges::count(key.earlier(), artifact_id, &v1::KeyVersion::artifact_id) > 0;
  });
  if (keeper != listed.keys().end() && !keys.empty() && !flags.force) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rm ", flags.artifact, ": key ", keeper->name(), " keeps artifact ", artifact_id,
        " as an earlier version, so nothing was deleted; give --force to delete the artifact all the same"));
  }
  // From here on `keys` has the key that was named, then the others that are bound to the artifact.
  const size_t named = keys.size();
  for (const v1::Key& key : listed.keys()) {
    if (key.artifact_id() == artifact_id && key.name() != flags.artifact) keys.push_back(key);
  }
  if (keys.size() > named && !flags.force) {
    const size_t unnamed = keys.size() - named - 1;
    return absl::FailedPreconditionError(absl::StrCat(
        "rm ", flags.artifact, ": artifact ", artifact_id, " is ", named == 0 ? "" : "also ", "bound to key ",
        keys[named].name(), unnamed == 0 ? "" : absl::StrCat(" and to ", unnamed, " more keys"),
        ", so nothing was deleted; give --force to delete the artifact with its keys, or remove only a key "
        "with `tensorcast key rm`"));
  }
  for (const v1::Key& key : keys) {
    // Of this revision: a key that was bound anew meanwhile stays, and names another artifact.
    TC_RETURN_IF_ERROR(admin->DeleteKey(context, key.name(), key.revision()));
  }
  // Last: an artifact with a key is refused, and a failure before this leaves the artifact for another try.
  TC_RETURN_IF_ERROR(admin->DeleteArtifact(context, artifact_id));
  return Show(common, {{"artifact_id", artifact_id}}, absl::StrCat("deleted ", artifact_id, "\n"));
}

void AddFlags(Flags& flags, RemoveFlags& values) {
  flags.Add("artifact", values.artifact, "A key, which is removed too, or an artifact id",
            {.required = true, .not_empty = true});
  flags.Add("--force", values.force,
            "Delete the artifact even if other keys are bound to it, and remove these keys");
}

struct GcFlags {
  absl::Duration older_than = absl::Hours(24);
  bool dry_run = false;
};

void AddFlags(Flags& flags, GcFlags& values) {
  flags.Add("--older-than", values.older_than,
            "Min age of what is deleted: artifacts, archived objects that no artifact\nneeds, and unfinished "
            "uploads",
            {.show_default = true});
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
    // At once, so that an error later on does not hide what is deleted already.
    if (!common.json) PrintF("%s  %s\n", artifact.artifact_id(), FormatBytes(artifact.image_bytes()));
  }
  TC_ASSIGN_OR_RETURN(const v1::CollectArchivesResponse archives,
                      admin->CollectArchives(context, flags.older_than, flags.dry_run));
  if (common.json) {
    nlohmann::json all = nlohmann::json::parse(ToJson(dropped));
    all.update(nlohmann::json::parse(ToJson(archives)));
    return Show(common, all, "");
  }
  const std::string_view deleted = flags.dry_run ? "would delete " : "deleted ";
  std::string text = absl::StrCat(deleted, dropped.artifacts_size(), " artifacts, ", FormatBytes(bytes),
                                  " in one copy of each\n");
  for (const std::string& uri : archives.removed_objects()) absl::StrAppend(&text, deleted, uri, "\n");
  for (const std::string& uri : archives.ended_uploads()) {
    absl::StrAppend(&text, flags.dry_run ? "would abort" : "aborted", " the upload of ", uri, "\n");
  }
  return Show(common, nullptr, text);
}

}  // namespace

Command ListCommand() {
  return {.name = "ls",
          .help = "List artifacts, their keys and replicas",
          .spanned = true,
          .bind = Bind(AddFlags, ListArtifacts)};
}

Command RemoveCommand() {
  return {.name = "rm",
          .help = "Delete an artifact and the key that names it",
          .spanned = true,
          .bind = Bind(AddFlags, RemoveArtifact)};
}

Command GcCommand() {
  return {.name = "gc",
          .help =
              "Delete the artifacts of the cluster to which no key is bound and which no key keeps as an\n"
              "earlier version, and their objects in the daemon's archives; abort unfinished uploads there",
          .spanned = true,
          .bind = Bind(AddFlags, Gc)};
}

}  // namespace tensorcast::cli
