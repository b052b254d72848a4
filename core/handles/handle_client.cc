#include "core/handles/handle_client.h"

#include <sys/stat.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/handles/availability_mirror.h"
#include "core/handles/client_channel.h"
#include "core/handles/pool_segment.h"

namespace tensorcast {
namespace {

constexpr absl::Duration kOpeningTimeout = absl::Seconds(5);
constexpr absl::Duration kCloseTimeout = absl::Seconds(5);

uint64_t RoundUpToGranule(uint64_t bytes) {
  return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

// Whether the descriptors are memory that the handles can be read from.
absl::Status CheckSegments(const HostHandles& host, const std::vector<UniqueFd>& fds) {
  for (size_t i = 0; i < fds.size(); ++i) {
    TC_RETURN_IF_ERROR(
        Annotate(CheckPoolSegment(fds[i].get(), host.segments[i].bytes),
                 absl::StrCat("read the handles of a replica, segment ", host.segments[i].number)));
  }
  return absl::OkStatus();
}

}  // namespace

// The frame that makes an offer, and its descriptors, which stay the caller's.
struct OfferedMemory::Offering {
  Frame frame;
  std::span<const int> fds;
};

ClaimedReplica::ClaimedReplica(std::unique_ptr<ClientChannel> channel, ReplicaHandles handles,
                               std::vector<UniqueFd> fds)
    : channel_(std::move(channel)),
      artifact_id_(handles.artifact_id),
      handles_(std::move(handles)),
      fds_(std::move(fds)) {
  const auto* host = std::get_if<HostHandles>(&handles_.memory);
  if (host == nullptr) return;
  for (const SegmentExtent& extent : host->extents) {
    struct stat segment{};
    fstat(fds_[extent.segment].get(), &segment);  // which CheckSegments did before
    pieces_.push_back({extent.image_offset, segment.st_dev, segment.st_ino, extent.offset, extent.bytes});
  }
}

ClaimedReplica::~ClaimedReplica() = default;

// The pointer outlives the lock. Only TakeOver exchanges the channel. It refuses a replica that is followed;
// the other users of this pointer are calls about device memory, which may not run at the same time.
ClientChannel* ClaimedReplica::channel() const {
  absl::MutexLock lock(&mutex_);
  return channel_.get();
}

absl::Status ClaimedReplica::TakeOver(std::unique_ptr<ClaimedReplica> again) {
  if (mirror_ != nullptr || !HasMemoryOf(*again)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "take over the lease of replica ", handles_.replica_id, ": ",
        mirror_ != nullptr ? absl::StrCat("this process follows the chunks of the replica")
                           : absl::StrCat("the new lease is on replica ", again->handles_.replica_id,
                                          ", which is in other memory"),
        "; get the artifact again"));
  }
  if (announced_) TC_RETURN_IF_ERROR(again->AnnounceOpening());
  {
    // `again` is the caller's alone, so the order of the two locks is free. It ends with the channel that was
    // lost.
    absl::MutexLock lock(&mutex_);
    absl::MutexLock other(&again->mutex_);
    channel_.swap(again->channel_);
    artifact_id_ = again->artifact_id_;
  }
  // On the earlier channel. Without this frame the daemon would keep the earlier lease until this process
  // ends; a daemon that has gone keeps none.
  if (announced_) again->AcknowledgeClosed().IgnoreError();
  return absl::OkStatus();
}

// Pieces name files by device and inode, which two connections have in common, where descriptors and segment
// numbers may differ. All handles of one allocation are equal.
bool ClaimedReplica::HasMemoryOf(const ClaimedReplica& other) const {
  const auto* device = std::get_if<DeviceHandles>(&handles_.memory);
  const auto* others = std::get_if<DeviceHandles>(&other.handles_.memory);
  if (device != nullptr && others != nullptr) {
    return device->ipc.device_uuid == others->ipc.device_uuid && device->ipc.opaque == others->ipc.opaque;
  }
  return !pieces_.empty() && pieces_ == other.pieces_;
}

std::string ClaimedReplica::artifact_id() const {
  absl::MutexLock lock(&mutex_);
  return artifact_id_;
}

