#include "core/handles/handle_client.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/handles/client_channel.h"

namespace tensorcast {
namespace {

constexpr absl::Duration kCloseTimeout = absl::Seconds(5);

uint64_t RoundUpToGranule(uint64_t bytes) {
  return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

absl::Status BadExtents(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the daemon's extents of the replica ", what));
}

// The extents as far as the image needs them, whole granules each; checked against the pool as it is, so that
// no access behind its end can raise SIGBUS.
absl::StatusOr<std::vector<Extent>> ExtentsOfImage(int pool_fd, const HostHandles& host,
                                                   uint64_t image_bytes) {
  struct stat pool;
  if (fstat(pool_fd, &pool) != 0) return ErrnoStatus(errno, "looking at", "the daemon's pool");
  const uint64_t pool_bytes = std::min(host.pool_bytes, static_cast<uint64_t>(pool.st_size));
  std::vector<Extent> needed;
  uint64_t left = image_bytes;
  for (const Extent& extent : host.extents) {
    if (left == 0) break;
    if (extent.offset % kGranuleBytes != 0 || extent.bytes % kGranuleBytes != 0 || extent.bytes == 0) {
      return BadExtents("are not whole granules");
    }
    if (extent.offset > pool_bytes || extent.bytes > pool_bytes - extent.offset) {
      return BadExtents("reach past the pool");
    }
    const uint64_t covered = std::min(extent.bytes, left);
    needed.push_back({extent.offset, RoundUpToGranule(covered)});
    left -= covered;
  }
  if (left > 0) return BadExtents(absl::StrCat("lack ", left, " bytes of the image"));
  return needed;
}

// Address space at a granule's boundary, which huge pages need, that nothing can be read from yet.
absl::StatusOr<std::byte*> Reserve(uint64_t bytes) {
  void* reserved =
      mmap(nullptr, bytes + kGranuleBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return ErrnoStatus(errno, "reserving address space for", "a replica");
  const auto address = reinterpret_cast<uint64_t>(reserved);
  const uint64_t before = RoundUpToGranule(address) - address;
  const uint64_t behind = kGranuleBytes - before;
  std::byte* const aligned = static_cast<std::byte*>(reserved) + before;
  if (before > 0) munmap(reserved, before);
  if (behind > 0) munmap(aligned + bytes, behind);
  return aligned;
}

}  // namespace

// Extents of the pool, mapped side by side for reading. Immutable.
class ClaimedReplica::ImageMap {
 public:
  // INVALID_ARGUMENT when the extents do not lie in the pool, hold less than the image, or cannot be laid
  // side by side; RESOURCE_EXHAUSTED when this process may map no more.
  static absl::StatusOr<std::unique_ptr<ImageMap>> Map(int pool_fd, const HostHandles& host,
                                                       uint64_t image_bytes);
  ~ImageMap();
  ImageMap(const ImageMap&) = delete;
  ImageMap& operator=(const ImageMap&) = delete;

  ConstHostSpan image() const { return {base_, image_bytes_}; }

 private:
  ImageMap(std::byte* base, uint64_t mapped_bytes, uint64_t image_bytes)
      : base_(base), mapped_bytes_(mapped_bytes), image_bytes_(image_bytes) {}

  std::byte* const base_;
  const uint64_t mapped_bytes_;
  const uint64_t image_bytes_;
};

absl::StatusOr<std::unique_ptr<ClaimedReplica::ImageMap>> ClaimedReplica::ImageMap::Map(
    int pool_fd, const HostHandles& host, uint64_t image_bytes) {
  if (image_bytes == 0) return std::unique_ptr<ImageMap>(new ImageMap(nullptr, 0, 0));
  TC_ASSIGN_OR_RETURN(const std::vector<Extent> extents, ExtentsOfImage(pool_fd, host, image_bytes));
  const uint64_t mapped_bytes = RoundUpToGranule(image_bytes);
  TC_ASSIGN_OR_RETURN(std::byte * base, Reserve(mapped_bytes));
  std::unique_ptr<ImageMap> map(new ImageMap(base, mapped_bytes, image_bytes));
  std::byte* at = base;
  for (const Extent& extent : extents) {
    if (mmap(at, extent.bytes, PROT_READ, MAP_SHARED | MAP_FIXED, pool_fd,
             static_cast<off_t>(extent.offset)) == MAP_FAILED) {
      return ErrnoStatus(errno, "mapping a replica of", absl::StrCat(extents.size(), " extents"));
    }
    at += extent.bytes;
  }
  return map;
}

ClaimedReplica::ImageMap::~ImageMap() {
  if (mapped_bytes_ > 0) munmap(base_, mapped_bytes_);
}

ClaimedReplica::ClaimedReplica(std::unique_ptr<ClientChannel> channel, ReplicaHandles handles, UniqueFd fd)
    : channel_(std::move(channel)), handles_(std::move(handles)), fd_(std::move(fd)) {}

ClaimedReplica::~ClaimedReplica() = default;

absl::StatusOr<std::unique_ptr<ClaimedReplica>> ClaimedReplica::Claim(const std::string& socket_path,
                                                                      std::string_view ticket,
                                                                      SteadyTime deadline) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ClientChannel> channel, ClientChannel::Connect(socket_path, deadline));
  TC_ASSIGN_OR_RETURN(IncomingFrame answer, channel->Exchange(ClaimFrame{std::string(ticket)}, -1, deadline));
  auto* frame = std::get_if<HandlesFrame>(&answer.frame);
  if (frame == nullptr) {
    return absl::InternalError(absl::StrCat("the daemon answered CLAIM with ", FrameName(answer.frame)));
  }
  const bool needs_fd = !std::holds_alternative<DeviceHandles>(frame->handles.memory);
  if (needs_fd != static_cast<bool>(answer.fd)) {
    return absl::InternalError(absl::StrCat("the daemon sent the handles of replica ",
                                            frame->handles.replica_id, needs_fd ? " without" : " with",
                                            " a descriptor"));
  }
  return std::unique_ptr<ClaimedReplica>(
      new ClaimedReplica(std::move(channel), std::move(frame->handles), std::move(answer.fd)));
}

absl::StatusOr<ConstHostSpan> ClaimedReplica::MapImage() {
  const auto* host = std::get_if<HostHandles>(&handles_.memory);
  if (host == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", handles_.replica_id, " is not in host memory, so it has no image to map"));
  }
  if (map_ == nullptr) {
    TC_ASSIGN_OR_RETURN(map_, ImageMap::Map(fd_.get(), *host, handles_.image_bytes));
  }
  return map_->image();
}

absl::Status ClaimedReplica::AcknowledgeClosed() {
  if (!std::holds_alternative<DeviceHandles>(handles_.memory)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "replica ", handles_.replica_id, " is not in device memory; there is nothing to acknowledge"));
  }
  if (acknowledged_) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const IncomingFrame answer,
                      channel_->Exchange(ClosedFrame{}, -1, SteadyNow() + kCloseTimeout));
  if (!std::holds_alternative<ClosedFrame>(answer.frame)) {
    return absl::InternalError(absl::StrCat("the daemon answered CLOSED with ", FrameName(answer.frame)));
  }
  acknowledged_ = true;
  return absl::OkStatus();
}

