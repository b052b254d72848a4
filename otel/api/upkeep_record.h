// Spans of upkeep (base/upkeep.h). Such a span is held until it ends, and goes to the sinks only if it failed
// or took long. Private to this folder.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "otel/api/trace_sink.h"

namespace tensorcast::otel::internal {

inline constexpr absl::Duration kLongUpkeep = absl::Seconds(1);

// Copies what it needs of `start`, which has an upkeep context as its parent. The resulting span is a root
// with the trace id of that context.
std::unique_ptr<SpanRecord> HoldUpkeep(const SpanStart& start);

}  // namespace tensorcast::otel::internal
