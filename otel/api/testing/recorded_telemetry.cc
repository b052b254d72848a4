#include "otel/api/testing/recorded_telemetry.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tensorcast::otel::testing {
namespace {

constexpr absl::Duration kHang = absl::Seconds(60);

StringMap TextsOf(std::span<const Attribute> attributes) {
  StringMap text;
  for (const Attribute& attribute : attributes) {
    text[std::string(attribute.key.name())] = TextOf(attribute.value);
  }
  return text;
}

using Series = std::pair<MetricId, std::vector<std::string>>;

struct Point {
  double sum = 0;
  uint64_t count = 0;
};

// What was recorded. Lives as long as the process, like the sinks that write to it.
struct State {
  absl::Mutex mutex;
  bool in_use ABSL_GUARDED_BY(mutex) = false;
  std::vector<RecordedSpan> spans ABSL_GUARDED_BY(mutex);
  std::map<Series, Point> points ABSL_GUARDED_BY(mutex);
};

State& state() {
  static auto* const state = new State;
  return *state;
}

class Record final : public SpanRecord {
 public:
  explicit Record(RecordedSpan span) : span_(std::move(span)) {}

  void SetAttribute(std::string_view key, const AttributeValue& value) override {
    span_.attributes[std::string(key)] = TextOf(value);
  }
  void AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime time) override {
    span_.events.push_back({std::string(name), TextsOf(attributes), time});
  }
  void AddLink(const SpanLink& link) override { span_.links.push_back(link.context); }
  void SetError(std::string_view type, std::string_view) override { span_.error = std::string(type); }
  void End(SpanTime) override {
    absl::MutexLock lock(&state().mutex);
    if (state().in_use) state().spans.push_back(std::move(span_));
  }

 private:
  RecordedSpan span_;
};

class Traces final : public TraceSink {
 public:
  std::unique_ptr<SpanRecord> Start(const SpanStart& start, TraceContext& context) override {
    const bool is_child = start.parent->IsValid() && !start.parent->IsUnstarted();
    if (!context.IsValid()) context = Reserve(*start.parent);
    RecordedSpan span{.name = std::string(start.name),
                      .kind = start.kind,
                      .context = context,
                      .parent = is_child ? *start.parent : TraceContext(),
                      .attributes = TextsOf(start.attributes)};
    for (const SpanLink& link : start.links) span.links.push_back(link.context);
    return std::make_unique<Record>(std::move(span));
  }
  TraceContext Reserve(const TraceContext& parent) override {
    TraceContext context = parent.IsValid() ? parent.NewChild() : TraceContext::NewRoot();
    // The mark of a trace without spans.
    if (!parent.IsValid() || parent.IsUnstarted()) context.trace_state.clear();
    return context;
  }
};

class Metrics final : public MetricSink {
 public:
  void Add(MetricId metric, int64_t value, LabelValues labels) override {
    Note(metric, static_cast<double>(value), labels);
  }
  void Record(MetricId metric, double value, LabelValues labels) override { Note(metric, value, labels); }

 private:
  static void Note(MetricId metric, double value, LabelValues labels) {
    absl::MutexLock lock(&state().mutex);
    if (!state().in_use) return;
    Point& point = state().points[{metric, {labels.begin(), labels.end()}}];
    point.sum += value;
    ++point.count;
  }
};

Point PointOf(MetricId metric, const std::vector<std::string>& labels)
    ABSL_SHARED_LOCKS_REQUIRED(state().mutex) {
  const auto found = state().points.find({metric, labels});
  return found == state().points.end() ? Point{} : found->second;
}

}  // namespace

std::string TextOf(const AttributeValue& value) {
  switch (value.type()) {
    case AttributeValue::Type::kBool:
      return value.as_bool() ? "true" : "false";
    case AttributeValue::Type::kInt:
      return absl::StrCat(value.as_int());
    case AttributeValue::Type::kDouble:
      return absl::StrCat(value.as_double());
    case AttributeValue::Type::kString:
      return std::string(value.as_string());
  }
  return "";
}

