#include "core/source/device_source.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/device/copy_queue.h"

namespace tensorcast {
namespace {

// Large enough that a copy's fixed cost vanishes, small enough that the digest still finds the bytes in the
// cache.
constexpr uint64_t kDeviceStepBytes = uint64_t{4} << 20;
// Of one fetch: while a step is digested, the next one is copied and another waits for the copy engine. Few,
// so that a fetch that is cancelled ends soon.
constexpr size_t kStepsUnderWay = 3;

// A fetch copies the chunk to the host in steps and digests each step behind the copy of the next, so that
// the device's copy engine and the processor work at the same time. All fetches share one queue.
class DeviceSource final : public ChunkSource {
 public:
  DeviceSource(SourceInfo info, DevicePtr image, std::shared_ptr<void> keep_alive,
               std::unique_ptr<CopyQueue> copies, int max_concurrency,
               std::shared_ptr<const Availability> availability, bool in_place)
      : keep_alive_(std::move(keep_alive)),
        availability_(std::move(availability)),
        info_(std::move(info)),
        image_(image),
        in_place_(in_place),
        max_concurrency_(std::max(1, max_concurrency)),
        copies_(std::move(copies)) {}

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return max_concurrency_; }
  std::shared_ptr<const Availability> availability() const override { return availability_; }
  DevicePtr device_image() const override { return image_; }
  bool in_place() const override { return in_place_; }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    if (availability_ != nullptr && !availability_->HasRange(request.range.offset, request.range.bytes)) {
      return absl::FailedPreconditionError(
          absl::StrCat(DescribeFetch(info_, request),
                       ": the source does not have the chunk yet; fetch the chunk when the source has it"));
    }
    const std::string what = DescribeFetch(info_, request);
    const std::vector<HostSpan> steps = StepsOf(request.destination);
    DigestBuilder digest(request.blake3);
    DevicePtr source = image_ + request.range.offset;
    size_t begun = 0;
    // However this returns, it awaits them first: nothing writes to the destination any more.
    std::deque<CopyQueue::Pending> under_way;
    for (const HostSpan step : steps) {
      TC_RETURN_IF_ERROR(context.Check(what));
      // Copies of one queue end in their order, so that the front is always the next to be digested.
      for (; begun < steps.size() && under_way.size() < kStepsUnderWay; ++begun) {
        absl::StatusOr<CopyQueue::Pending> copy = copies_->ToHost(steps[begun], source);
        if (!copy.ok()) return Annotate(copy.status(), what);
        under_way.push_back(*std::move(copy));
        source = source + steps[begun].size();
      }
      TC_RETURN_IF_ERROR(Annotate(under_way.front().Await(), what));
      under_way.pop_front();
      digest.Update(step);
    }
    return digest.FinishChunk();
  }

 private:
  static std::vector<HostSpan> StepsOf(std::span<const HostSpan> destination) {
    std::vector<HostSpan> steps;
    for (HostSpan rest : destination) {
      while (!rest.empty()) {
        steps.push_back(rest.first(std::min<uint64_t>(kDeviceStepBytes, rest.size())));
        rest = rest.subspan(steps.back().size());
      }
    }
    return steps;
  }

  const std::shared_ptr<void> keep_alive_;                  // first: the stream ends before the memory goes
  const std::shared_ptr<const Availability> availability_;  // null: all is there
  const SourceInfo info_;
  const DevicePtr image_;
  const bool in_place_;
  const int max_concurrency_;
  const std::unique_ptr<CopyQueue> copies_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkSource>> MakeDeviceSource(
    SourceInfo info, DeviceRuntime* devices, DevicePtr image, std::shared_ptr<void> keep_alive,
    int max_concurrency, std::shared_ptr<const Availability> availability, bool in_place) {
  auto copies = std::make_unique<CopyQueue>(devices, image.device);
  if (const absl::Status open = copies->Open(); !open.ok()) {
    return Annotate(open, absl::StrCat("read the image of ", info.name));
  }
  return std::make_unique<DeviceSource>(std::move(info), image, std::move(keep_alive), std::move(copies),
                                        max_concurrency, std::move(availability), in_place);
}

}  // namespace tensorcast
