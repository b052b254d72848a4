#include "tests/integration/gated_transport.h"

#include <atomic>
#include <utility>

#include "base/steady_time.h"

namespace tensorcast::testing {
namespace {

class GatedPull : public transport::Pull {
 public:
  GatedPull(std::unique_ptr<transport::Pull> pull, Gate* gate) : pull_(std::move(pull)), gate_(gate) {}

  transport::FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                           transport::FetchDone done) override {
    // The pull outlives the fetch: its owner waits for `done` before it destroys the pull.
    const transport::FetchId id = ++fetches_made_;
    gate_->Enter([this, offset, destination = std::move(destination), deadline, done = std::move(done)] {
      pull_->Fetch(offset, destination, deadline, done);
    });
    return id;
  }
  transport::FetchId FetchToDevice(uint64_t offset, DevicePtr destination, uint64_t bytes,
                                   SteadyTime deadline, transport::FetchDone done) override {
    const transport::FetchId id = ++fetches_made_;
    gate_->Enter([this, offset, destination, bytes, deadline, done = std::move(done)] {
      pull_->FetchToDevice(offset, destination, bytes, deadline, done);
    });
    return id;
  }
  // As a lane does that cannot take back one range.
  void CancelFetch(transport::FetchId) override { Cancel(); }
  void SetSilenceLimit(absl::Duration limit) override { pull_->SetSilenceLimit(limit); }
  void Cancel() override {
    pull_->Cancel();
    gate_->Release();
  }

 private:
  const std::unique_ptr<transport::Pull> pull_;
  Gate* const gate_;
  std::atomic<transport::FetchId> fetches_made_ = 0;
};

class GatedTransport : public transport::Transport {
 public:
  GatedTransport(Gate* gate, const transport::LoopbackOptions& options)
      : gate_(gate), transport_(transport::NewLoopbackTransport(options)) {}

  std::string_view name() const override { return transport_->name(); }
  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override {
    return transport_->RegisterMemory(base, bytes);
  }
  transport::LaneMemory memory() const override { return transport_->memory(); }
  absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr base, uint64_t bytes) override {
    return transport_->RegisterDevice(base, bytes);
  }
  absl::StatusOr<std::unique_ptr<transport::Serving>> Serve(std::shared_ptr<transport::ServedImage> image,
                                                            std::string_view receiver) override {
    return transport_->Serve(std::move(image), receiver);
  }
  absl::StatusOr<std::unique_ptr<transport::Pull>> Connect(const RequestContext& context,
                                                           std::string_view descriptor) override {
    absl::StatusOr<std::unique_ptr<transport::Pull>> pull = transport_->Connect(context, descriptor);
    if (!pull.ok()) return pull.status();
    return std::make_unique<GatedPull>(*std::move(pull), gate_);
  }

 private:
  Gate* const gate_;
  const std::unique_ptr<transport::Transport> transport_;
};

}  // namespace

void Gate::Hold(int pass) {
  absl::MutexLock lock(&mutex_);
  held_ = true;
  pass_ = pass;
}

// The fetches start without the lock: one that is refused completes at once, and its owner may fetch again.
void Gate::Release() {
  std::vector<std::function<void()>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    held_ = false;
    waiting.swap(waiting_);
  }
  for (const std::function<void()>& fetch : waiting) fetch();
}

void Gate::AwaitHeld(int count) {
  absl::MutexLock lock(&mutex_);
  const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(waiting_.size()) >= count;
  };
  mutex_.Await(absl::Condition(&enough));
}

void Gate::Enter(std::function<void()> fetch) {
  {
    absl::MutexLock lock(&mutex_);
    if (held_ && pass_ == 0) {
      waiting_.push_back(std::move(fetch));
      return;
    }
    // So many pass after Hold, and then none.
    pass_ -= held_ ? 1 : 0;
  }
  fetch();
}

std::unique_ptr<transport::Transport> NewGatedTransport(Gate* gate,
                                                        const transport::LoopbackOptions& options) {
  return std::make_unique<GatedTransport>(gate, options);
}

}  // namespace tensorcast::testing