std::string RecordedSpan::attribute(const AttributeKey& key) const {
  const auto found = attributes.find(std::string(key.name()));
  return found == attributes.end() ? "" : found->second;
}

std::vector<RecordedEvent> RecordedSpan::EventsNamed(std::string_view event) const {
  std::vector<RecordedEvent> named;
  std::ranges::copy_if(events, std::back_inserter(named), [&](const auto& e) { return e.name == event; });
  return named;
}

RecordedTelemetry::RecordedTelemetry() {
  static auto* const traces = new Traces;
  static auto* const metrics = new Metrics;
  {
    absl::MutexLock lock(&state().mutex);
    CHECK(!state().in_use) << "telemetry is recorded already";
    state().in_use = true;
    state().spans.clear();
    state().points.clear();
  }
  InstallTraceSink(SinkKind::kTelemetry, traces);
  InstallMetricSink(metrics);
}

RecordedTelemetry::~RecordedTelemetry() {
  InstallTraceSink(SinkKind::kTelemetry, nullptr);
  InstallMetricSink(nullptr);
  absl::MutexLock lock(&state().mutex);
  state().in_use = false;
}

std::vector<RecordedSpan> RecordedTelemetry::spans() const {
  absl::MutexLock lock(&state().mutex);
  return state().spans;
}

std::vector<RecordedSpan> RecordedTelemetry::AwaitSpans(std::string_view name, size_t count) const {
  std::vector<RecordedSpan> found;
  const auto enough = [&] {
    state().mutex.AssertHeld();
    found.clear();
    std::ranges::copy_if(state().spans, std::back_inserter(found),
                         [&](const auto& span) { return span.name == name; });
    return found.size() >= count;
  };
  absl::MutexLock lock(&state().mutex);
  state().mutex.AwaitWithTimeout(absl::Condition(&enough), kHang);
  return found;
}

RecordedSpan RecordedTelemetry::AwaitSpan(std::string_view name, const SpanPredicate& like) const {
  RecordedSpan found;
  const auto there = [&] {
    state().mutex.AssertHeld();
    const auto it = std::ranges::find_if(state().spans, [&](const auto& span) {
      return span.name == name && (like == nullptr || like(span));
    });
    if (it == state().spans.end()) return false;
    found = *it;
    return true;
  };
  absl::MutexLock lock(&state().mutex);
  state().mutex.AwaitWithTimeout(absl::Condition(&there), kHang);
  return found;
}

double RecordedTelemetry::Sum(MetricId metric, const std::vector<std::string>& labels) const {
  absl::MutexLock lock(&state().mutex);
  return PointOf(metric, labels).sum;
}

uint64_t RecordedTelemetry::Count(MetricId metric, const std::vector<std::string>& labels) const {
  absl::MutexLock lock(&state().mutex);
  return PointOf(metric, labels).count;
}

bool RecordedTelemetry::AwaitSum(MetricId metric, const std::vector<std::string>& labels, double min) const {
  const auto reached = [&] {
    state().mutex.AssertHeld();
    return PointOf(metric, labels).sum >= min;
  };
  absl::MutexLock lock(&state().mutex);
  return state().mutex.AwaitWithTimeout(absl::Condition(&reached), kHang);
}

double ReadGauge(MetricId metric, const std::vector<std::string>& labels) {
  class Reader final : public GaugeObserver {
   public:
    explicit Reader(const std::vector<std::string>& labels) : labels_(labels) {}
    void Report(double value, LabelValues labels) override {
      if (std::ranges::equal(labels, labels_)) sum += value;
    }
    double sum = 0;

   private:
    const std::vector<std::string>& labels_;
  };
  Reader reader(labels);
  CollectGauge(metric, reader);
  return reader.sum;
}

}  // namespace tensorcast::otel::testing
