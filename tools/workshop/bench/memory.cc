// Resident memory of a daemon beyond its pools: idle, and after many transfers over each lane.
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/resident.h"

namespace tensorcast::bench {
namespace {

constexpr char kMemoryKey[] = "memory";
// What a daemon may have beyond its pools.
constexpr double kLimitMib = 100;

double Mib(uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

Row MakeRow(const std::string& lane, const std::string& metric, uint64_t bytes, double value) {
  return {.bench = "memory",
          .lane = lane,
          .metric = metric,
          .bytes = bytes,
          .value = Summarize({value}),
          .unit = "MiB"};
}

class MemoryBench {
 public:
  explicit MemoryBench(const BenchOptions& options)
      : options_(options), bytes_(options.BytesOr(64 * kMiB, 4 * kMiB)), transfers_(options.RunsOr(100, 4)) {}

  absl::StatusOr<Rows> Run() {
    TC_ASSIGN_OR_RETURN(cluster_,
                        BenchCluster::Start(options_, {.daemons = 2, .pool_bytes = 2 * bytes_ + 64 * kMiB}));
    TC_RETURN_IF_ERROR(AddRow("idle", 0, kLimitMib, "limit"));
    TC_RETURN_IF_ERROR(cluster_->ImportModel(kMemoryKey, bytes_).status());
    // After the first tenth every lane has been used and the allocator has what it wants: from then on, flat.
    const int first = std::max(2, transfers_ / 10);
    TC_RETURN_IF_ERROR(Transfer(first));
    TC_RETURN_IF_ERROR(AddRow(absl::StrCat("after ", first, " transfers"), bytes_, kLimitMib, "limit"));
    const std::vector<double> before = last_;
    TC_RETURN_IF_ERROR(Transfer(transfers_ - first));
    TC_RETURN_IF_ERROR(AddRow(absl::StrCat("after ", transfers_, " transfers"), bytes_, kLimitMib, "limit"));
    for (int node = 0; node < 2; ++node) {
      rows_.push_back(MakeRow(absl::StrCat("node-", node),
                              absl::StrCat("growth from transfer ", first, " to ", transfers_), bytes_,
                              last_[node] - before[node]));
    }
    TC_RETURN_IF_ERROR(cluster_->Stop());
    return std::move(rows_);
  }

 private:
  absl::Status Transfer(int count) {
    Say(absl::StrCat("memory: ", count, " transfers"));
    for (int i = 0; i < count; ++i) {
      TC_ASSIGN_OR_RETURN(auto replica, cluster_->client(1).Get(options_.context, kMemoryKey,
                                                                {.lane = i % 2 == 0 ? "local" : "tcp"}));
      const std::string replica_id = replica->replica_id();
      replica.reset();
      TC_RETURN_IF_ERROR(cluster_->admin(1).EvictReplica(options_.context, replica_id, /*force=*/true));
    }
    return absl::OkStatus();
  }

  absl::Status AddRow(const std::string& metric, uint64_t bytes, double limit, const std::string& reference) {
    last_.clear();
    for (int node = 0; node < 2; ++node) {
      TC_ASSIGN_OR_RETURN(const ResidentMemory resident,
                          ReadResidentMemory(cluster_->processes().daemon(node).pid()));
      last_.push_back(Mib(resident.beyond_bytes));
      Row row = MakeRow(absl::StrCat("node-", node), metric, bytes, last_.back());
      row.reference = Reference{.name = reference, .value = Summarize({limit})};
      row.note = absl::StrCat("pools, its peers' included: ", resident.pools_bytes / kMiB, " MiB");
      rows_.push_back(std::move(row));
    }
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const uint64_t bytes_;
  const int transfers_;
  std::unique_ptr<BenchCluster> cluster_;
  std::vector<double> last_;  // MiB beyond the pools, of each node
  Rows rows_;
};

}  // namespace

absl::StatusOr<Rows> RunMemory(const BenchOptions& options) { return MemoryBench(options).Run(); }

}  // namespace tensorcast::bench
