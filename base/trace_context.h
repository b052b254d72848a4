// The identity of a span as it travels between processes: W3C Trace Context
// (https://www.w3.org/TR/trace-context/). A value.
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
  std::string trace_state;  // passed on unchanged

  static constexpr uint8_t kSampled = 0x01;

  // False for all-zero ids, which mean "no trace".
  bool IsValid() const;
  bool IsSampled() const { return (flags & kSampled) != 0; }
  // True if the trace has no span yet: the context is from NewRoot, or was derived from such a context with
  // telemetry off. The first span with this context becomes the root, keeps the trace id, and decides on
  // sampling. This mark travels in trace_state to other processes.
  bool IsUnstarted() const;

  // "00-<32 hex>-<16 hex>-<2 hex>", or "" when not valid.
  std::string ToTraceparent() const;

  // nullopt for a malformed text. Reads the first four fields of versions above 00, as W3C asks.
  static std::optional<TraceContext> FromTraceparent(std::string_view traceparent,
                                                     std::string_view trace_state = {});

  // A fresh trace: random ids, sampled, and unstarted.
  static TraceContext NewRoot();
  // A context of the same trace with a new random span id.
  TraceContext NewChild() const;

  std::string TraceIdHex() const;
  std::string SpanIdHex() const;

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// InjectTrace and ExtractTrace are for string maps. In gRPC calls, interceptors carry the trace.
//
// Writes "traceparent", and "tracestate" unless trace_state is empty. Removes both if `context` is not valid.
void InjectTrace(const TraceContext& context, std::map<std::string, std::string>& carrier);
// Reads what InjectTrace wrote. Returns an invalid context if it is missing or malformed. Keys are matched
// case-insensitively, as W3C asks.
TraceContext ExtractTrace(const std::map<std::string, std::string>& carrier);

}  // namespace tensorcast
