// Which node reads the objects of an import, and what came of the imports before: of the nodes that want the
// same objects in the same version one reads, the others take its artifact (README.md). Soft state, without a
// clock of its own. Thread-compatible. It never fails.
#pragma once

#include <cstddef>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::global_store {

struct ImportClaimOptions {
  // A claim that its node does not renew ends after so long. Nodes renew three times as often.
  absl::Duration ttl = absl::Seconds(6);
  size_t max_claims = 10'000;  // those that run and those that ended
};

class ImportClaims {
 public:
  explicit ImportClaims(const ImportClaimOptions& options = {}) : options_(options) {}

  struct Answer {
    bool granted = false;
    std::string artifact_id;      // that an import made; empty: none is known
    std::string reading_node_id;  // that has the claim, where the caller does not
  };
  // The claim of a node, taken or renewed. Each start of a node is another holder.
  Answer Claim(const std::string& node_id, uint64_t incarnation, const std::string& import_id,
               SteadyTime now);
  // The node reads no more. `artifact_id`: what it made; empty: nothing, so that the next node may read.
  // Nothing happens where another node has the claim.
  void End(const std::string& node_id, uint64_t incarnation, const std::string& import_id,
           const std::string& artifact_id, SteadyTime now);
  // The artifact is gone: the next that asks reads again.
  void Forget(const std::string& import_id) { imports_.erase(import_id); }

  absl::Duration ttl() const { return options_.ttl; }

 private:
  struct Import {
    std::string node_id;  // of the claim
    uint64_t incarnation = 0;
    SteadyTime until = SteadyTime::InfinitePast();
    std::string artifact_id;
    SteadyTime used;  // the last time
  };

  Import& Find(const std::string& import_id, SteadyTime now);

  const ImportClaimOptions options_;
  absl::flat_hash_map<std::string, Import> imports_;  // by their ids
};

}  // namespace tensorcast::global_store
