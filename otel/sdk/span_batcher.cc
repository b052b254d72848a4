#include "otel/sdk/span_batcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tensorcast::otel::sdk {

SpanBatcher::SpanBatcher(std::unique_ptr<otel_trace::SpanExporter> exporter, std::shared_ptr<Guard> guard,
                         size_t batch_size, std::chrono::milliseconds interval)
    : exporter_(std::move(exporter)),
      guard_(std::move(guard)),
      batch_size_(std::max<size_t>(1, batch_size)),
      interval_(interval),
      worker_([this] { Work(); }) {}

SpanBatcher::~SpanBatcher() { Shutdown({}); }

std::unique_ptr<otel_trace::Recordable> SpanBatcher::MakeRecordable() noexcept {
  return exporter_->MakeRecordable();
}

void SpanBatcher::OnEnd(std::unique_ptr<otel_trace::Recordable>&& span) noexcept {
  // Counted in before the queue: the guard bounds what waits and what is being exported together.
  if (!guard_->Admit()) return;
  bool full = false;
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    late = ending_;
    if (!late) queue_.push_back(std::move(span));
    // Only by the one that fills it: the worker is woken once a batch.
    full = queue_.size() == batch_size_;
  }
  if (late) guard_->DropAtShutdown(1);
  if (full) work_.notify_one();
}

bool SpanBatcher::ForceFlush(Timeout timeout) noexcept {
  std::unique_lock lock(mutex_);
  // Spans are numbered by their order in the queue: all up to here are to be out. Those that end meanwhile
  // are not waited for.
  const uint64_t target = taken_ + queue_.size();
  flush_up_to_ = std::max(flush_up_to_, target);
  work_.notify_one();
  // Longer ones, such as the interface's default, do not fit into a time to come.
  constexpr Timeout kLong = std::chrono::hours(24);
  return progress_.wait_for(lock, std::min(timeout, kLong), [&] { return done_ >= target; });
}

bool SpanBatcher::Shutdown(Timeout timeout) noexcept {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_one();
  // Several may shut down at once; one joins, the others wait for it.
  const std::lock_guard lock(joining_);
  if (!worker_.joinable()) return true;
  worker_.join();
  return exporter_->Shutdown(timeout);
}

void SpanBatcher::Work() {
  Spans batch;
  while (Take(batch)) {
    guard_->Run(batch.size(), [&] { return exporter_->Export({batch.data(), batch.size()}); });
    const size_t count = batch.size();
    batch.clear();
    const std::lock_guard lock(mutex_);
    done_ += count;
    progress_.notify_all();
  }
}

bool SpanBatcher::Take(Spans& batch) {
  std::unique_lock lock(mutex_);
  const auto wanted = [this] { return queue_.size() >= batch_size_ || flush_up_to_ > taken_ || ending_; };
  // While it ends, what is queued goes out in batches still; an empty batch is the end.
  do {
    work_.wait_for(lock, interval_, wanted);
  } while (queue_.empty() && !ending_);
  const auto end = queue_.begin() + static_cast<ptrdiff_t>(std::min(batch_size_, queue_.size()));
  batch.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  taken_ += batch.size();
  return !batch.empty();
}

}  // namespace tensorcast::otel::sdk
