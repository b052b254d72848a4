// The identity of a span as it travels between processes: W3C Trace Context
// (https://www.w3.org/TR/trace-context/). A plain value without an SDK, so that every layer can carry one.
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

  // False for all-zero ids, which W3C declares invalid: the context then means "no trace".
  bool IsValid() const;
  bool IsSampled() const { return (flags & kSampled) != 0; }
  // True if the trace has no span yet: the context is from NewRoot, or was derived from such a context with
  // telemetry off. The first span with this context becomes the root, keeps the trace id, and decides on
  // sampling. The mark is in trace_state, so it travels to other processes.
  bool IsUnstarted() const;

  // "00-<32 hex>-<16 hex>-<2 hex>", or "" when not valid.
  std::string ToTraceparent() const;

  // Returns nullopt for a malformed text. The first four fields of versions above 00 are read, as W3C asks.
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

// For messages that are string maps. gRPC calls do not need these two functions: their interceptors carry the
// trace.
//
// Writes "traceparent", and "tracestate" unless it is empty. Removes both if `context` is not valid.
void InjectTrace(const TraceContext& context, std::map<std::string, std::string>& carrier);
// Reads what InjectTrace wrote; an invalid context when it is missing or malformed. Keys are matched
// case-insensitively, as W3C asks.
TraceContext ExtractTrace(const std::map<std::string, std::string>& carrier);

}  // namespace tensorcast
