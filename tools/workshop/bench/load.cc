// A safetensors file on this machine's disk to a replica that is ready in host memory.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/external.h"
#include "tools/workshop/bench/yardsticks.h"

namespace tensorcast::bench {
namespace {

constexpr char kLoadKey[] = "load";
// Of fio with each engine, to find the fastest: a disk's rate varies more than the engines differ.
constexpr int kEngineRounds = 2;

struct Loaded {
  TransferReport report;
  absl::Duration wall;
};

// "open" is all that is not the ingest itself: the call, the header, the publication.
std::string PhasesOf(const Loaded& loaded) {
  std::string text =
      absl::StrFormat("last run: wall %.0f ms, of it open and publish %.0f, ingest %.0f (",
                      absl::ToDoubleMilliseconds(loaded.wall),
                      absl::ToDoubleMilliseconds(loaded.wall - (loaded.report.end - loaded.report.start)),
                      absl::ToDoubleMilliseconds(loaded.report.end - loaded.report.start));
  for (const StageReport& stage : loaded.report.stages) {
    const std::string_view name = stage.stage == Stage::kFetch ? "read" : StageName(stage.stage);
    absl::StrAppendFormat(&text, "%s %.0f ", name, absl::ToDoubleMilliseconds(stage.busy));
  }
  return absl::StrCat(text, "ms busy, all threads)");
}

class LoadBench {
 public:
  explicit LoadBench(const BenchOptions& options)
      : options_(options), bytes_(options.BytesOr(2 * kGiB, 24 * kMiB)), runs_(options.RunsOr(5)) {}

  absl::StatusOr<Rows> Run() {
    TC_ASSIGN_OR_RETURN(cluster_, BenchCluster::Start(options_, {.pool_bytes = bytes_ + 64 * kMiB}));
    TC_ASSIGN_OR_RETURN(file_, cluster_->WriteModel(kLoadKey, bytes_));
    TC_RETURN_IF_ERROR(Cold());
    TC_RETURN_IF_ERROR(Warm());
    TC_RETURN_IF_ERROR(Attached());
    TC_RETURN_IF_ERROR(cluster_->Stop());
    return std::move(rows_);
  }

 private:
  // A first ingest each time: the replica is dropped at once (a deletion reaches the daemon with its next
  // heartbeat), and the artifact deleted.
  absl::StatusOr<Loaded> Import() {
    const SteadyTime start = SteadyNow();
    TC_ASSIGN_OR_RETURN(const client::PutResult put, cluster_->client(0).Import(options_.context, file_, {}));
    const absl::Duration wall = SteadyNow() - start;
    if (!put.transfer || put.transfer->bytes < bytes_ / 2) {
      return absl::InternalError("the import read nothing");
    }
    TC_RETURN_IF_ERROR(cluster_->admin(0).EvictReplica(options_.context, put.replica_id, /*force=*/true));
    TC_RETURN_IF_ERROR(cluster_->admin(0).DeleteArtifact(options_.context, put.artifact_id));
    return Loaded{.report = *put.transfer, .wall = wall};
  }

  absl::Status DropCache() {
    TC_ASSIGN_OR_RETURN(const uint64_t left, DropFromPageCache(file_));
    if (left > 0) Say(absl::StrCat("load: ", left / kMiB, " MiB of the file stayed in the page cache"));
    return absl::OkStatus();
  }

  // The engine that reads this file fastest; none when fio is not installed or cannot read it.
  absl::StatusOr<std::optional<FioEngine>> BestEngine(std::string* why_not) {
    std::optional<FioEngine> best;
    double best_rate = 0;
    std::vector<FioEngine> engines = FioEngines();
    if (options_.smoke) engines.resize(1);
    for (int round = 0; round < (options_.smoke ? 1 : kEngineRounds); ++round) {
      for (const FioEngine& engine : engines) {
        TC_RETURN_IF_ERROR(DropCache());
        const absl::StatusOr<double> rate = RunFio(options_.context, engine, file_, bytes_);
        TC_RETURN_IF_ERROR(options_.context.Check("bench"));
        if (!rate.ok()) {
          *why_not = std::string(rate.status().message());
          if (absl::IsNotFound(rate.status())) return best;
          continue;  // an engine that this kernel does not have
        }
        Say(absl::StrFormat("load: %s: %.2f GB/s", Describe(engine), *rate));
        if (*rate > best_rate) {
          best_rate = *rate;
          best = engine;
        }
      }
    }
    return best;
  }

