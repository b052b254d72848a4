// Host to host between two daemons of this machine, over one lane at a time; with certificates, and without.
#include <algorithm>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/external.h"
#include "tools/workshop/bench/transfer.h"
#include "tools/workshop/bench/yardsticks.h"

namespace tensorcast::bench {
namespace {

constexpr char kUcxLane[] = "ucx";
constexpr char kP2pKey[] = "p2p";
constexpr char kSmallKey[] = "p2p-small";
constexpr uint64_t kSmallBytes = kMiB;
constexpr int kSmallPulls = 200;

struct Yardstick {
  std::string name;
  std::function<absl::StatusOr<double>()> measure;
};

// What a lane is measured beside: the same transfer by another lane, or by a cluster in clear.
struct Other {
  std::string name;
  BenchCluster* cluster;
  std::string lane;
};

PerftestOptions SharedMemoryGet(bool smoke) {
  return {.test = "ucp_get",
          .tls = "posix,sysv,cma,self",
          .message_bytes = smoke ? kMiB : 64 * kMiB,
          .iterations = smoke ? 10 : 32,
          .warmup = smoke ? 1 : 4};
}

PerftestOptions TcpMessages(bool smoke) {
  return {.test = "ucp_am_bw",
          .arguments = {"-e"},
          .tls = "tcp",
          .message_bytes = smoke ? kMiB : 16 * kMiB,
          .iterations = smoke ? 10 : 128,
          .warmup = smoke ? 1 : 8};
}

class P2p {
 public:
  explicit P2p(const BenchOptions& options)
      : options_(options),
        bytes_(options.BytesOr(kGiB, 24 * kMiB)),
        runs_(options.RunsOr(9)),
        lanes_(!options.lanes.empty() ? options.lanes
               : options.tls          ? std::vector<std::string>{kTcpLane}
                                      : std::vector<std::string>{std::string(kLocalLane), kTcpLane}) {}

  absl::StatusOr<Rows> Run() {
    TC_ASSIGN_OR_RETURN(cluster_, StartCluster(options_.tls));
    if (options_.tls) {
      TC_ASSIGN_OR_RETURN(clear_, StartCluster(/*tls=*/false));
    }
    for (const std::string& lane : lanes_) TC_RETURN_IF_ERROR(MeasureLane(lane));
    if (clear_ != nullptr) TC_RETURN_IF_ERROR(clear_->Stop());
    TC_RETURN_IF_ERROR(cluster_->Stop());
    return std::move(rows_);
  }

 private:
  absl::StatusOr<std::unique_ptr<BenchCluster>> StartCluster(bool tls) {
    std::vector<std::string> lanes = lanes_;
    // Beside which tcp is measured, in clear.
    if (!options_.tls && std::ranges::find(lanes, kTcpLane) != lanes.end()) lanes.emplace_back(kUcxLane);
    TC_ASSIGN_OR_RETURN(
        auto cluster,
        BenchCluster::Start(options_,
                            {.daemons = 2, .pool_bytes = bytes_ + 64 * kMiB, .tls = tls, .lanes = lanes}));
    TC_RETURN_IF_ERROR(cluster->ImportModel(kP2pKey, bytes_).status());
    TC_RETURN_IF_ERROR(cluster->ImportModel(kSmallKey, kSmallBytes).status());
    return cluster;
  }

  absl::StatusOr<Moved> Move(const std::string& lane) {
    return MoveOnce(options_.context, *cluster_, kP2pKey, {.lane = lane});
  }

  std::optional<Other> OtherOf(const std::string& lane) {
    if (clear_ != nullptr) return Other{"the same in clear", clear_.get(), lane};
    if (lane == kTcpLane) return Other{"the lane ucx", cluster_.get(), kUcxLane};
    return std::nullopt;
  }

  std::vector<Yardstick> YardsticksOf(const std::string& lane) {
    std::vector<Yardstick> all;
    if (lane == kLocalLane) {
      all.push_back({"plain copy, one thread", [this]() -> absl::StatusOr<double> {
                       if (!copy_) copy_.emplace(image_bytes_);
                       return copy_->GbPerSecond();
                     }});
      all.push_back({"ucx_perftest ucp_get shm 64 MiB",
                     [this] { return RunPerftest(options_.context, SharedMemoryGet(options_.smoke)); }});
    } else {
      all.push_back({"ucx_perftest ucp_am_bw -e tcp 16 MiB",
                     [this] { return RunPerftest(options_.context, TcpMessages(options_.smoke)); }});
      all.push_back({"iperf3, one TCP stream", [this] { return RunIperf(options_.context); }});
    }
    return all;
  }

  Row MakeRow(const std::string& lane, const std::string& metric) const {
    return {.bench = "p2p", .lane = lane, .metric = metric, .bytes = image_bytes_, .unit = "GB/s"};
  }

  absl::Status MeasureLane(const std::string& lane) {
    // The first one also opens connections and maps the peer's pool.
    TC_ASSIGN_OR_RETURN(const Moved first, Move(lane));
    image_bytes_ = first.report.bytes;
    bool with_wall = true;
    for (const Yardstick& yardstick : YardsticksOf(lane)) {
      TC_RETURN_IF_ERROR(MeasureBeside(lane, yardstick, with_wall));
      with_wall = false;
    }
    copy_.reset();
    const std::optional<Other> other = OtherOf(lane);
    if (!other.has_value()) return absl::OkStatus();
    TC_RETURN_IF_ERROR(MeasureBesideOther(lane, *other));
    return MeasureSmallBesideOther(lane, *other);
  }

