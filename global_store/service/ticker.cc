#include "global_store/service/ticker.h"

#include <utility>

namespace tensorcast::global_store {

Ticker::Ticker(absl::Duration interval, std::function<void()> tick)
    : thread_([this, interval, tick = std::move(tick)] { Run(interval, tick); }) {}

Ticker::~Ticker() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Ticker::Run(absl::Duration interval, const std::function<void()>& tick) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval)) return;
    }
    tick();
  }
}

}  // namespace tensorcast::global_store
