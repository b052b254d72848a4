#include "otel/api/upkeep_record.h"

#include <optional>

#include "base/steady_time.h"
#include "otel/api/kept_span.h"

namespace tensorcast::otel::internal {
namespace {

class UpkeepRecord final : public KeptSpanRecord {
 public:
  explicit UpkeepRecord(const SpanStart& start) : KeptSpanRecord(start) {
    // A start that was told is of the wall clock, and so is the length then.
    if (start.time == SpanTime()) began_ = SteadyNow();
  }

  void End(SpanTime time) override {
    span_.end = OrNow(time);
    const absl::Duration took =
        began_.has_value() ? SteadyNow() - *began_ : absl::FromChrono(span_.end - span_.start);
    // Upkeep that took little time and went well is dropped.
    if (!span_.error.has_value() && took < kLongUpkeep) return;
    TraceContext context;  // from the sink that comes first
    for (size_t i = 0; i < kSinkKinds; ++i) {
      TraceSink* const sink = InstalledSink(static_cast<SinkKind>(i));
      if (sink == nullptr) continue;
      // Each sink gets the span as the root of its trace. The parent is the upkeep context, which no sink has
      // a span for.
      TraceContext root = TraceContext::NewRoot();
      root.trace_id = span_.parent.trace_id;
      span_.TellTo(*sink, root, context);
    }
  }

 private:
  std::optional<SteadyTime> began_;
};

}  // namespace

std::unique_ptr<SpanRecord> HoldUpkeep(const SpanStart& start) {
  return std::make_unique<UpkeepRecord>(start);
}

}  // namespace tensorcast::otel::internal
