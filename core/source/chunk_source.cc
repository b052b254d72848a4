#include "core/source/chunk_source.h"

#include "absl/log/log.h"

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
  LOG(DFATAL) << "no such source type: " << static_cast<int>(type);
  return "unknown";
}

}  // namespace tensorcast
