#include "core/replica/transfer_report.h"

namespace tensorcast {

std::string_view SourceTypeName(SourceType type) {
  switch (type) {
    case SourceType::kLocal:
      return "local";
    case SourceType::kRemote:
      return "remote";
    case SourceType::kDisk:
      return "disk";
  }
  return "unknown";
}

std::string_view StageName(Stage stage) {
  switch (stage) {
    case Stage::kFetch:
      return "fetch";
    case Stage::kVerify:
      return "verify";
    case Stage::kPlace:
      return "place";
  }
  return "unknown";
}

std::string_view SourceLossName(SourceLoss loss) {
  switch (loss) {
    case SourceLoss::kNotOpened:
      return "not_opened";
    case SourceLoss::kDied:
      return "source_died";
    case SourceLoss::kTimeout:
      return "timeout";
    case SourceLoss::kBadDigest:
      return "bad_digest";
  }
  return "unknown";
}

std::optional<SourceLoss> ParseSourceLoss(std::string_view name) {
  for (const SourceLoss loss :
       {SourceLoss::kNotOpened, SourceLoss::kDied, SourceLoss::kTimeout, SourceLoss::kBadDigest}) {
    if (name == SourceLossName(loss)) return loss;
  }
  return std::nullopt;
}

}  // namespace tensorcast
