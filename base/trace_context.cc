#include "base/trace_context.h"

#include <algorithm>
#include <span>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"

namespace tensorcast {
namespace {

// Offsets of the four fields, which all versions share: version "-" trace-id "-" parent-id "-" flags.
constexpr size_t kTraceIdOffset = 3;
constexpr size_t kSpanIdOffset = 36;
constexpr size_t kFlagsOffset = 53;
constexpr size_t kVersion00Length = 55;
// The longest tracestate that every participant has to pass on.
constexpr size_t kMaxTraceStateBytes = 512;
// Sampled, and (level 2 of the recommendation) a trace id that is random. Others have to be sent as zero.
constexpr uint8_t kKnownFlags = 0x03;
// Our member of the trace state in contexts that are unstarted. The first of the list, or all of it.
constexpr std::string_view kUnstarted = "tensorcast=unstarted";

bool IsZero(std::span<const uint8_t> id) {
  return std::ranges::all_of(id, [](uint8_t byte) { return byte == 0; });
}

// All zeros means "no trace", so that value is drawn again.
void FillNonZero(std::span<uint8_t> id) {
  do {
    FillRandom(id.data(), id.size());
  } while (IsZero(id));
}

std::string ToHex(std::span<const uint8_t> bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// Lower case only: the recommendation rejects upper case.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Reads 2 * bytes.size() digits at `offset`, which has to be in range.
bool ParseHex(std::string_view text, size_t offset, std::span<uint8_t> bytes) {
  for (uint8_t& byte : bytes) {
    const int high = HexDigit(text[offset++]);
    const int low = HexDigit(text[offset++]);
    if (high < 0 || low < 0) return false;
    byte = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

bool IsFramed(std::string_view text) {
  if (text.size() < kVersion00Length) return false;
  if (text[kTraceIdOffset - 1] != '-' || text[kSpanIdOffset - 1] != '-' || text[kFlagsOffset - 1] != '-') {
    return false;
  }
  uint8_t version[1];
  if (!ParseHex(text, 0, version) || version[0] == 0xff) return false;
  // Version 00 has exactly these four fields. A later version may have more, behind another dash.
  if (text.size() == kVersion00Length) return true;
  return version[0] != 0 && text[kVersion00Length] == '-';
}

// A tracestate that could not be sent on is dropped, which does not invalidate the traceparent beside it.
bool CanBePassedOn(std::string_view trace_state) {
  return trace_state.size() <= kMaxTraceStateBytes &&
         std::ranges::all_of(trace_state, [](char c) { return (c >= 0x20 && c <= 0x7e) || c == '\t'; });
}

constexpr char kTraceparent[] = "traceparent";
constexpr char kTracestate[] = "tracestate";

std::string_view ValueOf(const std::map<std::string, std::string>& carrier, std::string_view key) {
  // The map compares with regard to case, so each name is looked at. Carriers have few entries.
  for (const auto& [name, value] : carrier) {
    if (absl::EqualsIgnoreCase(name, key)) return value;
  }
  return {};
}

}  // namespace

bool TraceContext::IsValid() const { return !IsZero(trace_id) && !IsZero(span_id); }

bool TraceContext::IsUnstarted() const {
  if (!trace_state.starts_with(kUnstarted)) return false;
  return trace_state.size() == kUnstarted.size() || trace_state[kUnstarted.size()] == ',';
}

std::string TraceContext::ToTraceparent() const {
  if (!IsValid()) return "";
  const uint8_t known_flags[] = {static_cast<uint8_t>(flags & kKnownFlags)};
  return absl::StrCat("00-", TraceIdHex(), "-", SpanIdHex(), "-", ToHex(known_flags));
}

std::optional<TraceContext> TraceContext::FromTraceparent(std::string_view traceparent,
                                                          std::string_view trace_state) {
  if (!IsFramed(traceparent)) return std::nullopt;
  TraceContext context;
  uint8_t flags[1];
  if (!ParseHex(traceparent, kTraceIdOffset, context.trace_id) ||
      !ParseHex(traceparent, kSpanIdOffset, context.span_id) || !ParseHex(traceparent, kFlagsOffset, flags) ||
      !context.IsValid()) {
    return std::nullopt;
  }
  context.flags = flags[0] & kKnownFlags;
  if (CanBePassedOn(trace_state)) context.trace_state = trace_state;
  return context;
}

TraceContext TraceContext::NewRoot() {
  TraceContext context;
  FillNonZero(context.trace_id);
  FillNonZero(context.span_id);
  context.flags = kSampled;
  context.trace_state = kUnstarted;
  return context;
}

TraceContext TraceContext::NewChild() const {
  if (!IsValid()) return {};
  TraceContext child = *this;
  FillNonZero(child.span_id);
  return child;
}

std::string TraceContext::TraceIdHex() const { return ToHex(trace_id); }
std::string TraceContext::SpanIdHex() const { return ToHex(span_id); }

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

}  // namespace tensorcast
