// Who gives an ingest its bytes, in a form that errors, logs, spans and reports can name. A value.
#pragma once

#include <string>
#include <string_view>

#include "base/trace_context.h"

namespace tensorcast {

enum class SourceType { kLocal, kRemote, kDisk };  // tc.source.type
std::string_view SourceTypeName(SourceType type);

// The lanes that are no transport's. (Each transport has its name in transport/lanes.)
inline constexpr std::string_view kLocalLane = "local";    // attach to a daemon of the same host
inline constexpr std::string_view kDiskLane = "disk";      // this node's own packed files and origins
inline constexpr std::string_view kMemoryLane = "memory";  // this node's host memory, or a client's
inline constexpr std::string_view kDeviceLane = "device";  // this node's GPUs

// Identifies a source in errors, logs, spans and reports.
struct SourceInfo {
  SourceType type = SourceType::kLocal;
  std::string lane;           // a transport's name, or one of those above
  std::string name;           // whom it reads: a node name, a path
  std::string grant_id = {};  // of the grant it is read under; empty where none is needed
  TraceContext span = {};     // reserved for the reading of it, where the other end links to it
  TraceContext made_by = {};  // the ingest that made the replica it reads, where that is known
};

}  // namespace tensorcast
