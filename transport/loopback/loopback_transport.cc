#include "transport/loopback/loopback_transport.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "core/replica/availability.h"
#include "transport/loopback/loopback_serving.h"
#include "transport/registered_memory.h"
#include "transport/serving.h"
#include "transport/silent_pull_stall.h"

namespace tensorcast::transport {
namespace {

// Copies between two looks at cancellation, revocation and the other fetches.
constexpr uint64_t kStepBytes = uint64_t{1} << 20;

struct LoopbackFetch {
  uint64_t offset = 0;  // of the next byte
  uint64_t left = 0;
  std::vector<HostSpan> destination;  // what is still to be written
  size_t span = 0;                    // the first of those that is not full
  DevicePtr device_destination;       // where to instead
  FetchDone done;
  DigestBuilder digest;  // of what is copied
  TaskQueue::TimerId timer = TaskQueue::kNoTimer;
};

// A pull's fetches. All of it belongs to the loop's thread, which LoopbackPull posts to.
class LoopbackFetches : public std::enable_shared_from_this<LoopbackFetches> {
 public:
  LoopbackFetches(std::shared_ptr<LoopbackSource> source, std::shared_ptr<TaskLoop> loop,
                  const RegisteredMemory* memory, DeviceRuntime* devices)
      : source_(std::move(source)), loop_(std::move(loop)), memory_(memory), devices_(devices) {
    if (const auto& served = source_->availability(); served != nullptr && !served->complete()) {
      mirror_ = std::make_shared<Availability>(served->image_bytes(), served->chunk_bytes());
    }
  }

  TaskLoop& loop() { return *loop_; }
  const std::shared_ptr<Availability>& mirror() const { return mirror_; }

  // Until Ignore, which is called before the pull is gone.
  void Follow() {
    follower_ = source_->Follow([this] { PostFollowUp(); });
    PostFollowUp();
  }
  void Ignore() { source_->Ignore(follower_); }

  void SetSilenceLimit(absl::Duration limit) { silence_.set_limit(limit); }

  void Start(FetchId id, LoopbackFetch fetch, SteadyTime deadline) {
    if (!broken_.ok()) {
      fetch.done(broken_);
      return;
    }
    const absl::StatusOr<uint64_t> bytes =
        CheckFetch(*memory_, source_->image_bytes(), fetch.offset, fetch.destination);
    if (!bytes.ok()) {
      fetch.done(bytes.status());
      return;
    }
    const auto& served = source_->availability();
    if (*bytes > 0 && served != nullptr && !served->HasRange(fetch.offset, *bytes)) {
      fetch.done(
          absl::FailedPreconditionError(absl::StrCat("the source does not have all of ", *bytes, " bytes at ",
                                                     fetch.offset, " yet: ask it for what it announces")));
      return;
    }
    source_->counter().AddRequest();
    fetch.left = *bytes;
    fetch.timer = loop_->queue().At(deadline, [this, id] { Expire(id); });
    fetches_.emplace(id, std::move(fetch));
    if (deadline <= SteadyNow()) {
      Expire(id);
    } else {
      silence_.Start();
      Step(id);
    }
  }

  void CancelFetch(FetchId id) { FinishOne(id, absl::CancelledError("the fetch was cancelled")); }

  void Cancel() { End(absl::CancelledError("the pull was cancelled")); }

 private:
  void PostFollowUp() {
    if (follow_up_posted_.exchange(true)) return;
    loop_->Post([self = shared_from_this()] {
      self->follow_up_posted_ = false;
      self->FollowUp();
    });
  }

  // Brings the mirror up to date, and ends the pull with its source.
  void FollowUp() {
    if (!broken_.ok()) return;
    if (source_->revoked()) {
      Break(absl::UnavailableError("the source revoked the pull"));
      return;
    }
    const auto& served = source_->availability();
    if (served == nullptr) return;
    if (served->ended() && !served->end().ok()) {
      Break(served->end());
      return;
    }
    if (mirror_ == nullptr) return;
    mirror_->AddWords(0, served->Words());
    if (mirror_->complete()) mirror_->End(absl::OkStatus());
  }

  void PostStep(FetchId id) {
    loop_->Post([self = shared_from_this(), id] { self->Step(id); });
  }

  // One step of one fetch, then the loop's other tasks: so several fetches go on side by side, and a
  // cancellation or a revocation comes between two steps.
  void Step(FetchId id) {
    auto it = fetches_.find(id);
    if (it == fetches_.end()) return;
    LoopbackFetch& fetch = it->second;
    if (fetch.left == 0) {
      Finish(it, fetch.device_destination ? std::nullopt : std::make_optional(fetch.digest.Finish()));
    } else if (source_->device_image()) {
      if (source_->BeginUse()) {
        CopyFromDevice(id, fetch);
        source_->EndUse();
      } else {
        Break(absl::UnavailableError("the source revoked the pull"));
      }
    } else if (!source_->in_place()) {
      StartRead(id, fetch);
    } else if (source_->BeginUse()) {
      // Between BeginUse and EndUse a revocation waits.
      Copy(id, fetch, source_->InPlace(fetch.offset, std::min(fetch.left, kStepBytes)));
      source_->EndUse();
    } else {
      Break(absl::UnavailableError("the source revoked the pull"));
    }
  }

