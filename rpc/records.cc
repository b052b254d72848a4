#include "rpc/records.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "proto/records.grpc.pb.h"
#include "rpc/handlers.h"

namespace tensorcast::rpc {
namespace {

// Of all traces; an answer stays within kMaxMessageBytes.
constexpr size_t kMaxSliceBytes = size_t{4} << 20;

using otel::AttributeValue;
using otel::SpanTime;

uint64_t Nanoseconds(SpanTime time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}
SpanTime ToTime(uint64_t nanoseconds) {
  return SpanTime(std::chrono::duration_cast<SpanTime::duration>(
      std::chrono::nanoseconds(static_cast<int64_t>(nanoseconds))));
}

// Not valid where the text is not a traceparent.
TraceContext ToContext(std::string_view text) {
  return TraceContext::FromTraceparent(text).value_or(TraceContext());
}

// proto3 takes valid UTF-8 only, and attributes may have text from outside.
std::string Utf8(std::string_view text) {
  std::string storage;
  return std::string(ValidUtf8(text, storage));
}

template <class Attributes>
void AddAttributes(const otel::KeptAttributes& kept, Attributes* attributes) {
  for (const otel::KeptAttribute& attribute : kept) {
    v1::RecordedAttribute& added = *attributes->Add();
    added.set_key(Utf8(attribute.key()));
    const AttributeValue value = attribute.value();
    switch (value.type()) {
      case AttributeValue::Type::kBool:
        added.set_flag(value.as_bool());
        break;
      case AttributeValue::Type::kInt:
        added.set_number(value.as_int());
        break;
      case AttributeValue::Type::kDouble:
        added.set_real(value.as_double());
        break;
      case AttributeValue::Type::kString:
        added.set_text(Utf8(value.as_string()));
        break;
    }
  }
}

template <class Attributes>
otel::KeptAttributes ReadAttributes(const Attributes& attributes) {
  otel::KeptAttributes kept;
  for (const v1::RecordedAttribute& attribute : attributes) {
    switch (attribute.value_case()) {
      case v1::RecordedAttribute::kFlag:
        kept.emplace_back(attribute.key(), attribute.flag());
        break;
      case v1::RecordedAttribute::kNumber:
        kept.emplace_back(attribute.key(), attribute.number());
        break;
      case v1::RecordedAttribute::kReal:
        kept.emplace_back(attribute.key(), attribute.real());
        break;
      case v1::RecordedAttribute::kText:
        kept.emplace_back(attribute.key(), attribute.text());
        break;
      case v1::RecordedAttribute::VALUE_NOT_SET:
        break;
    }
  }
  return kept;
}

// Contexts are written as in the metadata of calls.
void FillSpan(const otel::KeptSpan& span, v1::RecordedSpan* message) {
  message->set_name(Utf8(span.name));
  message->set_kind(static_cast<uint32_t>(span.kind));
  message->set_context(span.context.ToTraceparent());
  message->set_parent(span.parent.ToTraceparent());
  message->set_start_ns(Nanoseconds(span.start));
  message->set_end_ns(Nanoseconds(span.end));
  AddAttributes(span.attributes, message->mutable_attributes());
  for (const otel::KeptEvent& event : span.events) {
    v1::RecordedEvent& added = *message->add_events();
    added.set_name(Utf8(event.name));
    AddAttributes(event.attributes, added.mutable_attributes());
    added.set_time_ns(Nanoseconds(event.time));
  }
  for (const TraceContext& link : span.links) message->add_links(link.ToTraceparent());
  if (span.error.has_value()) {
    message->set_error_type(Utf8(span.error->first));
    message->set_error_message(Utf8(span.error->second));
  }
  message->set_exported(span.exported);
}

otel::KeptSpan ReadSpan(const v1::RecordedSpan& message, const TraceContext& context) {
  otel::KeptSpan span;
  span.context = context;
  span.parent = ToContext(message.parent());
  span.name = message.name();
  // A kind that a newer version sent becomes the most general one.
  span.kind = message.kind() <= static_cast<uint32_t>(otel::SpanKind::kConsumer)
                  ? static_cast<otel::SpanKind>(message.kind())
                  : otel::SpanKind::kInternal;
  span.start = ToTime(message.start_ns());
  span.end = ToTime(message.end_ns());
  span.attributes = ReadAttributes(message.attributes());
  for (const v1::RecordedEvent& event : message.events()) {
    span.events.push_back({event.name(), ReadAttributes(event.attributes()), ToTime(event.time_ns())});
  }
  for (const std::string& link : message.links()) span.links.push_back(ToContext(link));
  if (!message.error_type().empty()) span.error = {message.error_type(), message.error_message()};
  span.exported = message.exported();
  return span;
}

void FillLine(const otel::KeptLine& line, v1::RecordedLine* message) {
  message->set_severity(static_cast<uint32_t>(line.severity));
  message->set_time_ns(static_cast<uint64_t>(absl::ToUnixNanos(line.time)));
  message->set_message(Utf8(line.message));
  message->set_file(Utf8(line.file));
  message->set_line(static_cast<uint32_t>(line.line));
  message->set_context(line.trace.ToTraceparent());
}

otel::KeptLine ReadLine(const v1::RecordedLine& message) {
  otel::KeptLine line;
  // Another process wrote the severity, so it is kept within what LogSeverity has.
  line.severity = static_cast<absl::LogSeverity>(std::min<uint32_t>(message.severity(), 3));
  line.time = absl::FromUnixNanos(static_cast<int64_t>(message.time_ns()));
  line.message = message.message();
  line.file = message.file();
  line.line = static_cast<int>(message.line());
  line.trace = ToContext(message.context());
  return line;
}

// Without a recorder the message stays empty, and `recording` in it false.
v1::RecordedSlice ReadSlice(const std::optional<otel::TraceId>& trace, size_t max_bytes) {
  const std::optional<otel::RecordedSlice> slice = otel::ReadRecorder(trace, max_bytes);
  return slice.has_value() ? ToProto(*slice) : v1::RecordedSlice();
}

// What this process's flight recorder has, for exports of traces and `tensorcast debug`.
class RecordsService final : public v1::Records::CallbackService {
 public:
  RecordsService(ProcessFacts facts, TaskRunner* runner) : facts_(std::move(facts)), runner_(*runner) {}

