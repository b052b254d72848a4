#include "otel/sdk/testing/collector.h"

#include <atomic>
#include <utility>

#include "base/status.h"

namespace tensorcast::otel::testing {

// A call that hangs is in hanging_. Its cancellation or a change of behaviour takes it out and then finishes
// it, on different threads. Only one of them finds it there, so each call is finished once.
class Collector::Call final : public ExportCall {
 public:
  Call(Collector* collector, const grpc::GenericCallbackServerContext& context)
      : ExportCall(context), collector_(collector) {}

  void Answer() {
    switch (collector_->behaviour()) {
      case Behaviour::kRefuse:
        return Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "this collector refuses"));
      case Behaviour::kReject:
        return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "this collector rejects"));
      case Behaviour::kAccept:
      case Behaviour::kHang:
        break;
    }
    if (collector_->Take(method(), request())) return Accept();
    Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not OTLP"));
  }

 private:
  void OnRequest() override {
    if (!collector_->Hang(this)) return Answer();
    // The cancellation may have come before the call was known to hang.
    if (cancelled_ && collector_->StopHanging(this)) Finish(grpc::Status::CANCELLED);
  }
  void OnCancel() override {
    cancelled_ = true;
    if (collector_->StopHanging(this)) Finish(grpc::Status::CANCELLED);
  }

  Collector* const collector_;
  std::atomic<bool> cancelled_{false};
};

absl::StatusOr<std::unique_ptr<Collector>> Collector::Start(const std::string& listen) {
  std::unique_ptr<Collector> collector(new Collector());
  TC_ASSIGN_OR_RETURN(
      collector->server_, ExportServer::Start(listen, [raw = collector.get()](const auto& context) {
        StringMap headers;
        for (const auto& [key, value] : context.client_metadata()) {
          headers[std::string(key.data(), key.size())] = std::string(value.data(), value.size());
        }
        raw->Count(std::move(headers));
        return new Call(raw, context);
      }));
  return collector;
}

void Collector::SetBehaviour(Behaviour behaviour) {
  std::set<Call*> released;
  {
    absl::MutexLock lock(&mutex_);
    behaviour_ = behaviour;
    if (behaviour != Behaviour::kHang) released.swap(hanging_);
  }
  for (Call* call : released) call->Answer();
}

StringMap Collector::last_headers() const {
  absl::MutexLock lock(&mutex_);
  return headers_;
}

int Collector::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

void Collector::Count(StringMap headers) {
  absl::MutexLock lock(&mutex_);
  ++calls_;
  headers_ = std::move(headers);
}

Behaviour Collector::behaviour() const {
  absl::MutexLock lock(&mutex_);
  return behaviour_;
}

bool Collector::Hang(Call* call) {
  bool hangs = false;
  {
    absl::MutexLock lock(&mutex_);
    hangs = behaviour_ == Behaviour::kHang;
    if (hangs) hanging_.insert(call);
  }
  Wake();
  return hangs;
}

bool Collector::StopHanging(Call* call) {
  absl::MutexLock lock(&mutex_);
  return hanging_.erase(call) > 0;
}

}  // namespace tensorcast::otel::testing