  void StartRead(FetchId id, const LoopbackFetch& fetch) {
    source_->ReadStaged(
        fetch.offset, fetch.left, [self = shared_from_this(), id](absl::StatusOr<ServedPiece> piece) {
          self->loop_->Post([self, id, piece = std::move(piece)] { self->PieceRead(id, piece); });
        });
  }

  void PieceRead(FetchId id, const absl::StatusOr<ServedPiece>& piece) {
    auto it = fetches_.find(id);
    if (it == fetches_.end()) return;
    if (!piece.ok()) {
      Break(piece.status());
    } else if (piece->bytes.empty() || piece->bytes.size() > it->second.left) {
      Break(absl::InternalError("a served image read more bytes than it was asked for, or none"));
    } else if (!source_->BeginUse()) {
      Break(absl::UnavailableError("the source revoked the pull"));
    } else {
      Copy(id, it->second, piece->bytes);
      source_->EndUse();
    }
  }

  void Silent() {
    Break(absl::DeadlineExceededError(
        absl::StrCat("no byte arrived for ", absl::FormatDuration(silence_.limit()))));
  }

  // The next bytes of the fetch, from host memory; then it goes on. One that fails breaks the pull.
  void Copy(FetchId id, LoopbackFetch& fetch, ConstHostSpan bytes) {
    if (fetch.device_destination) {
      GoOn(id, fetch, bytes.size(), OnDevice(*devices_, fetch.device_destination.device, [&](Stream& stream) {
             return stream.CopyToDevice(fetch.device_destination, bytes.data(), bytes.size());
           }));
      return;
    }
    const uint64_t count = bytes.size();
    while (!bytes.empty()) {
      HostSpan& to = fetch.destination[fetch.span];
      const size_t part = std::min(to.size(), bytes.size());
      fetch.digest.UpdateAndCopy(to.data(), bytes.first(part));
      to = to.subspan(part);
      bytes = bytes.subspan(part);
      if (to.empty()) ++fetch.span;
    }
    GoOn(id, fetch, count, absl::OkStatus());
  }

  // Likewise, from the GPU that has the image: the two ends may know the devices of one host each.
  void CopyFromDevice(FetchId id, LoopbackFetch& fetch) {
    wire_.resize(std::min(fetch.left, kStepBytes));
    const DevicePtr from = source_->device_image() + fetch.offset;
    const absl::Status read = OnDevice(*source_->devices(), from.device, [&](Stream& stream) {
      return stream.CopyToHost(wire_.data(), from, wire_.size());
    });
    if (!read.ok()) return Break(read);
    Copy(id, fetch, wire_);
  }

  static absl::Status OnDevice(DeviceRuntime& devices, int device,
                               absl::FunctionRef<absl::Status(Stream&)> copy) {
    TC_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, devices.CreateStream(device));
    TC_RETURN_IF_ERROR(copy(*stream));
    return stream->Synchronize();
  }

  // So many bytes more are in their place, unless copying them failed.
  void GoOn(FetchId id, LoopbackFetch& fetch, uint64_t bytes, const absl::Status& copied) {
    if (!copied.ok()) return Break(copied);
    silence_.BytesArrived();
    source_->counter().AddBytes(bytes);
    fetch.offset += bytes;
    fetch.left -= bytes;
    if (fetch.device_destination) fetch.device_destination = fetch.device_destination + bytes;
    PostStep(id);
  }

  void Finish(std::map<FetchId, LoopbackFetch>::iterator it, const FetchResult& result) {
    loop_->queue().CancelTimer(it->second.timer);
    const FetchDone done = std::move(it->second.done);
    fetches_.erase(it);
    if (fetches_.empty()) silence_.Stop();
    done(result);
  }

  void Expire(FetchId id) {
    FinishOne(id, absl::DeadlineExceededError("a fetch did not complete before its deadline"));
  }

  // Ends this fetch alone; a read that it waits for finds it gone.
  void FinishOne(FetchId id, const absl::Status& status) {
    if (const auto it = fetches_.find(id); it != fetches_.end()) Finish(it, status);
  }

  // What went wrong at the source ends the pull.
  void Break(const absl::Status& status) { End(AsPullEnd(status)); }

  void End(const absl::Status& status) {
    if (broken_.ok()) broken_ = status;
    if (mirror_ != nullptr) mirror_->End(broken_);
    while (!fetches_.empty()) Finish(fetches_.begin(), broken_);
  }

