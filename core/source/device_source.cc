#include "core/source/device_source.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// Large enough that a copy's fixed cost vanishes, small enough that the digest still finds the bytes in the
// cache. While one fetch digests, the others copy.
constexpr uint64_t kStepBytes = uint64_t{4} << 20;

// Streams for as many fetches at a time; more wait for one.
class StreamPool {
 public:
  explicit StreamPool(std::vector<std::unique_ptr<Stream>> streams) : idle_(std::move(streams)) {}

  std::unique_ptr<Stream> Take() {
    absl::MutexLock lock(&mutex_);
    auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !idle_.empty(); };
    mutex_.Await(absl::Condition(&any));
    std::unique_ptr<Stream> stream = std::move(idle_.back());
    idle_.pop_back();
    return stream;
  }

  void Give(std::unique_ptr<Stream> stream) {
    absl::MutexLock lock(&mutex_);
    idle_.push_back(std::move(stream));
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Stream>> idle_ ABSL_GUARDED_BY(mutex_);
};

class DeviceSource final : public ChunkSource {
 public:
  DeviceSource(SourceInfo info, DevicePtr image, std::shared_ptr<void> keep_alive,
               std::vector<std::unique_ptr<Stream>> streams, std::shared_ptr<const Availability> availability,
               bool in_place)
      : keep_alive_(std::move(keep_alive)),
        availability_(std::move(availability)),
        info_(std::move(info)),
        image_(image),
        in_place_(in_place),
        max_concurrency_(static_cast<int>(streams.size())),
        streams_(std::move(streams)) {}

  const SourceInfo& info() const override { return info_; }
  int max_concurrency() const override { return max_concurrency_; }
  std::shared_ptr<const Availability> availability() const override { return availability_; }
  bool in_place() const override { return in_place_; }

  absl::StatusOr<std::optional<ChunkDigests>> Fetch(const RequestContext& context,
                                                    const ChunkRequest& request) override {
    TC_RETURN_IF_ERROR(CheckDestination(info_, request));
    if (availability_ != nullptr && !availability_->HasRange(request.range.offset, request.range.bytes)) {
      return absl::FailedPreconditionError(
          absl::StrCat(DescribeFetch(info_, request), ": it is not there yet"));
    }
    std::unique_ptr<Stream> stream = streams_.Take();
    absl::StatusOr<std::optional<ChunkDigests>> digest = FetchOn(*stream, context, request);
    streams_.Give(std::move(stream));
    return digest;
  }

 private:
  absl::StatusOr<std::optional<ChunkDigests>> FetchOn(Stream& stream, const RequestContext& context,
                                                      const ChunkRequest& request) {
    const std::string what = DescribeFetch(info_, request);
    DigestBuilder digest(request.blake3);
    DevicePtr source = image_ + request.range.offset;
    for (HostSpan destination : request.destination) {
      while (!destination.empty()) {
        TC_RETURN_IF_ERROR(context.Check(what));
        const HostSpan step = destination.first(std::min<uint64_t>(kStepBytes, destination.size()));
        TC_RETURN_IF_ERROR(Annotate(CopyAndWait(stream, step, source), what));
        digest.Update(step);
        destination = destination.subspan(step.size());
        source = source + step.size();
      }
    }
    return digest.FinishChunk();
  }

  // Whatever happens, nothing writes to `destination` any more when this returns.
  static absl::Status CopyAndWait(Stream& stream, HostSpan destination, DevicePtr source) {
    absl::Status enqueued = stream.CopyToHost(destination.data(), source, destination.size());
    const absl::Status done = stream.Synchronize();
    return enqueued.ok() ? done : enqueued;
  }

  const std::shared_ptr<void> keep_alive_;                  // first: the streams end before the memory goes
  const std::shared_ptr<const Availability> availability_;  // null: all is there
  const SourceInfo info_;
  const DevicePtr image_;
  const bool in_place_;
  const int max_concurrency_;
  StreamPool streams_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkSource>> MakeDeviceSource(
    SourceInfo info, DeviceRuntime* devices, DevicePtr image, std::shared_ptr<void> keep_alive,
    int max_concurrency, std::shared_ptr<const Availability> availability, bool in_place) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < std::max(1, max_concurrency); ++i) {
    auto stream = devices->CreateStream(image.device);
    if (!stream.ok()) return Annotate(stream.status(), absl::StrCat("reading ", info.name));
    streams.push_back(*std::move(stream));
  }
  return std::make_unique<DeviceSource>(std::move(info), image, std::move(keep_alive), std::move(streams),
                                        std::move(availability), in_place);
}

}  // namespace tensorcast
