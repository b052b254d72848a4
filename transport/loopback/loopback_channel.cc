#include "transport/loopback/loopback_channel.h"

#include <utility>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"

namespace tensorcast::transport {
namespace {

struct Registry {
  absl::Mutex mutex;
  absl::flat_hash_map<std::string, LoopbackListener> listeners ABSL_GUARDED_BY(mutex);
  uint64_t listeners_made ABSL_GUARDED_BY(mutex) = 0;
};

// Stands for the network: one for all transports of the process, and never destroyed, since any of them may
// be the last.
Registry& GlobalRegistry() {
  static absl::NoDestructor<Registry> registry;
  return *registry;
}

absl::Status CopyToDevice(DeviceRuntime& devices, DevicePtr place, ConstHostSpan bytes) {
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, devices.CreateStream(place.device));
  TC_RETURN_IF_ERROR(stream->CopyToDevice(place, bytes.data(), bytes.size()));
  return stream->Synchronize();
}

}  // namespace

std::string AddLoopbackListener(const LoopbackListener& listener) {
  Registry& registry = GlobalRegistry();
  absl::MutexLock lock(&registry.mutex);
  std::string address = absl::StrCat("loopback:", ++registry.listeners_made);
  registry.listeners.emplace(address, listener);
  return address;
}

void RemoveLoopbackListener(const std::string& address) {
  Registry& registry = GlobalRegistry();
  absl::MutexLock lock(&registry.mutex);
  registry.listeners.erase(address);
}

// A receiver makes both ends. The source's end waits without a handler until HELLO comes (Admit), as a
// pending connection of a network does.
void LoopbackChannel::Connect(pull::MessageChannel::Handler* handler) {
  handler_ = handler;
  {
    Registry& registry = GlobalRegistry();
    absl::MutexLock lock(&registry.mutex);
    if (const auto found = registry.listeners.find(address_); found != registry.listeners.end()) {
      other_ = std::make_shared<LoopbackChannel>(found->second);
    }
  }
  if (other_ == nullptr) {
    Lose(absl::UnavailableError(
        absl::StrCat("connect to ", address_, ": no transport listens there; check the address")));
    return;
  }
  // By a task, since the other end belongs to its own thread. Its first frame comes behind that.
  Tell([self = shared_from_this()](LoopbackChannel& other) { other.other_ = self; });
  handler_->OnConnected();
}

// All that one end does to the other is a task on the other's loop: no channel needs a lock.
void LoopbackChannel::Tell(absl::AnyInvocable<void(LoopbackChannel&)> task) {
  if (other_ == nullptr) return;
  other_->loop_->Post([other = other_, task = std::move(task)]() mutable { task(*other); });
}

void LoopbackChannel::Send(const pull::Frame& frame) {
  Tell([frame](LoopbackChannel& other) { other.Heard(frame); });
}

void LoopbackChannel::Heard(const pull::Frame& frame) {
  if (handler_ == nullptr) {
    Admit(frame);
    return;
  }
  if (absl::Status status = handler_->OnFrame(frame); !status.ok()) {
    Lose(status);
  } else {
    Flush();
  }
}

// Before HELLO, or behind the end: what crossed that is dropped.
void LoopbackChannel::Admit(const pull::Frame& frame) {
  if (other_ == nullptr) return;
  if (const auto* const hello = std::get_if<pull::Hello>(&frame)) {
    admit_(shared_from_this(), *hello);
  } else {
    End(std::nullopt, [] {});
  }
}

// The other end takes the piece, or its loop has stopped and drops the task: either way nothing reads the
// piece any more, and `hold` is released before this end counts it as sent.
void LoopbackChannel::SendPiece(const pull::Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) {
  ++sending_;
  std::shared_ptr<void> taken(
      nullptr, [self = shared_from_this(), bytes = piece.size(), hold = std::move(hold)](void*) mutable {
        hold.reset();
        self->loop_->Post([self, bytes] { self->PieceSent(bytes); });
      });
  Tell([head, piece, taken = std::move(taken)](LoopbackChannel& other) { other.Take(head, piece); });
}

void LoopbackChannel::PieceSent(uint64_t bytes) {
  --sending_;
  // The end was reached while this piece was under way: it counts, and nothing else is told.
  if (counts_ != nullptr) counts_->OnSent(bytes);
  if (handler_ != nullptr) {
    handler_->OnSent(bytes);
    Flush();
  } else if (sending_ == 0 && ended_ != nullptr) {
    std::exchange(ended_, nullptr)();
  }
}

// As a network card writes to a GPU: the bytes do not pass through the pull's hands, and have no digest.
void LoopbackChannel::Take(const pull::Data& head, ConstHostSpan piece) {
  if (handler_ == nullptr) return;
  if (absl::Status status = handler_->OnPiece(head); !status.ok()) return Lose(status);
  const HostSpan place = handler_->Place(head);
  const DevicePtr device = memory_->DeviceAt(place);
  if (!device) {
    handler_->OnPieceBytes(head, place.empty() ? ConstHostSpan() : piece);
  } else {
    handler_->OnReceiveStarted(head);
    const absl::Status copied = CopyToDevice(*devices_, device, piece);
    handler_->OnReceived(head, copied);
    if (!copied.ok()) return Lose(copied);
  }
  Flush();
}

void LoopbackChannel::Flush() {
  if (handler_ != nullptr) handler_->Refill();
}

void LoopbackChannel::Lose(const absl::Status& why) {
  // Once: a handler is told of one loss.
  if (handler_ != nullptr && !std::exchange(lost_, true)) handler_->OnLost(why);
}

void LoopbackChannel::OtherEnded() {
  other_.reset();
  Lose(absl::UnavailableError("the other end closed the connection"));
}

// The other end learns of this by OtherEnded, and then loses its connection. Pieces that it has not taken
// keep their memory until their tasks have run or were dropped.
void LoopbackChannel::End(std::optional<pull::Frame> last, std::function<void()> ended) {
  // What is under way is with the other end, and counts; `ended` keeps the handler until then.
  counts_ = sending_ > 0 ? handler_ : nullptr;
  handler_ = nullptr;
  // In this order: the other end hears the last frame, and then that this end is over.
  if (last.has_value()) Send(*last);
  Tell([](LoopbackChannel& other) { other.OtherEnded(); });
  other_.reset();
  if (sending_ == 0) {
    ended();
  } else {
    ended_ = std::move(ended);
  }
}

}  // namespace tensorcast::transport
