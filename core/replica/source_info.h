// Who gives an ingest its bytes, in a form that errors, logs, spans and reports can name. A value.
#pragma once

#include <string>
#include <string_view>

#include "base/trace_context.h"

namespace tensorcast {

enum class SourceType { kLocal, kRemote, kDisk };  // tc.source.type
std::string_view SourceTypeName(SourceType type);

// Identifies a source in errors, logs, spans and reports.
struct SourceInfo {
  SourceType type = SourceType::kLocal;
  std::string lane;               // "local", "ucx", "ucx-rma", "loopback", "disk", "memory"
  std::string name;               // whom it reads: a node name, a path
  std::string transport_id = {};  // of the grant it is read under; empty where none is needed
  TraceContext span = {};         // reserved for the reading of it, where the other end links to it
  TraceContext made_by = {};      // the ingest that made the replica it reads, where that is known
};

}  // namespace tensorcast
