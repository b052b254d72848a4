#include "global_store/inventory/origin_copies.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/artifact/object_uri.h"

namespace tensorcast::global_store {
namespace {

std::string DescribeComparison(const Catalog::Artifact& artifact, const Origin& origin,
                               std::string_view how_far) {
  const std::string& name = artifact.keys.empty() ? artifact.record.artifact_id : *artifact.keys.begin();
  return absl::StrCat("the comparison of origin ", origin.objects.front().uri, " of ", name,
                      " before its replica may go: ", how_far);
}

}  // namespace

OriginsAsCopies JudgeOrigins(const Catalog& catalog, const Membership& nodes, std::string_view artifact_id,
                             absl::Duration age, SteadyTime now) {
  OriginsAsCopies judged;
  const Catalog::Artifact* artifact = catalog.Find(artifact_id);
  if (artifact == nullptr) return judged;
  for (const Origin& origin : artifact->record.origins) {
    const Node* node = nodes.Find(origin.node_id);
    if (node == nullptr) {
      absl::StrAppend(&judged.others, ", node ", origin.node_id, ", where it was imported, is away");
      continue;
    }
    const NodeFacts& facts = node->facts;
    // Whatever its node says of it.
    if (std::ranges::any_of(origin.objects, IsObjectUri, &ObjectIdentity::uri)) {
      absl::StrAppend(&judged.others, ", the object ", origin.objects.front().uri, " that node ", facts.name,
                      " imported does not count, since others can replace or delete it");
      continue;
    }
    if (origin.untraceable) {
      absl::StrAppend(
          &judged.others, ", what node ", facts.name,
          " imported it from does not count, since its file system shows no trace of some writes");
      continue;
    }
    if (const Catalog::OriginNote* note = artifact->NoteOf(origin)) {
      if (note->finding == OriginFinding::kGone) {
        absl::StrAppend(&judged.others, ", what node ", facts.name, " imported it from is gone (",
                        note->reason, ")");
        continue;
      }
      if (now - note->noted <= age) {
        if (note->finding == OriginFinding::kUnclear) {
          absl::StrAppend(&judged.others, ", node ", facts.name, ", where it was imported, could not look (",
                          note->reason, ")");
          continue;
        }
        if (note->finding == OriginFinding::kComparing) {
          judged.comparing = DescribeComparison(*artifact, origin, note->reason);
          absl::StrAppend(&judged.others, ", awaited is ", judged.comparing);
        } else if (!origin.compared) {
          const std::string& why = note->reason;
          absl::StrAppend(&judged.others, ", node ", facts.name, " has not compared what it imported it from",
                          why.empty() ? "" : absl::StrCat(" (", why, ")"));
        } else {
          judged.intact.push_back(&origin);
        }
        continue;
      }
    }
    if (node->unreachable || now - node->silent_since <= age) {
      absl::StrAppend(&judged.others, ", node ", facts.name, ", where it was imported, does not answer");
      continue;
    }
    judged.unchecked.push_back(
        {.artifact_id = std::string(artifact_id), .origin = origin, .grpc_address = facts.grpc_address});
  }
  return judged;
}

}  // namespace tensorcast::global_store
