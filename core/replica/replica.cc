#include "core/replica/replica.h"

namespace tensorcast {

std::string_view ReplicaStateName(ReplicaState state) {
  switch (state) {
    case ReplicaState::kAllocating:
      return "allocating";
    case ReplicaState::kFilling:
      return "filling";
    case ReplicaState::kReady:
      return "ready";
    case ReplicaState::kDraining:
      return "draining";
    case ReplicaState::kGone:
      return "gone";
    case ReplicaState::kFailed:
      return "failed";
  }
  return "unknown";
}

bool IsLegalTransition(ReplicaState from, ReplicaState to) {
  switch (from) {
    case ReplicaState::kAllocating:
      return to == ReplicaState::kFilling || to == ReplicaState::kFailed;
    case ReplicaState::kFilling:
      return to == ReplicaState::kReady || to == ReplicaState::kFailed;
    case ReplicaState::kReady:
      return to == ReplicaState::kDraining;
    case ReplicaState::kDraining:
      return to == ReplicaState::kGone;
    case ReplicaState::kGone:
    case ReplicaState::kFailed:
      return false;
  }
  return false;
}

}  // namespace tensorcast