bool ClaimedReplica::lost() const { return channel_->closed(); }

OfferedMemory::OfferedMemory(std::unique_ptr<ClientChannel> channel, std::string token)
    : channel_(std::move(channel)), token_(std::move(token)) {}

OfferedMemory::~OfferedMemory() = default;

absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::Make(const std::string& socket_path,
                                                                   const OfferFrame& offer, int memfd,
                                                                   SteadyTime deadline) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ClientChannel> channel, ClientChannel::Connect(socket_path, deadline));
  TC_ASSIGN_OR_RETURN(IncomingFrame answer, channel->Exchange(offer, memfd, deadline));
  auto* offered = std::get_if<OfferedFrame>(&answer.frame);
  if (offered == nullptr) {
    return absl::InternalError(absl::StrCat("the daemon answered OFFER with ", FrameName(answer.frame)));
  }
  return std::unique_ptr<OfferedMemory>(new OfferedMemory(std::move(channel), std::move(offered->token)));
}

absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::OfferMemfd(const std::string& socket_path,
                                                                         int memfd, uint64_t bytes,
                                                                         SteadyTime deadline) {
  return Make(socket_path, OfferFrame{bytes, std::nullopt}, memfd, deadline);
}

absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::OfferDevice(const std::string& socket_path,
                                                                          const IpcHandle& handle,
                                                                          SteadyTime deadline) {
  return Make(socket_path, OfferFrame{handle.bytes, handle}, -1, deadline);
}

}  // namespace tensorcast
