#include "core/replica/inventory_digest.h"

#include <gtest/gtest.h>

namespace tensorcast {
namespace {

TEST(InventoryDigest, Replica_CountsWhileReadyOrPartial) {
  ReplicaInfo replica{.id = "r1", .artifact_id = "tc2:a", .state = ReplicaState::kReady};
  const uint64_t ready = InventoryDigestOf(replica);
  EXPECT_NE(ready, 0);
  replica.state = ReplicaState::kPartial;
  EXPECT_EQ(InventoryDigestOf(replica), ready);
  for (const ReplicaState state : {ReplicaState::kAllocating, ReplicaState::kFilling, ReplicaState::kDraining,
                                   ReplicaState::kGone, ReplicaState::kFailed}) {
    replica.state = state;
    EXPECT_EQ(InventoryDigestOf(replica), 0) << ReplicaStateName(state);
  }
}

TEST(InventoryDigest, Replica_IsToldApartByItsId) {
  const ReplicaInfo one{.id = "r1", .artifact_id = "tc2:a", .state = ReplicaState::kReady};
  const ReplicaInfo other{.id = "r2", .artifact_id = "tc2:a", .state = ReplicaState::kReady};
  EXPECT_NE(InventoryDigestOf(one), InventoryDigestOf(other));
}

// Both ends compute it, in processes of perhaps different versions.
TEST(InventoryDigest, Value_IsThatOfXxh3) {
  const ReplicaInfo replica{.id = "", .artifact_id = "tc2:a", .state = ReplicaState::kReady};
  EXPECT_EQ(InventoryDigestOf(replica), 0x2d06800538d394c2) << "XXH3_64bits of nothing";
}

TEST(InventoryDigest, ReplicaWithoutArtifact_DoesNotCount) {
  EXPECT_EQ(InventoryDigestOf({.id = "r1", .state = ReplicaState::kReady}), 0);
}

}  // namespace
}  // namespace tensorcast
