#include "core/replica/replica.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tensorcast {

std::string_view LocationKindName(LocationKind kind) {
  switch (kind) {
    case LocationKind::kGpu:
      return "gpu";
    case LocationKind::kCpu:
      return "cpu";
    case LocationKind::kDisk:
      return "disk";
  }
  return "unknown";
}

std::string Location::ToString() const {
  if (kind == LocationKind::kGpu) return absl::StrCat("gpu:", device);
  return std::string(LocationKindName(kind));
}

absl::StatusOr<Location> Location::Parse(std::string_view text) {
  if (text == "cpu") return Location{LocationKind::kCpu, 0};
  if (text == "disk") return Location{LocationKind::kDisk, 0};
  std::string_view ordinal = text;
  Location gpu{LocationKind::kGpu, 0};
  if (absl::ConsumePrefix(&ordinal, "gpu:") && absl::SimpleAtoi(ordinal, &gpu.device) && gpu.device >= 0 &&
      gpu.ToString() == text) {
    return gpu;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a location: write cpu, disk, or gpu:N with the device's number"));
}

std::string_view ReplicaStateName(ReplicaState state) {
  switch (state) {
    case ReplicaState::kAllocating:
      return "allocating";
    case ReplicaState::kFilling:
      return "filling";
    case ReplicaState::kPartial:
      return "partial";
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
      return to == ReplicaState::kReady || to == ReplicaState::kPartial || to == ReplicaState::kFailed;
    case ReplicaState::kPartial:
      return to == ReplicaState::kFilling || to == ReplicaState::kDraining;
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
