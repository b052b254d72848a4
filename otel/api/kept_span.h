// A span that owns its values, for sinks that decide later where the span goes: upkeep (upkeep_record.h) and
// the flight recorder (flight_recorder.h). Values, each used by one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "otel/api/trace_sink.h"

namespace tensorcast::otel {

// An attribute that owns its key and its text.
class KeptAttribute {
 public:
  KeptAttribute(std::string_view key, const AttributeValue& value) : key_(key), value_(value) {
    if (value.type() == AttributeValue::Type::kString) text_ = std::string(value.as_string());
  }
  const std::string& key() const { return key_; }
  AttributeValue value() const {
    return value_.type() == AttributeValue::Type::kString ? AttributeValue(text_) : value_;
  }
  size_t bytes() const { return sizeof(*this) + key_.size() + text_.size(); }

 private:
  std::string key_;
  AttributeValue value_;  // for a text only its type is used: the borrowed text may be gone
  std::string text_;
};

using KeptAttributes = std::vector<KeptAttribute>;

struct KeptEvent {
  std::string name;
  KeptAttributes attributes;
  SpanTime time;
};

struct KeptSpan {
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  TraceContext context;
  TraceContext parent;  // invalid: a root
  SpanTime start;
  SpanTime end;
  KeptAttributes attributes;
  std::vector<KeptEvent> events;
  std::vector<TraceContext> links;
  std::optional<std::pair<std::string, std::string>> error;  // its type and its message
  bool exported = false;                                     // telemetry has it because its trace is sampled

  // The approximate memory of the span.
  size_t bytes() const;
  // Starts and ends a span in the sink now, with the recorded times and content of this span. `parent` is as
  // in SpanStart, `context` as in TraceSink::Start. False if the sink does not record the span.
  bool TellTo(TraceSink& sink, const TraceContext& parent, TraceContext& context) const;
};

// Fills a KeptSpan; subclasses implement End.
class KeptSpanRecord : public SpanRecord {
 public:
  explicit KeptSpanRecord(const SpanStart& start);
  void SetAttribute(std::string_view key, const AttributeValue& value) override;
  void AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime time) override;
  void AddLink(const SpanLink& link) override;
  void SetError(std::string_view type, std::string_view message) override;

 protected:
  KeptSpan span_;
};

}  // namespace tensorcast::otel
