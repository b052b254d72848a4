#include "otel/api/propagation.h"

#include <string_view>

#include "absl/strings/match.h"

namespace tensorcast::otel {
namespace {

constexpr char kTraceparent[] = "traceparent";
constexpr char kTracestate[] = "tracestate";

std::string_view ValueOf(const std::map<std::string, std::string>& carrier, std::string_view key) {
  for (const auto& [name, value] : carrier) {
    if (absl::EqualsIgnoreCase(name, key)) return value;
  }
  return {};
}

}  // namespace

void InjectTrace(const TraceContext& context, std::map<std::string, std::string>& carrier) {
  carrier.erase(kTraceparent);
  carrier.erase(kTracestate);
  if (!context.IsValid()) return;
  carrier[kTraceparent] = context.ToTraceparent();
  if (!context.trace_state.empty()) carrier[kTracestate] = context.trace_state;
}

TraceContext ExtractTrace(const std::map<std::string, std::string>& carrier) {
  return TraceContext::FromTraceparent(ValueOf(carrier, kTraceparent), ValueOf(carrier, kTracestate))
      .value_or(TraceContext());
}

}  // namespace tensorcast::otel
