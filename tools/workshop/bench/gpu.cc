// Transfers to and from the GPUs of this machine, beside the max rates of the GPUs, their links and NCCL.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/bench_cluster.h"
#include "tools/workshop/bench/gpu_rebuild.h"
#include "tools/workshop/bench/gpu_yardsticks.h"
#include "tools/workshop/bench/transfer.h"

namespace tensorcast::bench {
namespace {

constexpr char kOnHost[] = "gpu-bench-on-host";
constexpr char kOnGpu[] = "gpu-bench-on-gpu";
constexpr int kMinReceiversForBroadcast = 3;  // one that has it, two that get it
constexpr int kBroadcastAttempts = 10;
constexpr int kAttachWarmup = 5;
constexpr uint64_t kMaxRebuiltBytes = kGiB;  // both versions are made and compared on the host first

std::string Gpu(int ordinal) { return absl::StrCat("gpu:", ordinal); }

// GB/s or an error: one run of a figure, or of its reference.
using Measurement = std::function<absl::StatusOr<double>()>;

class GpuBench {
 public:
  GpuBench(const BenchOptions& options, const std::string& nccl)
      : options_(options),
        nccl_(nccl),
        bytes_(options.BytesOr(4 * kGiB, 24 * kMiB)),
        runs_(options.RunsOr(7)) {}

  absl::StatusOr<Rows> Run() {
    TC_RETURN_IF_ERROR(Start());
    TC_RETURN_IF_ERROR(HostToGpu());
    TC_RETURN_IF_ERROR(Staged());
    TC_RETURN_IF_ERROR(Local());
    TC_RETURN_IF_ERROR(Broadcast());
    TC_RETURN_IF_ERROR(Digest());
    TC_RETURN_IF_ERROR(Rebuild());
    TC_RETURN_IF_ERROR(Attach());
    TC_RETURN_IF_ERROR(cluster_->Stop());
    return std::move(rows_);
  }

 private:
  // Two daemons see all GPUs. Of two models, node 0 has one in host memory and the other on its first GPU.
  absl::Status Start() {
    TC_ASSIGN_OR_RETURN(const auto probe, CreateCudaRuntime());
    to_ = static_cast<int>(probe->devices().size()) > 1 ? 1 : 0;
    BenchOptions bench = options_;
    bench.sets.insert(bench.sets.begin(), {"daemon.device_runtime=cuda",
                                           nccl_.empty() ? "daemon.nccl=auto" : "daemon.nccl=" + nccl_});
    TC_ASSIGN_OR_RETURN(cluster_,
                        BenchCluster::Start(bench, {.daemons = 2, .pool_bytes = bytes_ + 64 * kMiB}));
    TC_RETURN_IF_ERROR(cluster_->ImportModel(kOnHost, bytes_, /*seed=*/1).status());
    TC_ASSIGN_OR_RETURN(const std::string path, cluster_->WriteModel(kOnGpu, bytes_, /*seed=*/2));
    TC_RETURN_IF_ERROR(
        cluster_->client(0).Import(options_.context, path, {.key = kOnGpu, .location = Gpu(0)}).status());
    TC_ASSIGN_OR_RETURN(const auto replica, cluster_->client(0).Get(options_.context, kOnGpu,
                                                                    {.location = Gpu(0), .attach = false}));
    image_bytes_ = replica->image_bytes();
    TC_ASSIGN_OR_RETURN(yardsticks_, GpuYardsticks::Open(image_bytes_));
    return absl::OkStatus();
  }

  // Node `node` gets `key` at `location`, and drops it again.
  absl::StatusOr<double> Move(int node, const std::string& key, const std::string& location,
                              const std::string& lane) {
    TC_ASSIGN_OR_RETURN(const Moved moved, MoveOnce(options_.context, *cluster_, key,
                                                    {.lane = lane, .node = node, .location = location}));
    return GbPerSecond(moved.report.bytes, moved.report.end - moved.report.start);
  }

