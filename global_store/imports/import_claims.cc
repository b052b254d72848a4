#include "global_store/imports/import_claims.h"

#include <algorithm>

namespace tensorcast::global_store {

ImportClaims::Import& ImportClaims::Find(const std::string& import_id, SteadyTime now) {
  // Only a new one makes the table larger; to look through it is rare, since it has room for many.
  if (!imports_.contains(import_id) && imports_.size() >= options_.max_claims) {
    imports_.erase(std::ranges::min_element(imports_, {}, [](const auto& one) { return one.second.used; }));
  }
  Import& import = imports_[import_id];
  import.used = now;
  return import;
}

ImportClaims::Answer ImportClaims::Claim(const std::string& node_id, uint64_t incarnation,
                                         const std::string& import_id, SteadyTime now) {
  Import& import = Find(import_id, now);
  // An ended import answers with its artifact for as long as it is remembered; a claim is not needed then.
  if (!import.artifact_id.empty()) return {.artifact_id = import.artifact_id};
  const bool own = import.node_id == node_id && import.incarnation == incarnation;
  // Another node reads, and renews its claim in time. A claim that was not renewed is free for the next node.
  if (!own && now < import.until) return {.reading_node_id = import.node_id};
  import.node_id = node_id;
  import.incarnation = incarnation;
  import.until = now + options_.ttl;
  return {.granted = true};
}

void ImportClaims::End(const std::string& node_id, uint64_t incarnation, const std::string& import_id,
                       const std::string& artifact_id, SteadyTime now) {
  Import& import = Find(import_id, now);
  // A late message of a holder that lost its claim changes nothing for the present holder.
  if (import.node_id != node_id || import.incarnation != incarnation) return;
  import.artifact_id = artifact_id;
  import.until = now;
}

}  // namespace tensorcast::global_store
