#include "core/engine/transfer.h"

namespace tensorcast {

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

}  // namespace tensorcast
