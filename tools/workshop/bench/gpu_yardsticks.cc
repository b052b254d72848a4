#include "tools/workshop/bench/gpu_yardsticks.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/log/log.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/artifact/layout.h"
#include "tools/workshop/bench/bench_cluster.h"

namespace tensorcast::bench {
namespace {

// Enqueues by `work` and waits.
absl::StatusOr<double> Measure(Stream& stream, uint64_t bytes, const std::function<absl::Status()>& work) {
  const SteadyTime start = SteadyNow();
  TC_RETURN_IF_ERROR(work());
  TC_RETURN_IF_ERROR(stream.Synchronize());
  return GbPerSecond(bytes, SteadyNow() - start);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuYardsticks>> GpuYardsticks::Open(uint64_t bytes) {
  TC_ASSIGN_OR_RETURN(auto devices, CreateCudaRuntime());
  std::unique_ptr<GpuYardsticks> yardsticks(new GpuYardsticks(std::move(devices), bytes));
  TC_RETURN_IF_ERROR(
      yardsticks->devices_->RegisterHost(yardsticks->host_.data(), bytes, HostAccess::kReadWrite));
  return yardsticks;
}

GpuYardsticks::~GpuYardsticks() {
  communicator_.reset();
  for (auto& [device, used] : used_) {
    used.stream.reset();
    for (const DevicePtr buffer : {used.first, used.second}) {
      if (buffer) devices_->Free(buffer).IgnoreError();
    }
  }
  devices_->UnregisterHost(host_.data()).IgnoreError();  // NOT_FOUND where Open failed at it
}

absl::StatusOr<GpuYardsticks::Device*> GpuYardsticks::Use(int device) {
  Device& used = used_[device];
  if (used.stream == nullptr) {
    TC_ASSIGN_OR_RETURN(used.stream, devices_->CreateStream(device));
  }
  for (DevicePtr* buffer : {&used.first, &used.second}) {
    if (*buffer) continue;
    TC_ASSIGN_OR_RETURN(*buffer, devices_->Allocate(device, bytes_));
  }
  return &used;
}

absl::StatusOr<double> GpuYardsticks::ToDevice(int device) {
  TC_ASSIGN_OR_RETURN(Device* const used, Use(device));
  return Measure(*used->stream, bytes_,
                 [&] { return used->stream->CopyToDevice(used->first, host_.data(), bytes_); });
}

absl::StatusOr<double> GpuYardsticks::ToHost(int device) {
  TC_ASSIGN_OR_RETURN(Device* const used, Use(device));
  return Measure(*used->stream, bytes_,
                 [&] { return used->stream->CopyToHost(host_.data(), used->first, bytes_); });
}

absl::StatusOr<double> GpuYardsticks::Copy(int from, int to) {
  TC_ASSIGN_OR_RETURN(Device* const source, Use(from));
  TC_ASSIGN_OR_RETURN(Device* const destination, Use(to));
  return Measure(*destination->stream, bytes_, [&] {
    return destination->stream->CopyOnDevice(destination->second, source->first, bytes_);
  });
}

absl::StatusOr<double> GpuYardsticks::Read(int device) {
  TC_ASSIGN_OR_RETURN(const double copied, Copy(device, device));
  return 2 * copied;
}

absl::StatusOr<double> GpuYardsticks::Digest(int device) {
  TC_ASSIGN_OR_RETURN(Device* const used, Use(device));
  const uint64_t chunk_bytes = ChunkBytesOf(bytes_);
  std::vector<DeviceRange> chunks;
  for (uint64_t begin = 0; begin < bytes_; begin += chunk_bytes) {
    chunks.push_back({.begin = used->first + begin, .bytes = std::min(chunk_bytes, bytes_ - begin)});
  }
  std::vector<DigestBytes> digests(chunks.size());
  return Measure(*used->stream, bytes_, [&] { return used->stream->Digest(chunks, digests); });
}

absl::Status GpuYardsticks::Join(const RequestContext& context, const std::string& library,
                                 std::span<const int> ranks) {
  if (communicator_ != nullptr && std::ranges::equal(ranks, ranks_)) return absl::OkStatus();
  if (nccl_ == nullptr) {
    TC_ASSIGN_OR_RETURN(nccl_, LoadNccl(library, devices_.get()));
  }
  TC_ASSIGN_OR_RETURN(const CommunicatorId id, nccl_->MakeId());
  std::vector<RankDevice> places;
  for (size_t i = 0; i < ranks.size(); ++i) {
    places.push_back({.rank = static_cast<int>(i), .device = ranks[i]});
  }
  TC_ASSIGN_OR_RETURN(communicator_, nccl_->Join(context, id, static_cast<int>(ranks.size()), places));
  ranks_.assign(ranks.begin(), ranks.end());
  return absl::OkStatus();
}

absl::StatusOr<double> GpuYardsticks::Broadcast(const RequestContext& context, const std::string& library,
                                                std::span<const int> ranks) {
  TC_RETURN_IF_ERROR(Join(context, library, ranks));
  std::vector<DevicePtr> buffers;
  for (const int device : ranks) {
    TC_ASSIGN_OR_RETURN(Device* const used, Use(device));
    buffers.push_back(used->first);
  }
  const SteadyTime start = SteadyNow();
  TC_RETURN_IF_ERROR(communicator_->Broadcast(context, /*root=*/0, buffers, bytes_));
  TC_RETURN_IF_ERROR(communicator_->Await(context));
  return GbPerSecond(bytes_, SteadyNow() - start);
}

}  // namespace tensorcast::bench
