#include "tools/workshop/bench/dead_collector.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "otel/api/span.h"
#include "otel/sdk/telemetry.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/collector.h"

namespace tensorcast::bench {
namespace {

constexpr int kQueue = 2048;
constexpr int kBatch = 512;
// What fills the queues, starts the threads and lets the allocator have what it wants.
constexpr int kWarmup = 50'000;

void MakeSpans(int count) {
  for (int i = 0; i < count; ++i) {
    otel::Span span("Bench/Span", TraceContext(),
                    {{otel::attr::kLane, "tcp"}, {otel::attr::kSizeBytes, uint64_t{1} << 30}});
  }
}

absl::StatusOr<double> ResidentMib() {
  std::ifstream in("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  if (!(in >> total >> resident)) return ErrnoStatus(errno, "read", "/proc/self/statm");
  return static_cast<double>(resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))) /
         static_cast<double>(kMiB);
}

v1::OtelConfig Config(const std::string& endpoint) {
  v1::OtelConfig config;
  config.set_enabled(true);
  config.set_endpoint(endpoint);
  config.set_logs(false);  // the complaints about the collector would be measured too
  config.set_queue_size(kQueue);
  config.set_batch_size(kBatch);
  config.set_shutdown_timeout("200ms");
  return config;
}

// Of one span in the queue: allocated bytes over the first spans, of which none is exported.
absl::StatusOr<double> BytesPerSpan(const std::string& hanging) {
  TC_ASSIGN_OR_RETURN(const auto telemetry, otel::InitTelemetry(Config(hanging), "bench"));
  MakeSpans(kBatch / 4);  // too few for a batch: nothing is on its way yet
  const size_t before = mallinfo2().uordblks;
  MakeSpans(kBatch / 2);
  return static_cast<double>(mallinfo2().uordblks - before) / (kBatch / 2);
}

absl::StatusOr<Row> MeasureGrowth(const std::string& how, const std::string& endpoint, int spans,
                                  double span_bytes) {
  Say(absl::StrCat("telemetry: ", spans, " spans, collector ", how));
  TC_ASSIGN_OR_RETURN(const auto telemetry, otel::InitTelemetry(Config(endpoint), "bench"));
  MakeSpans(kWarmup);
  TC_ASSIGN_OR_RETURN(const double before, ResidentMib());
  MakeSpans(spans);
  TC_ASSIGN_OR_RETURN(const double after, ResidentMib());
  const auto& counters = telemetry->counters().of(otel::sdk::Signal::kTraces);
  const uint64_t dropped = counters.dropped(), waiting = static_cast<uint64_t>(counters.pending);
  if (dropped + waiting + counters.exported < static_cast<uint64_t>(spans)) {
    return absl::InternalError(absl::StrCat("of ", spans, " spans only ", dropped,
                                            " are counted as dropped and ", waiting, " as waiting"));
  }
  Row row{.bench = "telemetry",
          .lane = how,
          .metric = absl::StrCat("growth over ", spans, " spans"),
          .value = Summarize({after - before}),
          .unit = "MiB"};
  row.reference = Reference{.name = "what the queues hold",
                            .value = Summarize({span_bytes * (kQueue + kBatch) / static_cast<double>(kMiB)})};
  row.note = absl::StrFormat(
      "a queue of %d spans and a batch of %d, %.0f bytes each; %d dropped and counted, %d wait", kQueue,
      kBatch, span_bytes, dropped, waiting);
  return row;
}

}  // namespace

absl::StatusOr<Rows> MeasureDeadCollector(const BenchOptions& options) {
  const int spans = options.smoke ? 20'000 : 1'000'000;
  TC_ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::Create("tensorcast-bench"));
  TC_ASSIGN_OR_RETURN(const auto hanging, Collector::Start(options.own_binary, directory->path()));
  TC_RETURN_IF_ERROR(hanging->Freeze());
  TC_ASSIGN_OR_RETURN(const double span_bytes, BytesPerSpan(hanging->endpoint()));
  Rows rows;
  TC_ASSIGN_OR_RETURN(rows.emplace_back(), MeasureGrowth("hangs", hanging->endpoint(), spans, span_bytes));
  // Nothing listens on the discard port.
  TC_ASSIGN_OR_RETURN(rows.emplace_back(), MeasureGrowth("absent", "http://127.0.0.1:9", spans, span_bytes));
  return rows;
}

}  // namespace tensorcast::bench