  absl::Status AddRow(const std::string& lane, const std::string& metric, const std::string& reference,
                      const Measurement& figure, const Measurement& beside) {
    Say(absl::StrCat("gpu ", lane, ", ", metric, ": ", runs_, " runs beside ", reference));
    // The first of each opens and allocates.
    TC_RETURN_IF_ERROR(figure().status());
    TC_RETURN_IF_ERROR(beside().status());
    Pairs pairs;
    for (int run = 0; run < runs_; ++run) {
      TC_ASSIGN_OR_RETURN(const double value, figure());
      TC_ASSIGN_OR_RETURN(const double yardstick, beside());
      pairs.Add(value, yardstick);
    }
    Row row{.bench = "gpu", .lane = lane, .metric = metric, .bytes = image_bytes_, .unit = "GB/s"};
    pairs.Fill(reference, &row);
    rows_.push_back(std::move(row));
    return absl::OkStatus();
  }

  absl::Status HostToGpu() {
    return AddRow(
        std::string(kMemoryLane), "host replica to GPU", "page-locked copy to the GPU",
        [&] { return Move(0, kOnHost, Gpu(0), ""); }, [&] { return yardsticks_->ToDevice(0); });
  }

  // From one daemon's GPU to another's by way of both hosts' memory: no faster than the slowest part.
  absl::Status Staged() {
    const auto slowest = [&]() -> absl::StatusOr<double> {
      TC_ASSIGN_OR_RETURN(const double out, yardsticks_->ToHost(0));
      TC_ASSIGN_OR_RETURN(const double in, yardsticks_->ToDevice(to_));
      TC_ASSIGN_OR_RETURN(const double between, Move(1, kOnHost, "cpu", kTcpLane));
      return std::min({out, in, between});
    };
    return AddRow(
        kTcpLane, "GPU to GPU, staged", "the slowest of copy out, tcp between hosts, copy in",
        [&] { return Move(1, kOnGpu, Gpu(to_), kTcpLane); }, slowest);
  }

  absl::Status Local() {
    return AddRow(
        std::string(kLocalLane), "GPU to GPU, two daemons",
        to_ == 0 ? "copy on the device" : "copy from device to device",
        [&] { return Move(1, kOnGpu, Gpu(to_), std::string(kLocalLane)); },
        [&] { return yardsticks_->Copy(0, to_); });
  }

  // Node 0's other GPUs get at once what its first has. nullopt: some of it was copied.
  absl::StatusOr<std::optional<double>> GetOnAllGpus() {
    std::vector<std::unique_ptr<client::PendingGet>> gets;
    for (int gpu = 1; gpu < yardsticks_->device_count(); ++gpu) {
      gets.push_back(
          cluster_->client(0).StartGet(options_.context, kOnGpu, {.location = Gpu(gpu), .attach = false}));
    }
    SteadyTime start = SteadyTime::InfiniteFuture();
    SteadyTime end = SteadyTime::InfinitePast();
    bool broadcast = true;
    for (const auto& get : gets) {
      TC_ASSIGN_OR_RETURN(const auto replica, get->Wait(options_.context.deadline));
      if (!replica->transfer()) return absl::InternalError("a replica was there before it was asked for");
      start = std::min(start, replica->transfer()->start);
      end = std::max(end, replica->transfer()->end);
      for (const SourceReport& source : replica->transfer()->sources) {
        broadcast = broadcast && (source.source.lane == kNcclLane || source.bytes == 0);
      }
      TC_RETURN_IF_ERROR(
          cluster_->admin(0).EvictReplica(options_.context, replica->replica_id(), /*force=*/true));
    }
    return broadcast ? std::optional(GbPerSecond(image_bytes_, end - start)) : std::nullopt;
  }

  // Gets that do not reach the daemon in the same instant are served by copies: not what is measured.
  absl::StatusOr<double> BroadcastOnce() {
    for (int attempt = 0; attempt < kBroadcastAttempts; ++attempt) {
      TC_ASSIGN_OR_RETURN(const std::optional<double> rate, GetOnAllGpus());
      if (rate.has_value()) return *rate;
    }
    return absl::UnavailableError(
        absl::StrCat("none of ", kBroadcastAttempts, " gets to all GPUs was broadcast, though NCCL can"));
  }

