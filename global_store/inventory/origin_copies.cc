#include "global_store/inventory/origin_copies.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {
namespace {

std::string DescribeComparison(const Catalog::Artifact& artifact, const Origin& origin,
                               std::string_view how_far) {
  const std::string& name = artifact.keys.empty() ? artifact.record.artifact_id : *artifact.keys.begin();
  return absl::StrCat("the comparison of ", name, " with the imported files at ", origin.objects.front().uri,
                      " (", how_far, "), after which the replica can be evicted");
}

// What the node that looked, of that name, said of shared objects.
std::string DescribeShared(const Catalog::OriginNote& note, std::string_view uri, std::string_view name) {
  switch (note.finding) {
    case OriginFinding::kMutable:
      return absl::StrCat(", and object ", uri,
                          " does not count as a copy, because the object can be replaced or deleted");
    case OriginFinding::kGone:
      return absl::StrCat(", and object ", uri, ", from which the artifact was imported, is gone (",
                          note.reason, ")");
    default:
      return absl::StrCat(", and node ", name, " could not check object ", uri, " (", note.reason, ")");
  }
}

}  // namespace

OriginsAsCopies JudgeOrigins(const Catalog& catalog, const Membership& nodes, std::string_view artifact_id,
                             const std::string& reader, absl::Duration age, SteadyTime now) {
  OriginsAsCopies judged;
  const Catalog::Artifact* artifact = catalog.Find(artifact_id);
  if (artifact == nullptr) return judged;
  for (const Origin& origin : artifact->record.origins) {
    const bool shared = IsShared(origin);
    // Of a shared object each node has a finding of its own: what the reader found counts, since the reader
    // would have to read the object afterwards.
    Origin looked_at = origin;
    if (shared) looked_at.node_id = reader;
    const Node* node = nodes.Find(looked_at.node_id);
    if (node == nullptr) {
      absl::StrAppend(&judged.others, ", and node ", origin.node_id,
                      ", which imported the artifact, is away");
      continue;
    }
    const NodeFacts& facts = node->facts;
    const Catalog::OriginNote* note = artifact->NoteOf(looked_at);
    const bool fresh = note != nullptr && now - note->noted <= age;
    // A version of a shared object that is gone does not come back, so that finding does not age.
    if (shared && note != nullptr && (fresh || note->finding == OriginFinding::kGone)) {
      if (note->finding == OriginFinding::kIntact) {
        judged.intact.push_back(&origin);
      } else {
        judged.others += DescribeShared(*note, origin.objects.front().uri, facts.name);
      }
      continue;
    }
    // Where writes leave no trace in size or time, a look cannot tell whether the files changed.
    if (origin.untraceable && !shared) {
      absl::StrAppend(
          &judged.others, ", and the imported files of node ", facts.name,
          " do not count as a copy, because their file system does not show every change of a file");
      continue;
    }
    if (note != nullptr) {
      if (note->finding == OriginFinding::kGone) {
        absl::StrAppend(&judged.others, ", and the imported files of node ", facts.name, " are gone (",
                        note->reason, ")");
        continue;
      }
      if (fresh) {
        if (note->finding == OriginFinding::kUnclear) {
          absl::StrAppend(&judged.others, ", and node ", facts.name, " could not check its imported files (",
                          note->reason, ")");
          continue;
        }
        if (note->finding == OriginFinding::kComparing) {
          judged.comparing = DescribeComparison(*artifact, origin, note->reason);
          absl::StrAppend(&judged.others, ", and the global store waits for ", judged.comparing);
          // Right sizes and times are not enough: the files count after their node has compared every digest
          // once.
        } else if (!origin.compared) {
          const std::string& why = note->reason;
          absl::StrAppend(&judged.others, ", and node ", facts.name,
                          " has not compared the artifact with its imported files",
                          why.empty() ? "" : absl::StrCat(" (", why, ")"));
        } else {
          judged.intact.push_back(&origin);
        }
        continue;
      }
    }
    // The node would only let the caller run into its timeout again.
    if (node->unreachable || now - node->silent_since <= age) {
      absl::StrAppend(&judged.others, ", and node ", facts.name,
                      shared ? ", which must check the imported objects" : ", which imported the artifact",
                      ", does not answer");
      continue;
    }
    // Nothing is known, or what is known is old: the caller asks the node, and then judges again.
    judged.unchecked.push_back({.artifact_id = std::string(artifact_id),
                                .origin = std::move(looked_at),
                                .grpc_address = facts.grpc_address});
  }
  return judged;
}

}  // namespace tensorcast::global_store