  absl::Status MeasureBesideOther(const std::string& lane, const Other& other) {
    Say(absl::StrCat("p2p ", lane, ": ", runs_, " transfers beside ", other.name));
    TC_RETURN_IF_ERROR(MoveOnce(options_.context, *other.cluster, kP2pKey, {.lane = other.lane}).status());
    Pairs rates, cpu;
    for (int run = 0; run < runs_; ++run) {
      TC_ASSIGN_OR_RETURN(const Moved a, Move(lane));
      TC_ASSIGN_OR_RETURN(const Moved b,
                          MoveOnce(options_.context, *other.cluster, kP2pKey, {.lane = other.lane}));
      rates.Add(GbPerSecond(image_bytes_, a.report.end - a.report.start),
                GbPerSecond(image_bytes_, b.report.end - b.report.start));
      cpu.Add(1 / GbPerSecond(image_bytes_, a.cpu), 1 / GbPerSecond(image_bytes_, b.cpu));
    }
    Row rate = MakeRow(lane, "materialize");
    rates.Fill(other.name, &rate);
    rows_.push_back(std::move(rate));
    Row seconds = MakeRow(lane, "CPU, both daemons");
    seconds.unit = "s/GB";
    cpu.Fill(other.name, &seconds);
    rows_.push_back(std::move(seconds));
    return absl::OkStatus();
  }

  // What a pull costs that is over before its bytes count.
  absl::Status MeasureSmallBesideOther(const std::string& lane, const Other& other) {
    const int pulls = options_.smoke ? 1 : kSmallPulls;
    Say(absl::StrCat("p2p ", lane, ": ", pulls, " transfers of ", kSmallBytes / kMiB, " MiB beside ",
                     other.name));
    Pairs latencies;
    Row row = MakeRow(lane, "client wall, p50");
    row.unit = "ms";
    for (int run = 0; run < pulls; ++run) {
      TC_ASSIGN_OR_RETURN(const Moved a, MoveOnce(options_.context, *cluster_, kSmallKey, {.lane = lane}));
      TC_ASSIGN_OR_RETURN(const Moved b,
                          MoveOnce(options_.context, *other.cluster, kSmallKey, {.lane = other.lane}));
      latencies.Add(absl::ToDoubleMilliseconds(a.wall), absl::ToDoubleMilliseconds(b.wall));
      row.bytes = a.report.bytes;
    }
    latencies.Fill(other.name, &row);
    rows_.push_back(std::move(row));
    return absl::OkStatus();
  }

  absl::Status MeasureBeside(const std::string& lane, const Yardstick& yardstick, bool with_wall) {
    Say(absl::StrCat("p2p ", lane, ": ", runs_, " transfers beside ", yardstick.name));
    Pairs transfers, walls;
    std::vector<double> wall_ms, without_reference;
    absl::Status missing;
    for (int run = 0; run < runs_; ++run) {
      TC_ASSIGN_OR_RETURN(const Moved moved, Move(lane));
      last_ = moved.report;
      const double rate = GbPerSecond(image_bytes_, moved.report.end - moved.report.start);
      const double wall_rate = GbPerSecond(image_bytes_, moved.wall);
      wall_ms.push_back(absl::ToDoubleMilliseconds(moved.wall));
      without_reference.push_back(rate);
      absl::StatusOr<double> reference = missing.ok() ? yardstick.measure() : missing;
      // The program of the reference is not installed: figures go on without it, and the row's note says so.
      if (absl::IsNotFound(reference.status())) {
        missing = reference.status();
        continue;
      }
      TC_RETURN_IF_ERROR(reference.status());
      transfers.Add(rate, *reference);
      walls.Add(wall_rate, *reference);
    }
    Row row = MakeRow(lane, "materialize");
    if (missing.ok()) {
      transfers.Fill(yardstick.name, &row);
    } else {
      row.value = Summarize(std::move(without_reference));
      row.note = std::string(missing.message());
    }
    rows_.push_back(std::move(row));
    if (with_wall) AddClientRows(lane, yardstick, walls, std::move(wall_ms));
    return absl::OkStatus();
  }

  // What the client saw, and which stage had the time.
  void AddClientRows(const std::string& lane, const Yardstick& yardstick, const Pairs& walls,
                     std::vector<double> wall_ms) {
    if (!walls.values.empty()) {
      Row row = MakeRow(lane, "client wall");
      walls.Fill(yardstick.name, &row);
      rows_.push_back(std::move(row));
    }
    Row row = MakeRow(lane, "client wall");
    row.unit = "ms";
    row.note = absl::StrFormat("p50 %.1f p99 %.1f ms;", Percentile(wall_ms, 50), Percentile(wall_ms, 99));
    row.value = Summarize(std::move(wall_ms));
    for (const StageReport& stage : last_.stages) {
      absl::StrAppendFormat(&row.note, " %s %.1f ms busy in %u chunks, %.1f to %.1f of %.1f ms,",
                            StageName(stage.stage), absl::ToDoubleMilliseconds(stage.busy), stage.chunks,
                            absl::ToDoubleMilliseconds(stage.start - last_.start),
                            absl::ToDoubleMilliseconds(stage.end - last_.start),
                            absl::ToDoubleMilliseconds(last_.end - last_.start));
    }
    row.note.back() = '.';
    rows_.push_back(std::move(row));
  }

  const BenchOptions& options_;
  const uint64_t bytes_;
  const int runs_;
  const std::vector<std::string> lanes_;
  std::unique_ptr<BenchCluster> cluster_;
  std::unique_ptr<BenchCluster> clear_;  // beside one with certificates
  uint64_t image_bytes_ = 0;
  std::optional<PlainCopy> copy_;
  TransferReport last_;
  Rows rows_;
};

}  // namespace

absl::StatusOr<Rows> RunP2p(const BenchOptions& options) { return P2p(options).Run(); }

}  // namespace tensorcast::bench
