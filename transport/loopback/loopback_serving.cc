#include "transport/loopback/loopback_serving.h"

#include <utility>

#include "absl/base/no_destructor.h"
#include "absl/container/flat_hash_map.h"
#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "transport/registered_memory.h"

namespace tensorcast::transport {
namespace {

constexpr std::string_view kMagic = "TCLB";
constexpr uint8_t kVersion = 1;

// Both ends of a loopback pull are in this process: a descriptor is a name in this table.
struct Registry {
  absl::Mutex mutex;
  absl::flat_hash_map<PullId, std::shared_ptr<LoopbackSource>> sources ABSL_GUARDED_BY(mutex);
};

Registry& GlobalRegistry() {
  static absl::NoDestructor<Registry> registry;
  return *registry;
}

class LoopbackServing : public Serving {
 public:
  LoopbackServing(std::shared_ptr<LoopbackSource> source, std::shared_ptr<void> hold)
      : id_(NewPullId()),
        descriptor_(EncodeLoopbackDescriptor(id_)),
        hold_(std::move(hold)),
        source_(std::move(source)) {
    Registry& registry = GlobalRegistry();
    absl::MutexLock lock(&registry.mutex);
    registry.sources.emplace(id_, source_);
  }

  ~LoopbackServing() override {
    Registry& registry = GlobalRegistry();
    {
      absl::MutexLock lock(&registry.mutex);
      registry.sources.erase(id_);
    }
    // After its name is gone: no new pull finds it meanwhile.
    source_->Revoke();
  }

  const std::string& descriptor() const override { return descriptor_; }
  ServeStats stats() const override { return source_->counter().stats(); }

 private:
  const PullId id_;
  const std::string descriptor_;
  const std::shared_ptr<void> hold_;  // of the image's memory
  const std::shared_ptr<LoopbackSource> source_;
};

}  // namespace

LoopbackSource::LoopbackSource(std::shared_ptr<ServedImage> image, ServingThreads* threads,
                               DeviceRuntime* devices)
    : image_(std::move(image)),
      threads_(threads),
      image_bytes_(image_->image_bytes()),
      in_place_(image_->in_place()),
      devices_(devices),
      device_image_(devices == nullptr ? DevicePtr() : image_->device_image()),
      availability_(image_->availability()) {
  if (availability_ != nullptr) watch_ = availability_->OnChange([this] { TellFollowers(); });
}

uint64_t LoopbackSource::Follow(std::function<void()> changed) {
  absl::MutexLock lock(&mutex_);
  followers_.emplace(++followers_made_, std::move(changed));
  return followers_made_;
}

void LoopbackSource::Ignore(uint64_t follower) {
  absl::MutexLock lock(&mutex_);
  followers_.erase(follower);
}

void LoopbackSource::TellFollowers() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, changed] : followers_) changed();
}

bool LoopbackSource::BeginUse() {
  absl::MutexLock lock(&mutex_);
  if (revoked_) return false;
  ++users_;
  return true;
}

void LoopbackSource::EndUse() {
  absl::MutexLock lock(&mutex_);
  CHECK_GT(users_, 0);
  --users_;
}

bool LoopbackSource::revoked() {
  absl::MutexLock lock(&mutex_);
  return revoked_;
}

ConstHostSpan LoopbackSource::InPlace(uint64_t offset, uint64_t bytes) const {
  return image_->Segments(offset, bytes).front();
}

void LoopbackSource::ReadStaged(uint64_t offset, uint64_t bytes,
                                absl::AnyInvocable<void(absl::StatusOr<ServedPiece>)> done) {
  if (!BeginUse()) {
    done(absl::UnavailableError("the source revoked the pull"));
    return;
  }
  threads_->Submit([self = shared_from_this(), offset, bytes, done = std::move(done)]() mutable {
    // In use until the read has ended, wanted or not: it reads what a revocation would free.
    done(self->image_->Read(offset, bytes));
    self->EndUse();
  });
}

// Blocks until no thread reads the image: after this the lease may end. Pulls that are left
// keep nothing of one on a GPU; pieces that they read of another may be on their way yet.
void LoopbackSource::Revoke() {
  std::shared_ptr<ServedImage> image;  // goes after the lock
  absl::MutexLock lock(&mutex_);
  revoked_ = true;
  for (const auto& [id, changed] : followers_) changed();
  mutex_.Await(absl::Condition(this, &LoopbackSource::Unused));
  if (device_image_) image = std::move(image_);
}

std::string EncodeLoopbackDescriptor(const PullId& id) {
  return ByteWriter().Put(kMagic).Put(kVersion).Put(AsBytes(id)).Take();
}

absl::StatusOr<PullId> DecodeLoopbackDescriptor(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.GetBytes(kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("not a loopback descriptor");
  }
  const uint8_t version = reader.Get<uint8_t>();
  if (reader.ok() && version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("loopback descriptor of version ", version, ", ",
                                                      kVersion, " is what this process understands"));
  }
  const std::string_view id = reader.GetBytes(PullId().size());
  if (!reader.AtEnd()) return absl::InvalidArgumentError("a loopback descriptor of the wrong length");
  return PullIdFromBytes(id);
}

std::unique_ptr<Serving> RegisterLoopbackServing(std::shared_ptr<LoopbackSource> source,
                                                 std::shared_ptr<void> hold) {
  return std::make_unique<LoopbackServing>(std::move(source), std::move(hold));
}

std::shared_ptr<LoopbackSource> FindLoopbackSource(const PullId& id) {
  Registry& registry = GlobalRegistry();
  absl::MutexLock lock(&registry.mutex);
  auto it = registry.sources.find(id);
  return it == registry.sources.end() ? nullptr : it->second;
}

}  // namespace tensorcast::transport
