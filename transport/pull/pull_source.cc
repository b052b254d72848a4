#include "transport/pull/pull_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::transport::pull {
namespace {

constexpr int kLogSeconds = 10;

class PullServing : public Serving {
 public:
  PullServing(PullSource* source, std::shared_ptr<SourceServing> serving, std::string descriptor,
              std::shared_ptr<void> hold)
      : source_(source),
        hold_(std::move(hold)),
        serving_(std::move(serving)),
        descriptor_(std::move(descriptor)) {}
  ~PullServing() override { End(); }
  void End() override { source_->Revoke(*serving_); }

  const std::string& descriptor() const override { return descriptor_; }
  ServeStats stats() const override { return serving_->counter().stats(); }

 private:
  PullSource* const source_;
  const std::shared_ptr<void> hold_;  // of the image's memory: goes when nothing reads it any more
  const std::shared_ptr<SourceServing> serving_;
  const std::string descriptor_;
};

}  // namespace

absl::Status PullSource::CheckImage(const RegisteredMemory& memory, const ServedImage& image) {
  TC_RETURN_IF_ERROR(CheckInPlace(memory, image));
  const auto availability = image.availability();
  if (availability == nullptr || availability->complete()) return absl::OkStatus();
  if (availability->image_bytes() != image.image_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "serve an image of ", image.image_bytes(), " bytes: the availability describes an image of ",
        availability->image_bytes(), " bytes; report this defect of the daemon"));
  }
  const absl::Status filling = CheckFilling(image.image_bytes(), availability->chunk_bytes());
  return filling.ok() ? filling : absl::FailedPreconditionError(filling.message());
}

absl::StatusOr<std::unique_ptr<Serving>> PullSource::Serve(std::shared_ptr<ServedImage> image,
                                                           std::string receiver, Descriptor descriptor,
                                                           std::shared_ptr<void> hold) {
  auto serving = std::make_shared<SourceServing>(NewPullId(), std::move(image), std::move(receiver));
  descriptor.lane = std::string(lane_);
  descriptor.pull_id = serving->id();
  descriptor.image_bytes = serving->image_bytes();
  std::string bytes = EncodeDescriptor(descriptor);
  if (bytes.size() > kMaxDescriptorBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("serve an image over the lane ", lane_, ": the image is in ", descriptor.segments.size(),
                     " pieces of memory, which need a descriptor of ", bytes.size(), " bytes, and at most ",
                     kMaxDescriptorBytes, " bytes are allowed; use another lane"));
  }
  {
    absl::MutexLock lock(&mutex_);
    // The id is random and secret: knowing it is what lets a connection in.
    servings_.emplace(serving->id(), serving);
  }
  return std::make_unique<PullServing>(this, std::move(serving), std::move(bytes), std::move(hold));
}

void PullSource::Revoke(SourceServing& serving) {
  // First no connection can find it any more, then those that have joined are ended.
  {
    absl::MutexLock lock(&mutex_);
    servings_.erase(serving.id());
  }
  serving.Revoke();
}

// The order: the version, the secret id, the certificate's name, and then a place in the serving. A peer
// without the id learns only that nothing is served under it.
absl::StatusOr<std::shared_ptr<SourceConnection>> PullSource::Admit(const Hello& hello, std::string_view peer,
                                                                    TaskQueue* queue) {
  TC_RETURN_IF_ERROR(CheckVersion(hello));
  std::shared_ptr<SourceServing> serving;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = servings_.find(hello.pull_id);
    if (found != servings_.end()) serving = found->second;
  }
  if (serving == nullptr) {
    return absl::NotFoundError("the source does not serve this pull; ask for a new grant");
  }
  // A node with a good certificate and another node's pull id stole that, or was given it.
  if (!serving->receiver().empty() && peer != serving->receiver()) {
    otel::metrics::kP2pConnectionsRefused.Add(1, {lane_, "receiver"});
    LOG_EVERY_N_SEC(WARNING, kLogSeconds)
        << "serve a pull to " << serving->receiver() << ": refuse " << peer
        << ", which knows the secret id of this pull; find out how " << peer << " got the id";
    return absl::PermissionDeniedError(
        absl::StrCat("this pull was not granted to ", peer, "; ask for a grant"));
  }
  SourceLimits limits = limits_;
  // The smaller of both ends' limits; 0 means that the receiver has none.
  if (hello.max_piece_bytes > 0) limits.piece_bytes = std::min(limits.piece_bytes, hello.max_piece_bytes);
  auto connection = std::make_shared<SourceConnection>(queue, &threads_, limits, serving);
  // It may have been revoked since it was found.
  TC_RETURN_IF_ERROR(serving->Join(connection));
  if (auto trace = TraceContext::FromTraceparent(hello.traceparent)) {
    serving->counter().SetReceiverTrace(*trace);
  }
  return connection;
}

}  // namespace tensorcast::transport::pull