absl::StatusOr<std::unique_ptr<ClaimedReplica>> ClaimedReplica::Claim(const std::string& socket_path,
                                                                      std::string_view ticket,
                                                                      SteadyTime deadline,
                                                                      const Cancellation& cancellation,
                                                                      const std::vector<gid_t>* groups) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ClientChannel> channel,
                      ClientChannel::Connect(socket_path, deadline, cancellation, groups));
  const ClientChannel::EndedBy ended(*channel, cancellation);
  TC_ASSIGN_OR_RETURN(IncomingFrame answer, channel->Exchange(ClaimFrame{std::string(ticket)}, {}, deadline));
  auto* frame = std::get_if<HandlesFrame>(&answer.frame);
  if (frame == nullptr) {
    return absl::InternalError(absl::StrCat("read the handles of a replica: the daemon sent ",
                                            FrameName(answer.frame), " instead of HANDLES", kOneRelease));
  }
  ReplicaHandles handles = std::move(frame->handles);
  std::vector<UniqueFd> fds = std::move(answer.fds);
  const size_t expected = DescriptorsOf(handles);
  // Each frame but the last brings the max number of descriptors.
  while (fds.size() < expected && fds.size() % kMaxFrameDescriptors == 0 && !fds.empty()) {
    TC_ASSIGN_OR_RETURN(IncomingFrame more, channel->Receive(deadline));
    if (!std::holds_alternative<DescriptorsFrame>(more.frame) || more.fds.empty()) break;
    for (UniqueFd& fd : more.fds) fds.push_back(std::move(fd));
  }
  if (fds.size() != expected) {
    return absl::InternalError(absl::StrCat("read the handles of a replica: the daemon sent ", fds.size(),
                                            " descriptors instead of ", expected, kOneRelease));
  }
  // Any process may listen on the path, so all is checked before any of it is mapped.
  if (const auto* host = std::get_if<HostHandles>(&handles.memory)) {
    TC_RETURN_IF_ERROR(CheckHostHandles(*host, handles.image_bytes));
    TC_RETURN_IF_ERROR(CheckSegments(*host, fds));
  }
  return std::unique_ptr<ClaimedReplica>(
      new ClaimedReplica(std::move(channel), std::move(handles), std::move(fds)));
}

absl::StatusOr<ReservedRange> ClaimedReplica::MapExtents(ReservedRange::Access access) const {
  // One range, so that the extents lie side by side from whichever segments they come. What none covers stays
  // reserved, and cannot be read.
  TC_ASSIGN_OR_RETURN(ReservedRange image,
                      ReservedRange::Reserve(RoundUpToGranule(handles_.image_bytes), "a replica"));
  for (const SegmentExtent& extent : std::get<HostHandles>(handles_.memory).extents) {
    TC_RETURN_IF_ERROR(
        image.Map(extent.image_offset, fds_[extent.segment].get(), extent.offset, extent.bytes, access));
  }
  return image;
}

absl::StatusOr<ConstHostSpan> ClaimedReplica::MapImage(bool copy_on_write) {
  if (!std::holds_alternative<HostHandles>(handles_.memory)) {
    return absl::FailedPreconditionError(
        absl::StrCat("map replica ", handles_.replica_id,
                     ": the replica is not in host memory; open the device memory or the file"));
  }
  if (!image_.has_value()) {
    absl::StatusOr<ReservedRange> image =
        MapExtents(copy_on_write ? ReservedRange::Access::kCopyOnWrite : ReservedRange::Access::kRead);
    writable_ = copy_on_write && image.ok();
    // A mapping for reading needs no memory.
    if (copy_on_write && absl::IsResourceExhausted(image.status())) {
      image = MapExtents(ReservedRange::Access::kRead);
    }
    TC_RETURN_IF_ERROR(image.status());
    image_ = *std::move(image);
    // The mapping keeps the memory. Descriptors are few, and a client may attach to many replicas.
    CloseFds();
  }
  return ConstHostSpan(image_->base(), handles_.image_bytes);
}

absl::StatusOr<std::shared_ptr<const Availability>> ClaimedReplica::Follow(uint64_t chunk_bytes,
                                                                           SteadyTime deadline) {
  if (!std::holds_alternative<HostHandles>(handles_.memory) || mirror_ != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "follow the chunks of replica ", handles_.replica_id,
        mirror_ != nullptr ? ": this process already follows the chunks; call Follow once"
                           : ": the replica is not in host memory, so all chunks are ready; read the "
                             "replica without Follow"));
  }
  // From here on the mirror reads the connection, until no more can come.
  TC_ASSIGN_OR_RETURN(mirror_, AvailabilityMirror::Follow(channel(), handles_, chunk_bytes, deadline));
  return mirror_->availability();
}

absl::Status ClaimedReplica::CheckIsDevice() const {
  if (std::holds_alternative<DeviceHandles>(handles_.memory)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("open replica ", handles_.replica_id,
                   ": the replica is not in device memory; map the image or open the file"));
}

// Sent before the memory is opened: a daemon that sees the connection end after it keeps the memory until the
// process has gone.
absl::Status ClaimedReplica::AnnounceOpening() {
  TC_RETURN_IF_ERROR(CheckIsDevice());
  if (announced_) return absl::OkStatus();
  TC_RETURN_IF_ERROR(channel()->Send(OpeningFrame{}, {}, SteadyNow() + kOpeningTimeout));
  announced_ = true;
  return absl::OkStatus();
}

