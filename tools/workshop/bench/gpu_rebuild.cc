#include "tools/workshop/bench/gpu_rebuild.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/device/page_locked_memory.h"
#include "core/difference/chunk_rebuilder.h"
#include "core/difference/test_util.h"
#include "tools/workshop/bench/bench_cluster.h"

namespace tensorcast::bench {
namespace {

constexpr double kChanged = 0.014;
constexpr size_t kThreads = 4;
constexpr uint64_t kFilledBytes = 16 * kMiB;  // at random; repeated

std::vector<Digest> DigestsOf(const ImageLayout& layout, std::span<const std::byte> image) {
  std::vector<Digest> digests;
  for (uint32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    const ByteRange range = layout.chunk(chunk);
    digests.push_back(ComputeDigest(image.subspan(range.offset, range.bytes)));
  }
  return digests;
}

absl::Status Compare(uint32_t chunk, const Digest& digest, const Digest& expected) {
  if (digest == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("rebuild chunk ", chunk, ": it has digest ", digest.ToHex(),
                                          ", expected ", expected.ToHex()));
}

}  // namespace

// The digests that run on the GPU, of one thread's chunks. As many as an ingest has in flight.
class GpuRebuild::Digests {
 public:
  explicit Digests(const std::vector<Digest>& expected) : expected_(expected) {}

  absl::Status Add(uint32_t chunk, absl::StatusOr<DirectCopies::Pending> begun) {
    TC_RETURN_IF_ERROR(begun.status());
    running_.emplace_back(chunk, *std::move(begun));
    return running_.size() > DirectCopies::kAtOnce / kThreads ? AwaitOne() : absl::OkStatus();
  }
  absl::Status AddDone(uint32_t chunk, const Digest& digest) {
    return Compare(chunk, digest, expected_[chunk]);
  }
  absl::Status AwaitAll() {
    while (!running_.empty()) TC_RETURN_IF_ERROR(AwaitOne());
    return absl::OkStatus();
  }

 private:
  absl::Status AwaitOne() {
    auto& [chunk, copy] = running_.front();
    const absl::StatusOr<DigestBytes> digest = copy.Await();
    TC_RETURN_IF_ERROR(digest.status());
    const absl::Status compared = AddDone(chunk, Digest{.bytes = *digest});
    running_.pop_front();
    return compared;
  }

