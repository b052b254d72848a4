// traceparent and, behind a newline, tracestate.
#include "absl/log/check.h"
#include "base/trace_context.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  const size_t newline = input.find('\n');
  const std::string_view traceparent = input.substr(0, newline);
  const std::string_view state = newline == std::string_view::npos ? "" : input.substr(newline + 1);
  const std::optional<TraceContext> context = TraceContext::FromTraceparent(traceparent, state);
  const TraceContext extracted =
      ExtractTrace({{"TraceParent", std::string(traceparent)}, {"tracestate", std::string(state)}});
  CHECK_EQ(extracted.IsValid(), context.has_value());
  if (!context.has_value()) return;
  CHECK(context->IsValid());
  CHECK(context->trace_state.empty() || context->trace_state == state);
  const auto again = TraceContext::FromTraceparent(context->ToTraceparent(), context->trace_state);
  CHECK(again.has_value() && *again == *context) << traceparent;
}

std::vector<std::string> Seeds() {
  return {"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
          "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00\na=1,b=2",
          "cc-0123456789abcdef0123456789abcdef-0123456789abcdef-03-later\ntensorcast=unstarted",
          "00-00000000000000000000000000000000-0000000000000000-00",
          "ff-0123456789abcdef0123456789abcdef-0123456789abcdef-01"};
}

}  // namespace tensorcast::fuzz
