#include "otel/api/upkeep_record.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/steady_time.h"

namespace tensorcast::otel::internal {
namespace {

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

 private:
  std::string key_;
  AttributeValue value_;  // of a text only the type counts: what it borrowed may be gone
  std::string text_;
};

using KeptAttributes = std::vector<KeptAttribute>;

KeptAttributes Keep(std::span<const Attribute> attributes) {
  KeptAttributes kept;
  for (const Attribute& attribute : attributes) kept.emplace_back(attribute.key.name(), attribute.value);
  return kept;
}

SpanTime OrNow(SpanTime time) { return time == SpanTime() ? std::chrono::system_clock::now() : time; }

class UpkeepRecord final : public SpanRecord {
 public:
  explicit UpkeepRecord(const SpanStart& start)
      : name_(start.name),
        kind_(start.kind),
        trace_(*start.parent),
        start_(OrNow(start.time)),
        attributes_(Keep(start.attributes)) {
    for (const SpanLink& link : start.links) links_.push_back(link.context);
    // A start that was told is of the wall clock, and so is the length then.
    if (start.time == SpanTime()) began_ = SteadyNow();
  }

  void SetAttribute(std::string_view key, const AttributeValue& value) override {
    attributes_.emplace_back(key, value);
  }
  void AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime time) override {
    events_.push_back({std::string(name), Keep(attributes), OrNow(time)});
  }
  void AddLink(const SpanLink& link) override { links_.push_back(link.context); }
  void SetError(std::string_view type, std::string_view message) override {
    error_ = {std::string(type), std::string(message)};
  }

  void End(SpanTime time) override {
    const SpanTime end = OrNow(time);
    const absl::Duration took = began_.has_value() ? SteadyNow() - *began_ : absl::FromChrono(end - start_);
    if (!error_.has_value() && took < kLongUpkeep) return;
    for (size_t i = 0; i < kSinkKinds; ++i) {
      TraceSink* const sink = InstalledSink(static_cast<SinkKind>(i));
      if (sink != nullptr) Tell(*sink, end);
    }
  }

 private:
  struct Event {
    std::string name;
    KeptAttributes attributes;
    SpanTime time;
  };

  void Tell(TraceSink& sink, SpanTime end) {
    TraceContext root = TraceContext::NewRoot();
    root.trace_id = trace_.trace_id;
    const std::unique_ptr<SpanRecord> record =
        sink.Start({.name = name_, .kind = kind_, .parent = &root, .time = start_}, context_);
    if (record == nullptr) return;  // not sampled
    for (const KeptAttribute& attribute : attributes_) {
      record->SetAttribute(attribute.key(), attribute.value());
    }
    for (const Event& event : events_) {
      std::vector<Attribute> attributes;
      for (const KeptAttribute& attribute : event.attributes) {
        attributes.push_back({AttributeKey(attribute.key()), attribute.value()});
      }
      record->AddEvent(event.name, attributes, event.time);
    }
    for (const TraceContext& link : links_) record->AddLink({.context = link});
    if (error_.has_value()) record->SetError(error_->first, error_->second);
    record->End(end);
  }

  const std::string name_;
  const SpanKind kind_;
  const TraceContext trace_;
  const SpanTime start_;
  std::optional<SteadyTime> began_;
  KeptAttributes attributes_;
  std::vector<Event> events_;
  std::vector<TraceContext> links_;
  std::optional<std::pair<std::string, std::string>> error_;
  TraceContext context_;  // of the span, from the sink that comes first
};

}  // namespace

std::unique_ptr<SpanRecord> HoldUpkeep(const SpanStart& start) {
  return std::make_unique<UpkeepRecord>(start);
}

}  // namespace tensorcast::otel::internal