  absl::Status Broadcast() {
    if (yardsticks_->device_count() < kMinReceiversForBroadcast) {
      Say(absl::StrCat("gpu nccl: not measured, it takes ", kMinReceiversForBroadcast, " GPUs"));
      return absl::OkStatus();
    }
    std::vector<int> ranks(yardsticks_->device_count());
    std::iota(ranks.begin(), ranks.end(), 0);
    const absl::Status alone = yardsticks_->Broadcast(options_.context, nccl_, ranks).status();
    if (absl::IsUnavailable(alone)) {
      Say(absl::StrCat("gpu nccl: not measured, ", alone.message()));
      return absl::OkStatus();
    }
    TC_RETURN_IF_ERROR(alone);
    return AddRow(
        std::string(kNcclLane), absl::StrCat("one GPU to ", ranks.size() - 1, " others"),
        "NCCL's broadcast alone", [&] { return BroadcastOnce(); },
        [&] { return yardsticks_->Broadcast(options_.context, nccl_, ranks); });
  }

  absl::Status Digest() {
    if (!yardsticks_->devices().devices().front().runs_kernels) {
      Say("gpu digest: not measured, this build has no kernel for the device");
      return absl::OkStatus();
    }
    return AddRow(
        "digest", "chunk digests on the GPU", "reading at the rate of its memory",
        [&] { return yardsticks_->Digest(0); }, [&] { return yardsticks_->Read(0); });
  }

  // The next version of weights that are on the GPU.
  absl::Status Rebuild() {
    absl::StatusOr<std::unique_ptr<GpuRebuild>> versions =
        GpuRebuild::Open(yardsticks_->devices(), /*device=*/0, std::min(bytes_ / 2, kMaxRebuiltBytes));
    if (absl::IsUnimplemented(versions.status())) {
      Say("gpu rebuild: not measured, this build has no kernel for the device");
      return absl::OkStatus();
    }
    TC_RETURN_IF_ERROR(versions.status());
    GpuRebuild& rebuild = **versions;
    TC_RETURN_IF_ERROR(AddRow(
        std::string(kDifferenceLane), "GPU rebuild beside a copy", "copy within the GPU, with digests",
        [&] { return rebuild.OnGpu(); }, [&] { return rebuild.Copy(); }));
    return AddRow(
        std::string(kDifferenceLane), "GPU rebuild beside the host's", "the same by way of the host",
        [&] { return rebuild.OnGpu(); }, [&] { return rebuild.OnHost(); });
  }

  // What an engine pays that finds the model on its GPU.
  absl::Status Attach() {
    const int attaches = options_.smoke ? 3 : 200;
    Say(absl::StrCat("gpu attach: ", attaches, " of a ready replica"));
    TC_ASSIGN_OR_RETURN(const auto client,
                        client::Client::Connect({.daemon = cluster_->processes().addresses(0).unix_socket,
                                                 .devices = &yardsticks_->devices()}));
    std::vector<double> milliseconds;
    for (int i = -kAttachWarmup; i < attaches; ++i) {
      const SteadyTime start = SteadyNow();
      TC_ASSIGN_OR_RETURN(const auto replica, client->Get(options_.context, kOnGpu, {.location = Gpu(0)}));
      const absl::Duration elapsed = SteadyNow() - start;
      if (!replica->tensors().front().device) return absl::InternalError("attached, but to no GPU memory");
      if (i >= 0) milliseconds.push_back(absl::ToDoubleMilliseconds(elapsed));
    }
    Row row{.bench = "gpu", .lane = "attach", .metric = "p50", .bytes = image_bytes_, .unit = "ms"};
    row.value = Summarize(std::move(milliseconds));
    rows_.push_back(std::move(row));
    return absl::OkStatus();
  }

  const BenchOptions& options_;
  const std::string nccl_;
  const uint64_t bytes_;
  const int runs_;
  int to_ = 0;  // the GPU that node 1 gets things on
  uint64_t image_bytes_ = 0;
  std::unique_ptr<BenchCluster> cluster_;
  std::unique_ptr<GpuYardsticks> yardsticks_;
  Rows rows_;
};

}  // namespace

absl::StatusOr<Rows> RunGpu(const BenchOptions& options, const std::string& nccl) {
  return GpuBench(options, nccl).Run();
}

}  // namespace tensorcast::bench
