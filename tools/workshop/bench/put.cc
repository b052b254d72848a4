// A client's arrays to a ready replica: the client's first put, later puts, and the memory that they take.
#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/resident.h"
#include "tools/workshop/bench/yardsticks.h"

namespace tensorcast::bench {
namespace {

// As a model's layers: what is between two of them is padding, and few begin at a page.
constexpr uint64_t kTensorBytes = 7 * kMiB + 100;
constexpr int kLaterPuts = 5;
constexpr double kMemoryLimitMib = 96;

// The largest resident memory that the process ever had, since it was last told to forget it.
absl::StatusOr<uint64_t> PeakBytes(const std::string& process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "VmHWM:")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() == 3 && absl::SimpleAtoi(words[1], &kib)) return kib << 10;
  }
  return absl::NotFoundError(absl::StrCat("/proc/", process, "/status says nothing of a peak"));
}

void ForgetPeak(const std::string& process) {
  // 5 sets VmHWM to what is resident now (proc(5)).
  std::ofstream(absl::StrCat("/proc/", process, "/clear_refs")) << "5\n";
}

class PutBench {
 public:
  explicit PutBench(const BenchOptions& options)
      : options_(options),
        bytes_(options.BytesOr(kGiB, 24 * kMiB)),
        runs_(options.RunsOr(5)),
        arrays_(bytes_) {
    for (uint64_t i = 0; i < bytes_; ++i) arrays_[i] = static_cast<std::byte>(i * 2654435761 >> 24);
    for (uint64_t at = 0; at < bytes_; at += kTensorBytes) {
      const uint64_t here = std::min(kTensorBytes, bytes_ - at);
      tensors_.push_back({.name = absl::StrCat("tensor.", tensors_.size()),
                          .dtype = DType::kU8,
                          .shape = {here},
                          .bytes = std::span(arrays_).subspan(at, here)});
    }
  }

  // A cluster of its own for each run: a put is a client's and a daemon's first only once.
  absl::StatusOr<Rows> Run() {
    PlainCopy plain(bytes_);
    for (int run = 0; run < runs_; ++run) {
      Say(absl::StrCat("put: run ", run + 1, " of ", runs_));
      TC_RETURN_IF_ERROR(OneRun(plain));
    }
    Add("first", "client wall", first_to_later_, "the same run's later puts", "");
    Add("first", "client wall", first_to_copy_, "one thread's copy into resident memory", "");
    Add("later", "client wall", later_to_copy_, "one thread's copy into resident memory", "");
    AddMemory("client", "beyond the arrays, largest", client_mib_);
    AddMemory("daemon", "beyond the pool, largest", daemon_mib_);
    AddMemory("both", "beyond pool and arrays, largest", both_mib_);
    return std::move(rows_);
  }

 private:
  absl::Status OneRun(PlainCopy& plain) {
    BenchOptions bench = options_;
    TC_ASSIGN_OR_RETURN(const auto cluster, BenchCluster::Start(bench, {.pool_bytes = bytes_ + 64 * kMiB}));
    const std::string daemon = absl::StrCat(cluster->processes().daemon(0).pid());
    ForgetPeak(daemon);
    ForgetPeak("self");
    TC_ASSIGN_OR_RETURN(const uint64_t client_before, PeakBytes("self"));
    TC_ASSIGN_OR_RETURN(const uint64_t daemon_before, PeakBytes(daemon));
    TC_ASSIGN_OR_RETURN(const ResidentMemory idle, ReadResidentMemory(cluster->processes().daemon(0).pid()));
    plain.GbPerSecond();  // since the daemon was forked, its pages are copied on write
    const double copied = plain.GbPerSecond();
    TC_ASSIGN_OR_RETURN(const double first, Put(*cluster));
    first_to_copy_.Add(first, copied);
    std::vector<double> later;
    for (int i = 0; i < kLaterPuts; ++i) {
      TC_ASSIGN_OR_RETURN(later.emplace_back(), Put(*cluster));
      later_to_copy_.Add(later.back(), plain.GbPerSecond());
    }
    first_to_later_.Add(first, Summarize(later).median);
    TC_ASSIGN_OR_RETURN(const uint64_t client_after, PeakBytes("self"));
    TC_ASSIGN_OR_RETURN(const uint64_t daemon_after, PeakBytes(daemon));
    const auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); };
    client_mib_.push_back(mib(client_after - client_before));
    // Where the kernel gave the pool huge pages, its memory counts as resident only once it is touched again.
    TC_ASSIGN_OR_RETURN(const ResidentMemory after, ReadResidentMemory(cluster->processes().daemon(0).pid()));
    const uint64_t of_pool = after.pools_bytes - std::min(after.pools_bytes, idle.pools_bytes);
    const uint64_t growth = daemon_after - daemon_before;
    daemon_mib_.push_back(mib(idle.beyond_bytes + growth - std::min(growth, of_pool)));
    both_mib_.push_back(client_mib_.back() + daemon_mib_.back());
    return cluster->Stop();
  }

  // A first ingest each time: the replica is dropped at once, and the artifact deleted.
  absl::StatusOr<double> Put(BenchCluster& cluster) {
    const SteadyTime start = SteadyNow();
    TC_ASSIGN_OR_RETURN(const client::PutResult put, cluster.client(0).Put(options_.context, tensors_));
    const absl::Duration wall = SteadyNow() - start;
    TC_RETURN_IF_ERROR(cluster.admin(0).EvictReplica(options_.context, put.replica_id, /*force=*/true));
    TC_RETURN_IF_ERROR(cluster.admin(0).DeleteArtifact(options_.context, put.artifact_id));
    return GbPerSecond(bytes_, wall);
  }

  void Add(const std::string& lane, const std::string& metric, const Pairs& pairs,
           const std::string& reference, const std::string& note) {
    Row row{.bench = "put", .lane = lane, .metric = metric, .bytes = bytes_, .unit = "GB/s", .note = note};
    pairs.Fill(reference, &row);
    rows_.push_back(std::move(row));
  }

  void AddMemory(const std::string& process, const std::string& metric, const std::vector<double>& mib) {
    Row row{.bench = "put", .lane = process, .metric = metric, .bytes = bytes_, .unit = "MiB"};
    row.value = Summarize(mib);
    row.reference = Reference{.name = "limit", .value = Summarize({kMemoryLimitMib})};
    rows_.push_back(std::move(row));
  }

  const BenchOptions& options_;
  const uint64_t bytes_;
  const int runs_;
  std::vector<std::byte> arrays_;
  std::vector<client::PutTensor> tensors_;
  Pairs first_to_later_, first_to_copy_, later_to_copy_;
  std::vector<double> client_mib_, daemon_mib_, both_mib_;
  Rows rows_;
};

}  // namespace

absl::StatusOr<Rows> RunPut(const BenchOptions& options) { return PutBench(options).Run(); }

}  // namespace tensorcast::bench
