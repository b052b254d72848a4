// Decides which node reads the objects of an import. If several nodes want the same objects, one node reads
// them, and the other nodes get the artifact of that node (README.md). Soft state; callers pass the time.
// Thread-compatible.
#pragma once

#include <cstddef>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::global_store {

struct ImportClaimOptions {
  // A claim ends if its node does not renew it for this time. Nodes renew after a third of this time.
  absl::Duration ttl = absl::Seconds(6);
  size_t max_claims = 10'000;  // max number of claims, running and ended
};

class ImportClaims {
 public:
  explicit ImportClaims(const ImportClaimOptions& options = {}) : options_(options) {}

  struct Answer {
    bool granted = false;
    std::string artifact_id;      // made by an import; empty: none is known
    std::string reading_node_id;  // the holder of the claim, if not the caller
  };
  // Takes or renews the claim of a node. Each incarnation of a node is a different holder.
  Answer Claim(const std::string& node_id, uint64_t incarnation, const std::string& import_id,
               SteadyTime now);
  // Ends the node's claim. `artifact_id`: the artifact that the node made; empty: none. Does nothing if
  // another node has the claim.
  void End(const std::string& node_id, uint64_t incarnation, const std::string& import_id,
           const std::string& artifact_id, SteadyTime now);
  // Call this when the import's artifact is gone. The next node that claims the import reads the objects
  // again.
  void Forget(const std::string& import_id) { imports_.erase(import_id); }

  absl::Duration ttl() const { return options_.ttl; }

 private:
  struct Import {
    std::string node_id;  // the holder of the claim
    uint64_t incarnation = 0;
    SteadyTime until = SteadyTime::InfinitePast();
    std::string artifact_id;
    SteadyTime used;  // when it was last used
  };

  Import& Find(const std::string& import_id, SteadyTime now);

  const ImportClaimOptions options_;
  absl::flat_hash_map<std::string, Import> imports_;  // by their ids
};

}  // namespace tensorcast::global_store
