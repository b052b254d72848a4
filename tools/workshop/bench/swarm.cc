#include "tools/workshop/bench/swarm.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/status.h"

namespace tensorcast::bench {

absl::StatusOr<double> Swarm::ShareHeld() {
  std::string held;  // as v1::Replica::chunk_bits
  uint32_t chunks = 0;
  for (int node = first_receiver_; node < cluster_->processes().daemons(); ++node) {
    TC_ASSIGN_OR_RETURN(const std::vector<v1::Replica> replicas,
                        cluster_->admin(node).ListReplicas(context_, artifact_id_, /*chunk_bits=*/true));
    for (const v1::Replica& replica : replicas) {
      const std::string& bits = replica.chunk_bits();
      held.resize(std::max(held.size(), bits.size()));
      for (size_t i = 0; i < bits.size(); ++i) held[i] = static_cast<char>(held[i] | bits[i]);
      chunks = std::max(chunks, replica.chunks_total());
    }
  }
  uint32_t present = 0;
  for (const char byte : held) present += std::popcount(static_cast<unsigned char>(byte));
  return chunks == 0 ? 0.0 : static_cast<double>(present) / chunks;
}

absl::StatusOr<std::optional<int>> Swarm::FindFeeder() {
  std::optional<int> feeder;
  uint64_t max = 0;
  for (int node = first_receiver_; node < cluster_->processes().daemons(); ++node) {
    TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, cluster_->admin(node).GetStatus(context_));
    uint64_t given = 0;
    for (const v1::ServeReport& serving : status.servings()) {
      if (!serving.has_closed() && serving.artifact_id() == artifact_id_) given += serving.bytes();
    }
    if (given <= max) continue;
    max = given;
    feeder = node;
  }
  return feeder;
}

}  // namespace tensorcast::bench
