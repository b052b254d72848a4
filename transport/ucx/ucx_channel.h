// A UcxChannel is one conversation over a UCX endpoint. A conversation ends with BYE from both ends. After
// that the endpoint is idle, and can carry another conversation.
//
// UCX accesses the memory of an operation until the operation completes. If the peer hangs, the channel
// closes the endpoint by force, which completes all operations.
//
// Private to this folder. Only the progress thread uses a channel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "transport/pull/message_channel.h"
#include "transport/pull/wire.h"
#include "transport/ucx/endpoint_cache.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_worker.h"

namespace tensorcast::transport {

class UcxChannel : public pull::MessageChannel,
                   public EndpointOwner,
                   public std::enable_shared_from_this<UcxChannel> {
 public:
  // `drain_timeout`: max time that End waits for operations in flight and the peer's BYE. After this time the
  // channel closes the endpoint by force.
  UcxChannel(UcxWorker* worker, absl::Duration drain_timeout)
      : worker_(*worker), drain_timeout_(drain_timeout) {}

  TaskQueue& queue() override { return worker_.queue(); }
  bool OnThread() const override { return worker_.OnThread(); }
  void Send(const pull::Frame& frame) override;
  void SendPiece(const pull::Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) override;
  bool has_room() const override { return sending_ < kSends; }
  size_t queued_frames() const override { return static_cast<size_t>(endpoint_->in_flight()); }
  void Flush() override;
  void End(std::optional<pull::Frame> last, std::function<void()> ended) override;
  uint64_t NextRequestId() override { return endpoint_->NextRequestId(); }
  // UCX may deliver long messages in another order.
  bool keeps_order() const override { return false; }

  void OnControl(const pull::Frame& frame) override;
  absl::Status OnPiece(const pull::Data& head, ConstHostSpan piece) override;
  absl::StatusOr<HostSpan> OnRendezvous(const pull::Data& head) override;
  void OnRendezvousReceived(const pull::Data& head, const absl::Status& status) override;
  void OnFailed(const absl::Status& status) override;

 protected:
  // Called by End: starts to end the conversation. Sends `last`, now or when the operations in flight allow
  // it.
  virtual void SayLast(const pull::Frame& last) = 0;
  // Called after each operation that completes while the conversation is ending.
  virtual void OnProgress() = 0;
  // Called when the peer's BYE arrives while the conversation is ending.
  virtual void OnLastBye() {}
  // The conversation is over. If `closed` is true, the endpoint is closed; if it is false, idle.
  virtual void OnEnded(bool closed) = 0;

  // The conversation has ended normally: the endpoint can carry another conversation.
  void Ended() { Finish(/*closed=*/false); }
  void CloseByForce();
  // A receive or remote read into the handler's memory has completed.
  void Received(const pull::Data& piece, const absl::Status& status);

  UcxWorker& worker_;
  std::shared_ptr<UcxEndpoint> endpoint_;
  pull::MessageChannel::Handler* handler_ = nullptr;
  bool ending_ = false;
  int sending_ = 0;    // number of pieces that UCX is sending
  int receiving_ = 0;  // number of rendezvous pieces and remote reads that UCX is receiving

 private:
  // Max pieces that UCX sends at a time.
  static constexpr int kSends = 16;

  void PieceSent(uint64_t bytes, const absl::Status& status);
  void Finish(bool closed);

  const absl::Duration drain_timeout_;
  std::function<void()> ended_;
  bool closing_ = false;
  TaskQueue::TimerId drain_timer_ = TaskQueue::kNoTimer;
};

// Values that all receiver channels of a transport share. `worker` and `cache` must outlive the channels.
struct UcxReceiver {
  UcxWorker* worker = nullptr;
  EndpointCache* cache = nullptr;
  absl::Duration drain_timeout = absl::Milliseconds(500);
  uint32_t max_piece_bytes = 0;  // max length of a piece that the source may send; 0: no limit
  bool one_sided = false;        // reads the source's memory with the descriptor's keys and segments
};

// The receiver's end of a conversation.
class UcxReceiverChannel : public UcxChannel {
 public:
  UcxReceiverChannel(const UcxReceiver& receiver, const SocketAddress& address, pull::Descriptor descriptor);

  void Connect(pull::MessageChannel::Handler* handler) override;
  absl::Status Welcomed() override;
  uint32_t max_piece_bytes() const override { return receiver_.max_piece_bytes; }
  bool one_sided() const override { return receiver_.one_sided; }
  void ReadRemote(const pull::Data& piece, HostSpan destination) override;
  void OnFailed(const absl::Status& status) override;

 private:
  // A remote read, made of one UCX operation for each segment that the read overlaps.
  struct Read {
    pull::Data piece;
    int parts = 1;  // operations that have not completed, plus one while they are being started
    absl::Status status;
  };

  const std::string& peer() const { return descriptor_.addresses.front(); }
  void Dial();
  void PartRead(const std::shared_ptr<Read>& read, const absl::Status& status);
  void SayLast(const pull::Frame& last) override;
  void OnProgress() override;
  void OnLastBye() override;
  void OnEnded(bool closed) override;
  void DropKeys();

  const UcxReceiver receiver_;
  const SocketAddress address_;
  const pull::Descriptor descriptor_;
  std::vector<uint64_t> segment_ends_;  // the image offset at which each segment ends
  std::vector<ucp_rkey_h> rkeys_;
  bool was_idle_ = false;  // the endpoint came from the cache and may have failed there, undetected
  bool bye_said_ = false;
  bool bye_heard_ = false;
};

}  // namespace tensorcast::transport