absl::Status ClaimedReplica::AcknowledgeClosed() {
  TC_RETURN_IF_ERROR(CheckIsDevice());
  if (acknowledged_) return absl::OkStatus();
  const SteadyTime deadline = SteadyNow() + kCloseTimeout;
  absl::StatusOr<IncomingFrame> answer = channel()->Exchange(ClosedFrame{}, {}, deadline);
  // An ERROR about damaged bytes is not an answer to this.
  if (absl::IsDataLoss(answer.status())) answer = channel()->Receive(deadline);
  TC_RETURN_IF_ERROR(answer.status());
  if (!std::holds_alternative<ClosedFrame>(answer->frame)) {
    return absl::InternalError(absl::StrCat("close device memory: the daemon sent ", FrameName(answer->frame),
                                            " instead of CLOSED", kOneRelease));
  }
  acknowledged_ = true;
  return absl::OkStatus();
}

absl::Status ClaimedReplica::CheckIntact() const {
  absl::MutexLock lock(&mutex_);
  if (!damage_.ok()) return damage_;
  absl::Status told;
  if (mirror_ != nullptr) {
    const Availability& followed = *mirror_->availability();
    if (!followed.ended()) return absl::OkStatus();  // its thread reads the connection until then
    told = followed.end();
  }
  if (told.ok()) told = channel_->TakeError();
  // All other errors are not about the bytes: a connection that ended leaves them as they were.
  if (absl::IsDataLoss(told)) damage_ = told;
  return damage_;
}

bool ClaimedReplica::lost() const {
  absl::MutexLock lock(&mutex_);
  return channel_->closed();
}

OfferedMemory::OfferedMemory(std::unique_ptr<ClientChannel> channel, std::string token)
    : channel_(std::move(channel)), token_(std::move(token)) {}

OfferedMemory::~OfferedMemory() = default;

// The first frame brings as many of the descriptors as it can, DESCRIPTORS the others.
absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::Make(const std::string& socket_path,
                                                                   const Offering& offering,
                                                                   SteadyTime deadline,
                                                                   const Cancellation& cancellation) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ClientChannel> channel,
                      ClientChannel::Connect(socket_path, deadline, cancellation));
  const ClientChannel::EndedBy ended(*channel, cancellation);
  Frame frame = offering.frame;
  std::span<const int> left = offering.fds;
  while (left.size() > kMaxFrameDescriptors) {
    const auto now = left.first(kMaxFrameDescriptors);
    const absl::Status sent = channel->Send(frame, {now.begin(), now.end()}, deadline);
    // A daemon that refuses says why before it closes: Exchange reads that.
    if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
    left = left.subspan(kMaxFrameDescriptors);
    frame = DescriptorsFrame{};
  }
  TC_ASSIGN_OR_RETURN(IncomingFrame answer, channel->Exchange(frame, {left.begin(), left.end()}, deadline));
  auto* offered = std::get_if<OfferedFrame>(&answer.frame);
  if (offered == nullptr) {
    return absl::InternalError(absl::StrCat("offer memory or files: the daemon sent ",
                                            FrameName(answer.frame), " instead of OFFERED", kOneRelease));
  }
  return std::unique_ptr<OfferedMemory>(new OfferedMemory(std::move(channel), std::move(offered->token)));
}

absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::OfferMemfd(const std::string& socket_path,
                                                                         int memfd, uint64_t bytes,
                                                                         SteadyTime deadline,
                                                                         const Cancellation& cancellation) {
  return Make(socket_path, {OfferFrame{bytes, std::nullopt}, {&memfd, 1}}, deadline, cancellation);
}

absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::OfferDevice(const std::string& socket_path,
                                                                          const IpcHandle& handle,
                                                                          SteadyTime deadline) {
  return Make(socket_path, {OfferFrame{handle.bytes, handle}, {}}, deadline, Cancellation());
}

absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::OfferFiles(const std::string& socket_path,
                                                                         std::span<const int> fds,
                                                                         SteadyTime deadline,
                                                                         const Cancellation& cancellation) {
  if (fds.empty() || fds.size() > kMaxOfferedFiles) {
    return absl::InvalidArgumentError(absl::StrCat("offer ", fds.size(), " files: an offer has 1 to ",
                                                   kMaxOfferedFiles, " files; pass ",
                                                   fds.empty() ? "at least 1 file" : "fewer files"));
  }
  return Make(socket_path, {OfferFilesFrame{static_cast<uint32_t>(fds.size())}, fds}, deadline, cancellation);
}

}  // namespace tensorcast
