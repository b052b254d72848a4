#include "otel/api/kept_span.h"

#include <memory>

namespace tensorcast::otel {
namespace {

KeptAttributes Keep(std::span<const Attribute> attributes) {
  KeptAttributes kept;
  kept.reserve(attributes.size());
  for (const Attribute& attribute : attributes) kept.emplace_back(attribute.key.name(), attribute.value);
  return kept;
}

// Views of `kept`, which must outlive them.
std::vector<Attribute> Borrow(const KeptAttributes& kept) {
  std::vector<Attribute> attributes;
  attributes.reserve(kept.size());
  for (const KeptAttribute& attribute : kept) {
    attributes.push_back({AttributeKey(attribute.key()), attribute.value()});
  }
  return attributes;
}

size_t BytesOf(const KeptAttributes& attributes) {
  size_t bytes = 0;
  for (const KeptAttribute& attribute : attributes) bytes += attribute.bytes();
  return bytes;
}

}  // namespace

// About what the span takes in memory: the recorder's ring is bounded in bytes.
size_t KeptSpan::bytes() const {
  size_t bytes = sizeof(*this) + name.size() + context.trace_state.size() + parent.trace_state.size() +
                 BytesOf(attributes) + links.size() * sizeof(TraceContext);
  for (const KeptEvent& event : events) {
    bytes += sizeof(event) + event.name.size() + BytesOf(event.attributes);
  }
  if (error.has_value()) bytes += error->first.size() + error->second.size();
  return bytes;
}

// Makes the span once more in `sink`, as if it had been made there with these times.
bool KeptSpan::TellTo(TraceSink& sink, const TraceContext& parent_span, TraceContext& context_in_sink) const {
  // Null: the sink does not record such a span.
  const std::unique_ptr<SpanRecord> record =
      sink.Start({.name = name, .kind = kind, .parent = &parent_span, .time = start}, context_in_sink);
  if (record == nullptr) return false;
  for (const KeptAttribute& attribute : attributes) record->SetAttribute(attribute.key(), attribute.value());
  for (const KeptEvent& event : events) record->AddEvent(event.name, Borrow(event.attributes), event.time);
  for (const TraceContext& link : links) record->AddLink({.context = link});
  if (error.has_value()) record->SetError(error->first, error->second);
  record->End(end);
  return true;
}

KeptSpanRecord::KeptSpanRecord(const SpanStart& start) {
  span_.name = std::string(start.name);
  span_.kind = start.kind;
  span_.parent = *start.parent;
  // Texts are copied: those of the start live for this call alone.
  span_.start = OrNow(start.time);
  span_.attributes = Keep(start.attributes);
  for (const SpanLink& link : start.links) span_.links.push_back(link.context);
}

void KeptSpanRecord::SetAttribute(std::string_view key, const AttributeValue& value) {
  span_.attributes.emplace_back(key, value);
}

void KeptSpanRecord::AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime time) {
  span_.events.push_back({std::string(name), Keep(attributes), OrNow(time)});
}

void KeptSpanRecord::AddLink(const SpanLink& link) { span_.links.push_back(link.context); }

void KeptSpanRecord::SetError(std::string_view type, std::string_view message) {
  span_.error = {std::string(type), std::string(message)};
}

}  // namespace tensorcast::otel
