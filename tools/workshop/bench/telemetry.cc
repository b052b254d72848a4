// The cost of telemetry: the same work on two clusters of real processes, one with all telemetry on, sent to
// a collector in a process of its own, the other with telemetry off.
//
// A pair is one measurement on each, in turn, in alternating order. The clusters are restarted every few
// pairs, since the place of a process's memory changes a figure by more than telemetry does.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "otel/api/flight_recorder.h"
#include "otel/sdk/telemetry.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/callers.h"
#include "tools/workshop/bench/collector.h"
#include "tools/workshop/bench/dead_collector.h"
#include "tools/workshop/bench/transfer.h"
#include "tools/workshop/model/llama_model.h"

namespace tensorcast::bench {
namespace {

constexpr char kTelemetryKey[] = "telemetry";
constexpr char kOff[] = "telemetry off";
constexpr char kNoRecorder[] = "recorder off";
constexpr char kControl[] = "ResolveKey";  // what is measured as a lane is, of the control plane
constexpr int kPairsARound = 6;            // even: each side comes first as often
constexpr absl::Duration kFlushTimeout = absl::Seconds(10);

// Figures of one measurement, by metric.
using Figures = std::vector<double>;

// Two clusters side by side, one observed, and one of each for every six pairs: memory that one happened to
// get may be better than the other's for as long as a cluster lives, so it is drawn again each round. Within
// a pair the two follow each other at once, in alternating order.
class TelemetryBench {
 public:
  explicit TelemetryBench(const BenchOptions& options)
      : options_(options),
        bytes_(options.BytesOr(kGiB, 24 * kMiB)),
        rounds_(options.smoke ? 1 : std::max(4, (options.runs != 0 ? options.runs : 60) / kPairsARound)),
        pairs_a_round_(options.smoke ? 1 : kPairsARound),
        window_(options.smoke ? absl::Milliseconds(200) : absl::Milliseconds(500)),
        lanes_(options.lanes.empty() ? std::vector<std::string>{"local", "tcp", kControl} : options.lanes) {}

  absl::StatusOr<Rows> Run() {
    TC_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create("tensorcast-bench"));
    model_ = directory_->path() + "/model.safetensors";
    Say(absl::StrCat("writing a model of about ", bytes_ / kMiB, " MiB"));
    TC_RETURN_IF_ERROR(WriteLlamaModel(model_, {.bytes = bytes_, .context = options_.context}));
    for (int round = 0; round < rounds_; ++round) TC_RETURN_IF_ERROR(RunRound(round));
    Rows rows = MakeRows();
    if (options_.recorder) return rows;
    TC_ASSIGN_OR_RETURN(const Rows memory, MeasureDeadCollector(options_));
    rows.insert(rows.end(), memory.begin(), memory.end());
    return rows;
  }

 private:
  struct Side {
    bool observed = false;
    std::unique_ptr<BenchCluster> cluster;
    std::unique_ptr<Callers> callers;
  };
  using Measure = std::function<absl::StatusOr<Figures>(Side&)>;
  struct Metric {
    std::string lane, name, unit;
    uint64_t bytes = 0;
    friend auto operator<=>(const Metric&, const Metric&) = default;
  };

  absl::StatusOr<Side> StartSide(bool observed) {
    Side side{.observed = observed};
    BenchCluster::Options cluster{.daemons = 2, .pool_bytes = bytes_ + 64 * kMiB, .lanes = lanes_};
    if (options_.recorder) {
      cluster.settings = {absl::StrCat("observability.recorder.enabled=", observed ? "true" : "false")};
    } else if (observed) {
      cluster.settings = {"observability.otel.enabled=true",
                          absl::StrCat("observability.otel.sampling_ratio=", options_.sampling_ratio),
                          "observability.otel.endpoint=" + collector_->endpoint()};
    }
    TC_ASSIGN_OR_RETURN(side.cluster, BenchCluster::Start(options_, cluster));
    TC_RETURN_IF_ERROR(side.cluster->Import(model_, kTelemetryKey));
    side.callers = std::make_unique<Callers>(options_.context,
                                             side.cluster->processes().global_store_address(), kTelemetryKey);
    return side;
  }

  absl::Status RunRound(int round) {
    TC_ASSIGN_OR_RETURN(collector_, Collector::Start(options_.own_binary, directory_->path()));
    // Which cluster gets its memory first is of consequence, too.
    const bool first = round % 2 == 0;
    TC_ASSIGN_OR_RETURN(Side one, StartSide(first));
    TC_ASSIGN_OR_RETURN(Side other, StartSide(!first));
    Side& on = first ? one : other;
    Side& off = first ? other : one;
    Say(absl::StrCat("telemetry: round ", round + 1, " of ", rounds_, ", ", pairs_a_round_,
                     " pairs of each"));
    for (const std::string& lane : lanes_) TC_RETURN_IF_ERROR(MeasureLane(lane, on, off));
    // gRPC looks at an idle connection only every five seconds: a server that stops would wait for that.
    on.callers.reset();
    off.callers.reset();
    TC_RETURN_IF_ERROR(on.cluster->Stop());
    TC_RETURN_IF_ERROR(off.cluster->Stop());
    TC_ASSIGN_OR_RETURN(const CollectorTally tally, collector_->Stop());
    if (tally.exported == 0 && !options_.recorder && options_.sampling_ratio > 0) {
      return absl::InternalError("no span arrived: nothing was measured");
    }
    spans_.exported += tally.exported;
    spans_.dropped += tally.dropped;
    return absl::OkStatus();
  }

