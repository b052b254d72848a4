#include "core/replica/replica.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/enum_names.h"

namespace tensorcast {

namespace {

constexpr std::array<std::string_view, 3> kLocationKinds = {"gpu", "cpu", "disk"};
constexpr std::array<std::string_view, 7> kStates = {"allocating", "filling", "partial", "ready",
                                                     "draining",   "gone",    "failed"};

using enum ReplicaState;
// From kGone and kFailed nothing leads on: such a replica has left the table.
constexpr std::pair<ReplicaState, ReplicaState> kTransitions[] = {
    {kAllocating, kFilling}, {kAllocating, kFailed}, {kFilling, kReady},
    {kFilling, kPartial},    {kFilling, kFailed},    {kPartial, kFilling},
    {kPartial, kDraining},   {kReady, kDraining},    {kDraining, kGone}};

}  // namespace

std::string_view LocationKindName(LocationKind kind) { return NameIn(kLocationKinds, kind); }

std::string Location::ToString() const {
  if (kind == LocationKind::kGpu) return absl::StrCat("gpu:", device);
  return std::string(LocationKindName(kind));
}

absl::StatusOr<Location> Location::Parse(std::string_view text) {
  if (text == "cpu") return Location{LocationKind::kCpu, 0};
  if (text == "disk") return Location{LocationKind::kDisk, 0};
  std::string_view ordinal = text;
  Location gpu{LocationKind::kGpu, 0};
  // Only the text that ToString writes: "gpu:01" would be a second name of gpu:1.
  if (absl::ConsumePrefix(&ordinal, "gpu:") && absl::SimpleAtoi(ordinal, &gpu.device) && gpu.device >= 0 &&
      gpu.ToString() == text) {
    return gpu;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a location; write cpu, disk, or gpu:N with the number N of the GPU"));
}

std::string_view ReplicaStateName(ReplicaState state) { return NameIn(kStates, state); }

bool IsLegalTransition(ReplicaState from, ReplicaState to) {
  return std::ranges::find(kTransitions, std::pair(from, to)) != std::end(kTransitions);
}

}  // namespace tensorcast