  grpc::ServerUnaryReactor* ReadTrace(grpc::CallbackServerContext* call, const v1::ReadTraceRequest* request,
                                      v1::RecordedSlice* response) override {
    return HandleUnary(call, runner_, [request, response](const RequestContext&) -> absl::Status {
      // The id is read as a traceparent, so that its parser checks it.
      const TraceContext named = ToContext(absl::StrCat("00-", request->trace_id(), "-0000000000000001-00"));
      if (!named.IsValid()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "read trace ", QuoteName(request->trace_id()),
            ": the text is not a trace id; give 32 hexadecimal digits in lower case, not all zero"));
      }
      *response = ReadSlice(named.trace_id, kMaxTraceBytes);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ReadAll(grpc::CallbackServerContext* call, const v1::ReadAllRequest*,
                                    v1::ProcessRecords* response) override {
    return HandleUnary(call, runner_, [this, response](const RequestContext&) {
      response->set_role(facts_.role);
      response->set_version(facts_.version);
      response->set_configuration(facts_.configuration);
      *response->mutable_slice() = ReadSlice(std::nullopt, kMaxSliceBytes);
      return absl::OkStatus();
    });
  }

 private:
  const ProcessFacts facts_;
  TaskRunner& runner_;
};

}  // namespace

v1::RecordedSlice ToProto(const otel::RecordedSlice& slice) {
  v1::RecordedSlice message;
  message.set_recording(true);
  for (const otel::KeptSpan& span : slice.spans) FillSpan(span, message.add_spans());
  for (const otel::KeptLine& line : slice.lines) FillLine(line, message.add_lines());
  message.set_left_out(slice.left_out);
  return message;
}

otel::RecordedSlice FromProto(const v1::RecordedSlice& message) {
  otel::RecordedSlice slice;
  for (const v1::RecordedSpan& span : message.spans()) {
    // Without a valid context nothing says where in its trace a span belongs.
    const TraceContext context = ToContext(span.context());
    if (context.IsValid()) slice.spans.push_back(ReadSpan(span, context));
  }
  for (const v1::RecordedLine& line : message.lines()) slice.lines.push_back(ReadLine(line));
  slice.left_out = message.left_out();
  return slice;
}

std::unique_ptr<grpc::Service> MakeRecordsService(ProcessFacts facts, TaskRunner* runner) {
  return std::make_unique<RecordsService>(std::move(facts), runner);
}

}  // namespace tensorcast::rpc