  absl::Status MeasureLane(const std::string& lane, Side& on, Side& off) {
    if (lane == kControl) {
      return RunPairs({{lane, "rate", "ops/s"}, {lane, "p50", "ms"}, {lane, "CPU of a call", "us"}}, on, off,
                      [this](Side& side) { return Call(side); });
    }
    return RunPairs(
        {{lane, "materialize", "GB/s"}, {lane, "client wall", "GB/s"}, {lane, "CPU of a transfer", "ms"}}, on,
        off, [this, &lane](Side& side) { return Transfer(side, lane); });
  }

  absl::Status RunPairs(const std::vector<Metric>& metrics, Side& on, Side& off, const Measure& measure) {
    // The first of each side opens connections and maps the peer's pool.
    for (int pair = -1; pair < pairs_a_round_; ++pair) {
      Figures on_figures, off_figures;
      for (const bool observed : {pair % 2 == 0, pair % 2 != 0}) {
        TC_ASSIGN_OR_RETURN((observed ? on_figures : off_figures), MeasureSide(observed ? on : off, measure));
      }
      for (size_t i = 0; pair >= 0 && i < metrics.size(); ++i) {
        pairs_[metrics[i]].Add(on_figures[i], off_figures[i]);
      }
    }
    return absl::OkStatus();
  }

  // The client is observed too, and only while its side is measured. What starting that costs a client pays
  // once in its life, so it is over before the measurement.
  absl::StatusOr<Figures> MeasureSide(Side& side, const Measure& measure) {
    if (options_.recorder) {
      std::optional<otel::FlightRecorder> recorder;
      if (side.observed) recorder.emplace();
      return measure(side);
    }
    v1::OtelConfig config;
    config.set_enabled(side.observed);
    config.set_endpoint(collector_->endpoint());
    config.set_sampling_ratio(options_.sampling_ratio);
    TC_ASSIGN_OR_RETURN(const auto telemetry, otel::InitTelemetry(config, "client"));
    if (!telemetry->Flush(kFlushTimeout)) return absl::UnavailableError("the collector does not answer");
    return measure(side);
  }

  absl::StatusOr<Figures> Transfer(Side& side, const std::string& lane) {
    TC_ASSIGN_OR_RETURN(const Moved moved,
                        MoveOnce(options_.context, *side.cluster, kTelemetryKey, {.lane = lane}));
    image_bytes_ = moved.report.bytes;
    return Figures{GbPerSecond(image_bytes_, moved.report.end - moved.report.start),
                   GbPerSecond(image_bytes_, moved.wall), absl::ToDoubleMilliseconds(moved.cpu)};
  }

  absl::StatusOr<Figures> Call(Side& side) const {
    TC_ASSIGN_OR_RETURN(const absl::Duration used, CpuOfCalls(side));
    TC_ASSIGN_OR_RETURN(const CallWindow window, side.callers->Run(window_));
    TC_ASSIGN_OR_RETURN(const absl::Duration cpu, CpuOfCalls(side));
    const auto calls = static_cast<double>(window.latencies_ms.size());
    return Figures{window.calls_per_second, Percentile(window.latencies_ms, 50),
                   absl::ToDoubleMicroseconds(cpu - used) / calls};
  }

  // Of the caller and the store; what else runs here moves it less than it moves a rate.
  static absl::StatusOr<absl::Duration> CpuOfCalls(Side& side) {
    TC_ASSIGN_OR_RETURN(const absl::Duration caller, CpuTime(getpid()));
    TC_ASSIGN_OR_RETURN(const absl::Duration store, CpuTime(side.cluster->processes().global_store().pid()));
    return caller + store;
  }

  Rows MakeRows() const {
    Rows rows;
    for (const auto& [metric, pairs] : pairs_) {
      const bool transfer = metric.lane != kControl;
      Row row{.bench = "telemetry",
              .lane = metric.lane,
              .metric = metric.name,
              .bytes = transfer ? image_bytes_ : 0,
              .unit = metric.unit};
      pairs.Fill(options_.recorder ? kNoRecorder : kOff, &row);
      rows.push_back(std::move(row));
    }
    if (options_.recorder) return rows;
    rows.front().note = absl::StrCat("sampling ratio ", options_.sampling_ratio, ": ", spans_.exported,
                                     " spans arrived at the collector, ", spans_.dropped, " were dropped");
    return rows;
  }

  const BenchOptions& options_;
  const uint64_t bytes_;
  const int rounds_;
  const int pairs_a_round_;
  const absl::Duration window_;
  const std::vector<std::string> lanes_;
  std::unique_ptr<TemporaryDirectory> directory_;
  std::string model_;
  std::unique_ptr<Collector> collector_;
  uint64_t image_bytes_ = 0;
  std::map<Metric, Pairs> pairs_;
  CollectorTally spans_;
};

}  // namespace

absl::StatusOr<Rows> RunTelemetry(const BenchOptions& options) { return TelemetryBench(options).Run(); }

}  // namespace tensorcast::bench