  const std::vector<Digest>& expected_;
  std::deque<std::pair<uint32_t, DirectCopies::Pending>> running_;
};

absl::StatusOr<std::unique_ptr<GpuRebuild>> GpuRebuild::Open(DeviceRuntime& devices, int device,
                                                             uint64_t bytes) {
  std::unique_ptr<GpuRebuild> made(new GpuRebuild(devices, device));
  TC_RETURN_IF_ERROR(made->Prepare(bytes));
  return made;
}

GpuRebuild::GpuRebuild(DeviceRuntime& devices, int device)
    : devices_(devices),
      device_(device),
      direct_(&devices),
      to_host_(&devices, device),
      to_device_(&devices, device) {}

GpuRebuild::~GpuRebuild() {
  for (const DevicePtr memory : {base_, target_}) {
    if (memory) devices_.Free(memory).IgnoreError();
  }
}

absl::Status GpuRebuild::Prepare(uint64_t bytes) {
  layout_ = testing::LayoutOfTensors({{DType::kBF16, bytes / 2}});
  std::vector<std::byte> base(layout_.image_bytes);
  const auto filled = std::span(base).first(std::min<uint64_t>(kFilledBytes, base.size()));
  testing::FillWeights(filled, /*seed=*/1);
  for (uint64_t at = filled.size(); at < base.size(); at += filled.size()) {
    std::ranges::copy(filled.first(std::min<uint64_t>(filled.size(), base.size() - at)),
                      base.begin() + static_cast<ptrdiff_t>(at));
  }
  std::vector<std::byte> target = base;
  testing::StepByUlps(target, kChanged, /*seed=*/2);
  base_digests_ = DigestsOf(layout_, base);
  target_digests_ = DigestsOf(layout_, target);
  const DifferenceGeometry geometry = GeometryOf(layout_);
  const std::optional<EncodedDifference> encoded = testing::EncodeImage(geometry, base, target);
  if (!encoded.has_value()) return absl::InternalError("the benchmark's versions have no difference");
  difference_ = testing::ImageOf(*encoded);
  const std::span<std::byte> image = difference_;
  TC_ASSIGN_OR_RETURN(decoder_, DifferenceDecoder::Open(encoded->layout, {&image, 1}, geometry));
  TC_ASSIGN_OR_RETURN(rebuild_,
                      daemon::DeviceRebuild::Open(&devices_, device_, device_, layout_.chunk_bytes / 4));
  TC_ASSIGN_OR_RETURN(base_, devices_.Allocate(device_, base.size()));
  TC_ASSIGN_OR_RETURN(target_, devices_.Allocate(device_, base.size()));
  const std::span<const std::byte> bytes_of_base = base;
  TC_ASSIGN_OR_RETURN(CopyQueue::Pending upload, to_device_.ToDevice(base_, {&bytes_of_base, 1}));
  return upload.Await();
}

absl::StatusOr<double> GpuRebuild::MakeAll(const std::vector<Digest>& expected, const Make& make) {
  std::atomic<uint32_t> next = 0;
  std::vector<absl::Status> ended(kThreads);
  const SteadyTime start = SteadyNow();
  ForEachInParallel(kThreads, kThreads, [&](size_t thread) {
    Digests digests(expected);
    absl::Status& status = ended[thread];
    for (uint32_t chunk = next++; status.ok() && chunk < layout_.chunk_count(); chunk = next++) {
      status = make(thread, chunk, digests);
    }
    status.Update(digests.AwaitAll());
  });
  const absl::Duration took = SteadyNow() - start;
  for (const absl::Status& status : ended) TC_RETURN_IF_ERROR(status);
  return GbPerSecond(layout_.image_bytes, took);
}

absl::StatusOr<double> GpuRebuild::OnGpu() {
  const DifferenceDecoder* const path = &*decoder_;
  return MakeAll(target_digests_, [&](size_t, uint32_t chunk, Digests& digests) {
    const ByteRange range = layout_.chunk(chunk);
    const DevicePtr place = target_ + range.offset;
    TC_RETURN_IF_ERROR(rebuild_->Rebuild({&path, 1}, chunk, base_ + range.offset, place, range.bytes));
    return digests.Add(chunk, direct_.Begin(place, place, range.bytes));
  });
}

absl::StatusOr<double> GpuRebuild::OnHost() {
  struct Worker {
    explicit Worker(PageLockedMemory memory) : buffer(std::move(memory)) {}
    PageLockedMemory buffer;
    ChunkRebuilder rebuilder;
  };
  std::vector<std::unique_ptr<Worker>> workers;
  for (size_t i = 0; i < kThreads; ++i) {
    TC_ASSIGN_OR_RETURN(PageLockedMemory buffer, PageLockedMemory::Create(&devices_, layout_.chunk_bytes));
    workers.push_back(std::make_unique<Worker>(std::move(buffer)));
  }
  const DifferenceDecoder* const path = &*decoder_;
  return MakeAll(target_digests_, [&](size_t thread, uint32_t chunk, Digests& digests) -> absl::Status {
    const ByteRange range = layout_.chunk(chunk);
    const std::span<std::byte> buffer = workers[thread]->buffer.bytes().first(range.bytes);
    TC_ASSIGN_OR_RETURN(CopyQueue::Pending out, to_host_.ToHost(buffer, base_ + range.offset));
    TC_RETURN_IF_ERROR(out.Await());
    DigestBuilder digest;
    TC_RETURN_IF_ERROR(workers[thread]->rebuilder.Rebuild({&path, 1}, chunk, buffer, buffer, &digest));
    TC_RETURN_IF_ERROR(digests.AddDone(chunk, digest.Finish()));
    const std::span<const std::byte> made = buffer;
    TC_ASSIGN_OR_RETURN(CopyQueue::Pending in, to_device_.ToDevice(target_ + range.offset, {&made, 1}));
    return in.Await();
  });
}

absl::StatusOr<double> GpuRebuild::Copy() {
  return MakeAll(base_digests_, [&](size_t, uint32_t chunk, Digests& digests) {
    const ByteRange range = layout_.chunk(chunk);
    return digests.Add(chunk, direct_.Begin(target_ + range.offset, base_ + range.offset, range.bytes));
  });
}

}  // namespace tensorcast::bench
