#include "base/upkeep.h"

#include <string_view>

namespace tensorcast {
namespace {

// Our member of the trace state. The first of the list, or all of it.
constexpr std::string_view kUpkeep = "tensorcast=upkeep";

}  // namespace

TraceContext NewUpkeepTrace() {
  TraceContext trace = TraceContext::NewRoot();
  trace.flags = 0;
  // In place of the mark of an unstarted trace, which would let the first span decide on sampling.
  trace.trace_state = kUpkeep;
  return trace;
}

bool IsUpkeep(const TraceContext& trace) {
  if (!trace.trace_state.starts_with(kUpkeep)) return false;
  return trace.trace_state.size() == kUpkeep.size() || trace.trace_state[kUpkeep.size()] == ',';
}

RequestContext UpkeepContext(absl::Duration timeout) {
  RequestContext context = RequestContext::Background(timeout);
  context.trace = NewUpkeepTrace();
  return context;
}

}  // namespace tensorcast
