#include "core/device/direct_copies.h"

#include <utility>

#include "base/status.h"

namespace tensorcast {
namespace {

// Room for more copies at once than many ingests have.
constexpr uint64_t kRoomBytes = uint64_t{16} << 10;

}  // namespace

// A lane serves one copy at a time: Begin takes one, and Await gives it back. Lanes that are idle are kept
// for each device. A lane that failed ends, with its stream; only the place of its digest is used again.
struct DirectCopies::Lane {
  int device = -1;
  std::unique_ptr<Stream> stream;
  DigestBytes* digest = nullptr;  // where the stream puts it
};

DirectCopies::Pending::Pending(DirectCopies* owner, std::unique_ptr<Lane> lane, std::unique_ptr<Event> event)
    : owner_(owner), lane_(std::move(lane)), event_(std::move(event)) {}

DirectCopies::Pending::Pending(Pending&& other) noexcept = default;

DirectCopies::Pending::~Pending() { Await().IgnoreError(); }

absl::StatusOr<DigestBytes> DirectCopies::Pending::Await() {
  if (event_ == nullptr) {
    return absl::FailedPreconditionError("await a copy: the copy was awaited already; await each copy once");
  }
  const absl::Status done = std::exchange(event_, nullptr)->Await();
  // Read before the lane goes back: its next user writes there.
  const DigestBytes digest = *lane_->digest;
  owner_->Give(std::move(lane_), done.ok());
  if (!done.ok()) return done;
  return digest;
}

DirectCopies::DirectCopies(DeviceRuntime* devices) : devices_(devices) {}

DirectCopies::~DirectCopies() {
  absl::MutexLock lock(&mutex_);
  idle_.clear();  // before the room, to which their streams copy
}

bool DirectCopies::Reach(int from, int to) const {
  if (devices_ == nullptr || !devices_->devices()[to].runs_kernels) return false;
  // The stream is the destination's, and reads from the source.
  return devices_->Reaches(to, from);
}

absl::StatusOr<DirectCopies::Pending> DirectCopies::Begin(DevicePtr destination, DevicePtr source,
                                                          uint64_t bytes, bool digest) {
  return Begin({.begin = destination, .bytes = bytes}, digest, [&](Stream& stream) {
    // The same place means that the bytes are there already, and only the digest is wanted.
    return source == destination ? absl::OkStatus() : stream.CopyOnDevice(destination, source, bytes);
  });
}

absl::StatusOr<DirectCopies::Pending> DirectCopies::BeginUpload(
    DevicePtr destination, std::span<const std::span<const std::byte>> source) {
  uint64_t bytes = 0;
  for (const std::span<const std::byte> piece : source) bytes += piece.size();
  return Begin({.begin = destination, .bytes = bytes}, /*digest=*/true, [&](Stream& stream) {
    DevicePtr to = destination;
    for (const std::span<const std::byte> piece : source) {
      TC_RETURN_IF_ERROR(stream.CopyToDevice(to, piece.data(), piece.size()));
      to = to + piece.size();
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<DirectCopies::Pending> DirectCopies::Begin(DeviceRange destination, bool digest,
                                                          absl::FunctionRef<absl::Status(Stream&)> copy) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane, Take(destination.begin.device));
  Stream& stream = *lane->stream;
  absl::Status failed = copy(stream);
  // Without a digest the caller finds zeros, and not the digest of the lane's previous copy. The previous
  // digest was awaited and the next is not enqueued yet, so the host may write here.
  *lane->digest = {};
  if (failed.ok() && digest) failed = stream.Digest({&destination, 1}, {lane->digest, 1});
  if (failed.ok()) {
    absl::StatusOr<std::unique_ptr<Event>> event = stream.Record();
    if (event.ok()) return Pending(this, std::move(lane), *std::move(event));
    failed = event.status();
  }
  // A part of it may be under way, and the caller may free its memory after an error.
  stream.Synchronize().IgnoreError();
  Give(std::move(lane), /*good=*/false);
  return failed;
}

absl::StatusOr<std::unique_ptr<DirectCopies::Lane>> DirectCopies::Take(int device) {
  auto lane = std::make_unique<Lane>();
  {
    absl::MutexLock lock(&mutex_);
    if (std::vector<std::unique_ptr<Lane>>& idle = idle_[device]; !idle.empty()) {
      lane = std::move(idle.back());
      idle.pop_back();
      return lane;
    }
    // Once, under the lock: threads that come here together wait for the one that locks the pages.
    if (!room_.has_value()) TC_RETURN_IF_ERROR(MakeRoom());
    if (free_.empty()) {
      return absl::ResourceExhaustedError(
          "copy between devices: too many copies are running; try again when some of them have ended");
    }
    lane->device = device;
    lane->digest = free_.back();
    free_.pop_back();
  }
  // Without the lock: the driver may take long to make a stream.
  absl::StatusOr<std::unique_ptr<Stream>> stream = devices_->CreateStream(device);
  if (!stream.ok()) {
    Give(std::move(lane), /*good=*/false);
    return stream.status();
  }
  lane->stream = *std::move(stream);
  return lane;
}

absl::Status DirectCopies::MakeRoom() {
  absl::StatusOr<PageLockedMemory> room = PageLockedMemory::Create(devices_, kRoomBytes);
  if (!room.ok()) return Annotate(room.status(), "make room for digests");
  room_.emplace(*std::move(room));
  auto* const digests = reinterpret_cast<DigestBytes*>(room_->bytes().data());
  for (uint64_t i = 0; i < kRoomBytes / sizeof(DigestBytes); ++i) free_.push_back(&digests[i]);
  return absl::OkStatus();
}

void DirectCopies::Give(std::unique_ptr<Lane> lane, bool good) {
  if (!good) lane->stream.reset();  // without the lock: it waits
  absl::MutexLock lock(&mutex_);
  if (good) {
    idle_[lane->device].push_back(std::move(lane));
  } else {
    // The stream is gone; only the place for its digest is used again.
    free_.push_back(lane->digest);
  }
}

}  // namespace tensorcast
