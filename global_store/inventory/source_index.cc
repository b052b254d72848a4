#include "global_store/inventory/source_index.h"

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {
namespace {

// The spread id comes first, so that sources that follow each other have nothing in common and are a sample.
std::pair<uint64_t, std::string> KeyOf(const ReplicaInfo& replica) {
  return {SourceIndex::Spread(replica.id), absl::StrCat(replica.id, "/", replica.node_id)};
}

}  // namespace

std::vector<std::string> SourceIndex::ScopesOf(std::string_view artifact_id, const LaneEnd& end) {
  std::vector<std::string> scopes;
  if (!end.rack.empty()) scopes.push_back(absl::StrCat(artifact_id, "\nrack ", end.zone, "\n", end.rack));
  if (!end.zone.empty()) scopes.push_back(absl::StrCat(artifact_id, "\nzone ", end.zone));
  scopes.emplace_back(artifact_id);
  return scopes;
}

// FNV-1a, then mixed, since similar ids differ in few of its bits.
uint64_t SourceIndex::Spread(std::string_view text) {
  uint64_t hash = 14695981039346656037U;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15U;
  return hash ^ (hash >> 29);
}

void SourceIndex::Leave(const Node& node, const HeldReplica& replica) {
  if (!replica.CanServe()) return;
  const auto key = KeyOf(replica.facts);
  // An emptied scope goes, so that the index does not grow with the artifacts that ever were.
  for (const std::string& scope : ScopesOf(replica.facts.artifact_id, node.end)) {
    auto sources = scopes_.find(scope);
    (replica.IsSource() ? sources->second.ready : sources->second.filling).erase(key);
    if (sources->second.ready.empty() && sources->second.filling.empty()) scopes_.erase(sources);
  }
}

void SourceIndex::Join(const Node& node, const HeldReplica& replica) {
  if (!replica.CanServe()) return;
  const auto key = KeyOf(replica.facts);
  for (const std::string& scope : ScopesOf(replica.facts.artifact_id, node.end)) {
    Scope& sources = scopes_[scope];
    (replica.IsSource() ? sources.ready : sources.filling)[key] = {&node, &replica};
  }
}

const SourceIndex::Scope* SourceIndex::Find(std::string_view scope) const {
  const auto sources = scopes_.find(scope);
  return sources == scopes_.end() ? nullptr : &sources->second;
}

}  // namespace tensorcast::global_store
