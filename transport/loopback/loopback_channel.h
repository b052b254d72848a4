// A message channel within this process. A LoopbackChannel is one end of a connection, and belongs to the
// thread of its transport's task loop. The two ends send messages by posting tasks to each other's loop.
//
// Private to this folder. Errors: see transport/pull/message_channel.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "base/task_loop.h"
#include "transport/pull/message_channel.h"
#include "transport/pull/wire.h"
#include "transport/registered_memory.h"

namespace tensorcast::transport {

class LoopbackChannel;

// A source's listener. For each new connection, `admit` is called on `loop` with the source's end and the
// HELLO that the end received, and must call Open or End of that end.
struct LoopbackListener {
  std::shared_ptr<TaskLoop> loop;
  std::function<void(const std::shared_ptr<LoopbackChannel>& end, const pull::Hello& hello)> admit;
};

// Registers a listener. Returns the listener's unique address, "loopback:N". Thread-safe.
std::string AddLoopbackListener(const LoopbackListener& listener);
// From now on no receiver finds the listener. Thread-safe.
void RemoveLoopbackListener(const std::string& address);

class LoopbackChannel : public pull::MessageChannel, public std::enable_shared_from_this<LoopbackChannel> {
 public:
  // A receiver's end. `devices`: the receiver's GPUs; null: none. `memory` and `devices` must outlive the
  // channel.
  LoopbackChannel(std::shared_ptr<TaskLoop> loop, std::string address, const RegisteredMemory* memory,
                  DeviceRuntime* devices)
      : loop_(std::move(loop)), address_(std::move(address)), memory_(memory), devices_(devices) {}
  // A source's end, which waits for HELLO.
  explicit LoopbackChannel(const LoopbackListener& listener) : loop_(listener.loop), admit_(listener.admit) {}

  // For a source's end: from now on all messages go to `handler`.
  void Open(pull::MessageChannel::Handler* handler) { handler_ = handler; }

  TaskQueue& queue() override { return loop_->queue(); }
  bool OnThread() const override { return loop_->OnThread(); }
  void Send(const pull::Frame& frame) override;
  void SendPiece(const pull::Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) override;
  bool has_room() const override { return sending_ < kSends; }
  size_t queued_frames() const override { return static_cast<size_t>(sending_); }
  void Flush() override;
  void End(std::optional<pull::Frame> last, std::function<void()> ended) override;
  void Connect(pull::MessageChannel::Handler* handler) override;
  uint64_t NextRequestId() override { return ++requests_made_; }

 private:
  // Max pieces that the other end has not taken.
  static constexpr int kSends = 4;

  // Posts a task to the other end's loop, if the other end exists.
  void Tell(absl::AnyInvocable<void(LoopbackChannel&)> task);
  void Heard(const pull::Frame& frame);
  void Admit(const pull::Frame& frame);
  void Take(const pull::Data& head, ConstHostSpan piece);
  void PieceSent(uint64_t bytes);
  void OtherEnded();
  void Lose(const absl::Status& why);

  const std::shared_ptr<TaskLoop> loop_;
  const std::string address_;
  const RegisteredMemory* const memory_ = nullptr;
  DeviceRuntime* const devices_ = nullptr;
  const decltype(LoopbackListener::admit) admit_;  // of a source's end
  std::shared_ptr<LoopbackChannel> other_;         // null before Connect, and after one end has ended
  pull::MessageChannel::Handler* handler_ = nullptr;
  pull::MessageChannel::Handler* counts_ = nullptr;  // the handler after End, for OnSent of pieces in flight
  std::function<void()> ended_;                      // called when the other end has taken all pieces
  bool lost_ = false;
  int sending_ = 0;
  uint64_t requests_made_ = 0;
};

}  // namespace tensorcast::transport