  // Each load is followed by the reference, both with the file out of the page cache. So both read from the
  // disk, and a disk that becomes slower during the benchmark changes both figures of a pair.
  absl::Status Cold() {
    std::string why_not;
    TC_ASSIGN_OR_RETURN(const std::optional<FioEngine> engine, BestEngine(&why_not));
    Say(absl::StrCat("load: ", runs_, " cold loads"));
    Pairs pairs, walls;
    std::optional<Loaded> last;
    for (int run = 0; run < runs_; ++run) {
      TC_RETURN_IF_ERROR(DropCache());
      TC_ASSIGN_OR_RETURN(last, Import());
      double reference = 0;
      if (engine) {
        TC_RETURN_IF_ERROR(DropCache());
        TC_ASSIGN_OR_RETURN(reference, RunFio(options_.context, *engine, file_, bytes_));
      }
      pairs.Add(GbPerSecond(last->report.bytes, last->report.end - last->report.start), reference);
      walls.Add(GbPerSecond(last->report.bytes, last->wall), reference);
    }
    Add("cold", "file to ready replica", pairs, last->report.bytes, engine ? Describe(*engine) : "",
        engine ? PhasesOf(*last) : why_not);
    Add("cold", "client wall", walls, last->report.bytes, engine ? Describe(*engine) : "", "");
    return absl::OkStatus();
  }

  absl::Status Warm() {
    Say(absl::StrCat("load: ", runs_, " warm loads"));
    Pairs pairs;
    std::optional<Loaded> last;
    for (int run = 0; run < runs_; ++run) {
      TC_RETURN_IF_ERROR(WarmPageCache(file_));
      TC_ASSIGN_OR_RETURN(last, Import());
      TC_RETURN_IF_ERROR(WarmPageCache(file_));
      TC_ASSIGN_OR_RETURN(const double reference, ReadIntoFreshMemory(file_));
      pairs.Add(GbPerSecond(last->report.bytes, last->wall), reference);
    }
    Add("warm", "client wall", pairs, last->report.bytes, "read() into fresh memory", PhasesOf(*last));
    return absl::OkStatus();
  }

  absl::Status Attached() {
    TC_RETURN_IF_ERROR(cluster_->client(0).Import(options_.context, file_, {.key = kLoadKey}).status());
    std::vector<double> ms;
    uint64_t bytes = 0;
    for (int run = 0; run < std::max(runs_, 3); ++run) {
      const SteadyTime start = SteadyNow();
      TC_ASSIGN_OR_RETURN(const auto replica, cluster_->client(0).Get(options_.context, kLoadKey, {}));
      ms.push_back(absl::ToDoubleMilliseconds(SteadyNow() - start));
      bytes = replica->image().size();
    }
    rows_.push_back({.bench = "load",
                     .lane = "attached",
                     .metric = "client wall",
                     .bytes = bytes,
                     .value = Summarize(ms),
                     .unit = "ms",
                     .note = absl::StrFormat("min %.2f mean %.2f max %.2f ms", Summarize(ms).min,
                                             Summarize(ms).mean, Summarize(ms).max)});
    return absl::OkStatus();
  }

  void Add(const std::string& lane, const std::string& metric, const Pairs& pairs, uint64_t bytes,
           const std::string& reference, const std::string& note) {
    Row row{.bench = "load", .lane = lane, .metric = metric, .bytes = bytes, .unit = "GB/s", .note = note};
    if (reference.empty()) {
      row.value = Summarize(pairs.values);
    } else {
      pairs.Fill(reference, &row);
    }
    rows_.push_back(std::move(row));
  }

  const BenchOptions& options_;
  const uint64_t bytes_;
  const int runs_;
  std::unique_ptr<BenchCluster> cluster_;
  std::string file_;
  Rows rows_;
};

}  // namespace

absl::StatusOr<Rows> RunLoad(const BenchOptions& options) { return LoadBench(options).Run(); }

}  // namespace tensorcast::bench
