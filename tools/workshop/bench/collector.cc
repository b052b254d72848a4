#include "tools/workshop/bench/collector.h"

#include <signal.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/sdk/receiver/otlp_receiver.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/child_server.h"

namespace tensorcast::bench {
namespace {

using otel::ReceivedMetric;

constexpr absl::Duration kCollectorTimeout = absl::Seconds(20);
constexpr absl::Duration kStopGrace = absl::Seconds(10);

double SumOfSpans(const std::vector<ReceivedMetric>& metrics, std::string_view name) {
  double sum = 0;
  for (const ReceivedMetric& metric : metrics) {
    const auto signal = metric.labels.find("signal");
    if (metric.name == name && signal != metric.labels.end() && signal->second == "traces") {
      sum += metric.value;
    }
  }
  return sum;
}

}  // namespace

absl::Status ServeCollector(int ready_fd) {
  TC_ASSIGN_OR_RETURN(const auto receiver,
                      otel::OtlpReceiver::Start(otel::ReceivedTelemetry::Keep::kMetrics));
  TC_RETURN_IF_ERROR(AnnounceAndAwaitSignal(ready_fd, receiver->endpoint()));
  const std::vector<ReceivedMetric> metrics = receiver->metrics();
  const nlohmann::json tally = {{"exported", SumOfSpans(metrics, "tc_telemetry_exported_total")},
                                {"dropped", SumOfSpans(metrics, "tc_telemetry_dropped_total")}};
  std::printf("%s\n", tally.dump().c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Collector>> Collector::Start(const std::string& binary,
                                                            const std::string& directory) {
  TC_ASSIGN_OR_RETURN(auto process, Process::Start({.argv = {binary, "bench", "collector"},
                                                    .log_path = directory + "/collector-log",
                                                    .ready_pipe = true}));
  TC_ASSIGN_OR_RETURN(std::string endpoint, process->WaitReady(SteadyNow() + kCollectorTimeout));
  return std::unique_ptr<Collector>(new Collector(std::move(process), std::move(endpoint)));
}

absl::Status Collector::Freeze() { return process_->Signal(SIGSTOP); }

absl::StatusOr<CollectorTally> Collector::Stop() {
  TC_ASSIGN_OR_RETURN(const int code, process_->Stop(kStopGrace));
  const std::string said = FileTail(process_->log_path(), 1);
  const nlohmann::json tally = nlohmann::json::parse(said, nullptr, /*allow_exceptions=*/false);
  if (code != 0 || !tally.is_object()) {
    return absl::InternalError(absl::StrCat("the collector ended with ", code, ", saying: ", said));
  }
  return CollectorTally{.exported = static_cast<uint64_t>(tally.value("exported", 0.0)),
                        .dropped = static_cast<uint64_t>(tally.value("dropped", 0.0))};
}

}  // namespace tensorcast::bench
