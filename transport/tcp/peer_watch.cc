#include "transport/tcp/peer_watch.h"

#include "absl/log/check.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::transport::tcp {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(1);

}  // namespace

PeerWatch::~PeerWatch() { CHECK(stream_ == nullptr); }

void PeerWatch::Start(const ByteStream* stream) {
  Stop();
  if (stream->peer().empty()) return;
  stream_ = stream;
  LookAt(SteadyNow());  // it was let in a moment ago, perhaps before the files changed
}

void PeerWatch::Stop() {
  if (stream_ == nullptr) return;
  queue_->CancelTimer(timer_);
  stream_ = nullptr;
}

void PeerWatch::LookAt(SteadyTime when) {
  timer_ = queue_->At(when, [this] {
    const absl::Status good = stream_->CheckPeer();
    // First: on_refused_ may Stop, which cancels this timer.
    LookAt(SteadyNow() + kLookInterval);
    if (!good.ok()) on_refused_(good);
  });
}

}  // namespace tensorcast::transport::tcp
