// The identity of a span as it travels between processes: W3C Trace Context
// (https://www.w3.org/TR/trace-context/). A plain value with no SDK behind it, so that every layer can carry
// one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tensorcast {

struct TraceContext {
  std::array<uint8_t, 16> trace_id{};
  std::array<uint8_t, 8> span_id{};
  uint8_t flags = 0;        // bit 0: sampled
  std::string trace_state;  // passed on as it came

  static constexpr uint8_t kSampled = 0x01;

  // False for the all-zero ids, which W3C declares invalid; such a context is "no trace".
  bool IsValid() const;
  bool IsSampled() const { return (flags & kSampled) != 0; }
  // True for a context that names a trace of which no span exists yet (NewRoot, and what was made from it
  // with telemetry off): the first span under it becomes the root, with this trace id, and decides on
  // sampling. Kept in trace_state, so that it travels.
  bool IsUnstarted() const;

  // "00-<32 hex>-<16 hex>-<2 hex>", or "" when not valid.
  std::string ToTraceparent() const;

  // nullopt for anything malformed; versions above 00 are read by their first four fields, as W3C asks.
  static std::optional<TraceContext> FromTraceparent(std::string_view traceparent,
                                                     std::string_view trace_state = {});

  // A fresh trace: random ids, sampled, and unstarted.
  static TraceContext NewRoot();
  // The same trace, a new random span id.
  TraceContext NewChild() const;

  std::string TraceIdHex() const;
  std::string SpanIdHex() const;

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// Carrying a trace by hand, for messages that are string maps; gRPC calls need none of this, since their
// interceptors do it.
//
// Writes "traceparent" (and "tracestate" if there is any); removes both when `context` is not valid.
void InjectTrace(const TraceContext& context, std::map<std::string, std::string>& carrier);
// What InjectTrace wrote, or an invalid context when there is nothing or it is malformed. Keys are matched
// without regard to case, as W3C asks.
TraceContext ExtractTrace(const std::map<std::string, std::string>& carrier);

}  // namespace tensorcast
