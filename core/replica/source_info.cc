#include "core/replica/source_info.h"

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

}  // namespace tensorcast
