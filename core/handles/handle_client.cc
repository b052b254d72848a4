#include "core/handles/handle_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/handles/client_channel.h"
#include "core/handles/image_map.h"

namespace tensorcast {
namespace {

constexpr absl::Duration kCloseTimeout = absl::Seconds(5);

class ClaimedReplicaImpl : public ClaimedReplica {
 public:
  ClaimedReplicaImpl(std::unique_ptr<ClientChannel> channel, ReplicaHandles handles, UniqueFd fd)
      : channel_(std::move(channel)), handles_(std::move(handles)), fd_(std::move(fd)) {}

  const ReplicaHandles& handles() const override { return handles_; }
  int fd() const override { return fd_.get(); }

  absl::StatusOr<ConstHostSpan> MapImage() override {
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

  absl::Status AcknowledgeClosed() override {
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

  bool lost() const override { return channel_->closed(); }

 private:
  // The mapping goes before the connection: the daemon may reuse the memory as soon as that is closed.
  const std::unique_ptr<ClientChannel> channel_;
  const ReplicaHandles handles_;
  const UniqueFd fd_;
  std::unique_ptr<ImageMap> map_;
  bool acknowledged_ = false;
};

class OfferedMemoryImpl : public OfferedMemory {
 public:
  OfferedMemoryImpl(std::unique_ptr<ClientChannel> channel, std::string token)
      : channel_(std::move(channel)), token_(std::move(token)) {}
  const std::string& token() const override { return token_; }

 private:
  const std::unique_ptr<ClientChannel> channel_;
  const std::string token_;
};

absl::StatusOr<std::unique_ptr<OfferedMemory>> MakeOffer(const std::string& socket_path,
                                                         const OfferFrame& offer, int memfd,
                                                         SteadyTime deadline) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ClientChannel> channel, ClientChannel::Connect(socket_path, deadline));
  TC_ASSIGN_OR_RETURN(IncomingFrame answer, channel->Exchange(offer, memfd, deadline));
  auto* offered = std::get_if<OfferedFrame>(&answer.frame);
  if (offered == nullptr) {
    return absl::InternalError(absl::StrCat("the daemon answered OFFER with ", FrameName(answer.frame)));
  }
  return std::make_unique<OfferedMemoryImpl>(std::move(channel), std::move(offered->token));
}

}  // namespace

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
  return std::make_unique<ClaimedReplicaImpl>(std::move(channel), std::move(frame->handles),
                                              std::move(answer.fd));
}

absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::OfferMemfd(const std::string& socket_path,
                                                                         int memfd, uint64_t bytes,
                                                                         SteadyTime deadline) {
  return MakeOffer(socket_path, OfferFrame{bytes, std::nullopt}, memfd, deadline);
}

absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferedMemory::OfferDevice(const std::string& socket_path,
                                                                          const IpcHandle& handle,
                                                                          SteadyTime deadline) {
  return MakeOffer(socket_path, OfferFrame{handle.bytes, handle}, -1, deadline);
}

}  // namespace tensorcast
