// Protobuf decodes the bytes and must find what the span was given.
#include "otel/sdk/otlp_encoders.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "opentelemetry/common/key_value_iterable_view.h"
#include "opentelemetry/trace/span_context.h"
#include "opentelemetry/trace/trace_state.h"
#include "otel/sdk/otlp_bytes.h"
#include "otlp_subset.pb.h"

namespace tensorcast::otel::sdk::otlp_encoders_test {
namespace {

namespace api = opentelemetry;
using api::common::AttributeValue;
using api::common::SystemTimestamp;
using Attributes = std::vector<std::pair<std::string, AttributeValue>>;
using View = api::common::KeyValueIterableView<Attributes>;

api::trace::SpanContext Context(uint8_t seed, const std::string& state = "") {
  uint8_t trace_id[16], span_id[8];
  std::fill(std::begin(trace_id), std::end(trace_id), seed);
  std::fill(std::begin(span_id), std::end(span_id), static_cast<uint8_t>(seed + 1));
  return {api::trace::TraceId(trace_id), api::trace::SpanId(span_id), api::trace::TraceFlags(1), false,
          state.empty() ? api::trace::TraceState::GetDefault() : api::trace::TraceState::FromHeader(state)};
}

otlp::Span Read(const SpanEncoder& span) {
  otlp::Span read;
  EXPECT_TRUE(read.ParseFromArray(span.bytes().data(), static_cast<int>(span.bytes().size())));
  return read;
}

template <class KeyValues>
std::map<std::string, otlp::Value> ByKey(const KeyValues& attributes) {
  std::map<std::string, otlp::Value> map;
  for (const auto& attribute : attributes) map[attribute.key()] = attribute.value();
  return map;
}

TEST(SpanEncoder, EncodedSpan_HasIdentityNameKindAndTimes) {
  SpanEncoder span;
  span.SetName("first");
  span.SetIdentity(Context(3, "vendor=value"), Context(7).span_id());
  span.SetTraceFlags(api::trace::TraceFlags(1));
  span.SetSpanKind(api::trace::SpanKind::kServer);
  span.SetStartTime(SystemTimestamp(std::chrono::nanoseconds(1'700'000'000'123'456'789)));
  span.SetDuration(std::chrono::milliseconds(7));
  span.SetName("StoreDaemon/OpenPull");
  const otlp::Span read = Read(span);
  EXPECT_EQ(read.trace_id(), std::string(16, '\3'));
  EXPECT_EQ(read.span_id(), std::string(8, '\4'));
  EXPECT_EQ(read.parent_span_id(), std::string(8, '\10'));
  EXPECT_EQ(read.trace_state(), "vendor=value");
  EXPECT_EQ(read.name(), "StoreDaemon/OpenPull") << "of several the last counts";
  EXPECT_EQ(read.kind(), 2);
  EXPECT_EQ(read.start_time_unix_nano(), 1'700'000'000'123'456'789u);
  EXPECT_EQ(read.end_time_unix_nano(), 1'700'000'000'130'456'789u);
}

TEST(SpanEncoder, EncodedRootSpan_HasNoParent) {
  SpanEncoder span;
  span.SetIdentity(Context(1), api::trace::SpanId());
  EXPECT_EQ(Read(span).parent_span_id(), "");
  EXPECT_EQ(Read(span).trace_state(), "");
}

TEST(SpanEncoder, EncodedSpan_HasAttributesOfEveryType) {
  const std::string long_text(40'000, 'x');
  SpanEncoder span;
  for (const auto& [key, value] : Attributes{{"text", "ucx"},
                                             {"empty", ""},
                                             {"long", api::nostd::string_view(long_text)},
                                             {"yes", true},
                                             {"no", false},
                                             {"int", int64_t{42}},
                                             {"min", std::numeric_limits<int64_t>::min()},
                                             {"int32", int32_t{-5}},
                                             {"uint32", uint32_t{5}},
                                             {"double", 0.25}}) {
    span.SetAttribute(key, value);
  }
  auto read = ByKey(Read(span).attributes());
  ASSERT_EQ(read.size(), 10u);
  EXPECT_EQ(read["text"].text(), "ucx");
  EXPECT_TRUE(read["empty"].has_text());
  EXPECT_EQ(read["empty"].text(), "");
  EXPECT_EQ(read["long"].text(), long_text);
  EXPECT_TRUE(read["yes"].flag());
  EXPECT_TRUE(read["no"].has_flag());
  EXPECT_FALSE(read["no"].flag());
  EXPECT_EQ(read["int"].integer(), 42);
  EXPECT_EQ(read["min"].integer(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(read["int32"].integer(), -5);
  EXPECT_EQ(read["uint32"].integer(), 5);
  EXPECT_EQ(read["double"].number(), 0.25);
}

TEST(SpanEncoder, EncodedSpan_HasEventsAndLinksWithAttributes) {
  SpanEncoder span;
  const Attributes details = {{"reason", "source_died"}, {"attempt", int64_t{2}}};
  span.AddEvent("fallback", SystemTimestamp(std::chrono::nanoseconds(5)), View(details));
  span.AddLink(Context(9, "a=b"), View(details));
  const otlp::Span read = Read(span);
  ASSERT_EQ(read.events_size(), 1);
  EXPECT_EQ(read.events(0).name(), "fallback");
  EXPECT_EQ(read.events(0).time_unix_nano(), 5u);
  EXPECT_EQ(ByKey(read.events(0).attributes())["reason"].text(), "source_died");
  ASSERT_EQ(read.links_size(), 1);
  EXPECT_EQ(read.links(0).trace_id(), std::string(16, '\11'));
  EXPECT_EQ(read.links(0).span_id(), std::string(8, '\12'));
  EXPECT_EQ(ByKey(read.links(0).attributes())["attempt"].integer(), 2);
}

TEST(SpanEncoder, EncodedStatus_HasMessageOnlyForErrors) {
  SpanEncoder failed, well;
  failed.SetStatus(api::trace::StatusCode::kError, "the peer went away");
  well.SetStatus(api::trace::StatusCode::kOk, "not to be said");
  EXPECT_EQ(Read(failed).status().code(), 2);
  EXPECT_EQ(Read(failed).status().message(), "the peer went away");
  EXPECT_EQ(Read(well).status().code(), 1);
  EXPECT_EQ(Read(well).status().message(), "");
}

TEST(OtlpWire, WireSizes_EqualWrittenBytes) {
  for (int bits = 0; bits < 64; ++bits) {
    for (const uint64_t value : {uint64_t{1} << bits, (uint64_t{1} << bits) - 1}) {
      std::string out;
      protobuf::AppendVarint(out, value);
      EXPECT_EQ(out.size(), protobuf::VarintSize(value)) << value;
    }
  }
  for (const size_t size : {0, 1, 127, 128, 16'383, 16'384, 300'000}) {
    std::string out;
    protobuf::AppendBytes(out, 1, std::string(size, 'x'));
    EXPECT_EQ(out.size(), protobuf::FieldSize(size));
  }
}

}  // namespace
}  // namespace tensorcast::otel::sdk::otlp_encoders_test
