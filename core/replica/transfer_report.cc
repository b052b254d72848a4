#include "core/replica/transfer_report.h"

#include <algorithm>
#include <array>

#include "base/enum_names.h"

namespace tensorcast {
namespace {

// In the order of the enumerations. These names go over the wire, into metrics and into traces.
constexpr std::array<std::string_view, 3> kSourceTypes = {"local", "remote", "disk"};
constexpr std::array<std::string_view, 3> kStages = {"fetch", "verify", "place"};
constexpr std::array<std::string_view, 4> kLosses = {"not_opened", "source_died", "timeout", "bad_digest"};

}  // namespace

std::string_view SourceTypeName(SourceType type) { return NameIn(kSourceTypes, type); }

std::string_view StageName(Stage stage) { return NameIn(kStages, stage); }

std::string_view SourceLossName(SourceLoss loss) { return NameIn(kLosses, loss); }

std::optional<SourceLoss> ParseSourceLoss(std::string_view name) {
  const auto* const found = std::ranges::find(kLosses, name);
  if (found == kLosses.end()) return std::nullopt;
  return static_cast<SourceLoss>(found - kLosses.begin());
}

}  // namespace tensorcast
