// Sends the responses of one server stream to the client, through a queue.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "rpc/status_mapping.h"

namespace tensorcast::rpc {

// The gRPC reactor behind a StreamWriter. Do not call it after SinkFinish.
template <class Response>
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  virtual void SinkWrite(const Response* message) = 0;
  virtual void SinkFinish(const grpc::Status& status) = 0;
};

// Thread-safe. Messages are sent in the order of the writes, but a message that replaces a waiting one
// (WriteLatest) gets the position of that one.
template <class Response>
class StreamWriter {
 public:
  // `sink` must live until SinkFinish was called.
  StreamWriter(StreamSink<Response>* sink, RequestContext context)
      : sink_(sink), context_(std::move(context)) {}

  // For messages that the client must get. Blocks while kMaxWaiting such messages wait. OK: the message is
  // queued. CANCELLED: the client no longer reads. DEADLINE_EXCEEDED: the call's deadline passed.
  // FAILED_PRECONDITION: Finish was called.
  absl::Status Write(Response message) ABSL_LOCKS_EXCLUDED(mutex_);

  // For messages that a later message makes obsolete, such as progress. Replaces a waiting message of the
  // same slot. Never blocks.
  void WriteLatest(Response message, std::string_view slot = {}) ABSL_LOCKS_EXCLUDED(mutex_);

  // For the last messages of the stream. Each call of `next` returns one message, until `next` returns
  // nullopt. One thread at a time calls `next`, possibly after the handler has returned. `next` must not
  // block, and is destroyed at the end of the stream. REQUIRES: this is the last write.
  void WriteRest(std::function<std::optional<Response>()> next) ABSL_LOCKS_EXCLUDED(mutex_);

  // True once the client no longer reads.
  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

  // Sends the waiting messages, then ends the call. The handler helpers call it with the handler's status.
  void Finish(const absl::Status& status);
  // Call this when the client went away: drops the waiting messages.
  void Close();
  // Call this when gRPC took the message; `ok` false: the stream is broken.
  void OnWritten(bool ok);

  static constexpr int kMaxWaiting = 4;

 private:
  struct Entry {
    Response message;
    bool mandatory = false;
    std::string slot;
  };
  using Queue = std::list<Entry>;

  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || finish_.has_value() || waiting_mandatory_ < kMaxWaiting;
  }
  void DropWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the next message into in_flight_; false when there is none now.
  bool TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the sink its next operation, unless an operation is in flight. Holds no lock, because gRPC may call
  // back.
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);

  StreamSink<Response>* const sink_;
  const RequestContext context_;
  mutable absl::Mutex mutex_;
  Queue waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, typename Queue::iterator, std::less<>> latest_ ABSL_GUARDED_BY(mutex_);
  int waiting_mandatory_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<std::optional<Response>()> rest_ ABSL_GUARDED_BY(mutex_);
  std::optional<Response> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> finish_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

template <class Response>
absl::Status StreamWriter<Response>::Write(Response message) {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &StreamWriter::HasRoom), TimeLeft(context_.deadline));
    if (closed_) return absl::CancelledError("write a stream: the client has stopped reading; call again");
    if (finish_.has_value()) {
      return absl::FailedPreconditionError("write a stream: the server has finished the stream; call again");
    }
    if (!HasRoom()) {
      return absl::DeadlineExceededError(
          "write a stream: the client read too slowly, and the deadline passed; allow more time");
    }
    waiting_.push_back(Entry{std::move(message), /*mandatory=*/true, {}});
    ++waiting_mandatory_;
  }
  Pump();
  return absl::OkStatus();
}

template <class Response>
void StreamWriter<Response>::WriteLatest(Response message, std::string_view slot) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_ || finish_.has_value()) return;
    if (auto it = latest_.find(slot); it != latest_.end()) {
      it->second->message = std::move(message);
      return;
    }
    waiting_.push_back(Entry{std::move(message), /*mandatory=*/false, std::string(slot)});
    latest_.emplace(slot, std::prev(waiting_.end()));
  }
  Pump();
}

template <class Response>
void StreamWriter<Response>::WriteRest(std::function<std::optional<Response>()> next) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_ || finish_.has_value()) return;
    rest_ = std::move(next);
  }
  Pump();
}

template <class Response>
void StreamWriter<Response>::Finish(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (finish_.has_value()) return;
    finish_ = status;
  }
  Pump();
}

template <class Response>
void StreamWriter<Response>::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  DropWaiting();
}

template <class Response>
void StreamWriter<Response>::OnWritten(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    in_flight_.reset();
    if (!ok) {
      closed_ = true;
      DropWaiting();
    }
  }
  Pump();
}

template <class Response>
void StreamWriter<Response>::DropWaiting() {
  latest_.clear();
  waiting_.clear();
  rest_ = nullptr;
  waiting_mandatory_ = 0;
}

template <class Response>
bool StreamWriter<Response>::TakeNext() {
  if (waiting_.empty()) {
    if (rest_ == nullptr) return false;
    in_flight_ = rest_();
    if (!in_flight_.has_value()) rest_ = nullptr;
    return in_flight_.has_value();
  }
  Entry& next = waiting_.front();
  if (next.mandatory) {
    --waiting_mandatory_;
  } else {
    latest_.erase(next.slot);
  }
  in_flight_ = std::move(next.message);
  waiting_.pop_front();
  return true;
}

template <class Response>
void StreamWriter<Response>::Pump() {
  const Response* message = nullptr;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_ || in_flight_.has_value()) return;
    if (TakeNext()) {
      message = &*in_flight_;
    } else if (finish_.has_value()) {
      finished_ = true;
      status = *finish_;
    } else {
      return;
    }
  }
  // Only this thread uses the sink now: a message is in flight, or the stream has ended.
  if (message != nullptr) {
    sink_->SinkWrite(message);
  } else {
    sink_->SinkFinish(ToGrpcStatus(status));
  }
}

}  // namespace tensorcast::rpc