  const std::shared_ptr<LoopbackSource> source_;
  const std::shared_ptr<TaskLoop> loop_;
  const RegisteredMemory* const memory_;
  DeviceRuntime* const devices_;          // the receiver's; null: it has none
  std::vector<std::byte> wire_;           // what is on its way from a GPU
  std::shared_ptr<Availability> mirror_;  // of what the source has; null: everything
  uint64_t follower_ = 0;
  std::atomic<bool> follow_up_posted_ = false;
  std::map<FetchId, LoopbackFetch> fetches_;
  SilentPullStall silence_{&loop_->queue(), [this] { Silent(); }};  // while fetches are pending
  absl::Status broken_;
};

class LoopbackPull : public Pull {
 public:
  explicit LoopbackPull(std::shared_ptr<LoopbackFetches> core) : core_(std::move(core)) { core_->Follow(); }
  ~LoopbackPull() override {
    core_->Ignore();
    core_->loop().Run([this] { core_->Cancel(); });
  }

  FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                FetchDone done) override {
    LoopbackFetch fetch;
    fetch.offset = offset;
    fetch.destination = std::move(destination);
    fetch.done = std::move(done);
    return Post(std::move(fetch), deadline);
  }

  FetchId FetchToDevice(uint64_t offset, DevicePtr destination, uint64_t bytes, SteadyTime deadline,
                        FetchDone done) override {
    LoopbackFetch fetch;
    fetch.offset = offset;
    fetch.destination = {AddressesOf(destination, bytes)};
    fetch.device_destination = destination;
    fetch.done = std::move(done);
    return Post(std::move(fetch), deadline);
  }

  void CancelFetch(FetchId fetch) override {
    core_->loop().Post([core = core_, fetch] { core->CancelFetch(fetch); });
  }

  void SetSilenceLimit(absl::Duration limit) override {
    core_->loop().Post([core = core_, limit] { core->SetSilenceLimit(limit); });
  }

  void Cancel() override {
    core_->loop().Post([core = core_] { core->Cancel(); });
  }

  std::shared_ptr<const Availability> availability() const override { return core_->mirror(); }

 private:
  FetchId Post(LoopbackFetch fetch, SteadyTime deadline) {
    const FetchId id = ++fetches_made_;
    core_->loop().Post([core = core_, id, fetch = std::move(fetch), deadline]() mutable {
      core->Start(id, std::move(fetch), deadline);
    });
    return id;
  }

  const std::shared_ptr<LoopbackFetches> core_;
  std::atomic<FetchId> fetches_made_ = 0;
};

class LoopbackTransport : public Transport {
 public:
  explicit LoopbackTransport(const LoopbackOptions& options)
      : options_(options),
        threads_(options.serving_threads),
        loop_(std::make_shared<TaskLoop>("tc-loopback")) {}
  ~LoopbackTransport() override { loop_->Stop(); }

  std::string_view name() const override { return options_.name; }

  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override {
    return memory_.Add(base, bytes).status();
  }

  LaneMemory memory() const override {
    return options_.devices == nullptr ? LaneMemory::kHost : LaneMemory::kHostAndDevice;
  }

  absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr base, uint64_t bytes) override {
    if (options_.devices == nullptr) return Transport::RegisterDevice(base, bytes);
    if (options_.before_register_device) TC_RETURN_IF_ERROR(options_.before_register_device());
    TC_ASSIGN_OR_RETURN(const RegisteredMemory::AddedDevice added, memory_.AddDevice(base, bytes));
    return std::shared_ptr<void>(nullptr, [this, added](void*) { memory_.RemoveDevice(added.region); });
  }

  absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                 std::string_view /*receiver*/) override {
    TC_RETURN_IF_ERROR(CheckInPlace(memory_, *image));
    std::shared_ptr<void> hold;
    if (const DevicePtr on_device = image->device_image(); on_device && options_.devices != nullptr) {
      TC_ASSIGN_OR_RETURN(hold, RegisterDevice(on_device, image->image_bytes()));
    }
    return RegisterLoopbackServing(
        std::make_shared<LoopbackSource>(std::move(image), &threads_, options_.devices), std::move(hold));
  }

  absl::StatusOr<std::unique_ptr<Pull>> Connect(const RequestContext& context,
                                                std::string_view descriptor) override {
    TC_RETURN_IF_ERROR(context.Check("connecting to a loopback serving"));
    TC_ASSIGN_OR_RETURN(const PullId id, DecodeLoopbackDescriptor(descriptor));
    std::shared_ptr<LoopbackSource> source = FindLoopbackSource(id);
    if (source == nullptr) return absl::NotFoundError("the source does not serve this pull (any more)");
    if (const auto& served = source->availability(); served != nullptr && served->ended()) {
      TC_RETURN_IF_ERROR(served->end());
    }
    source->counter().SetReceiverTrace(context.trace);
    return std::make_unique<LoopbackPull>(
        std::make_shared<LoopbackFetches>(std::move(source), loop_, &memory_, options_.devices));
  }

 private:
  const LoopbackOptions options_;
  RegisteredMemory memory_;
  ServingThreads threads_;
  // Shared with reads that a pull gave up, which may end later than this transport.
  const std::shared_ptr<TaskLoop> loop_;
};

}  // namespace

std::unique_ptr<Transport> NewLoopbackTransport(const LoopbackOptions& options) {
  return std::make_unique<LoopbackTransport>(options);
}

}  // namespace tensorcast::transport
