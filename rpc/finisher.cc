#include "rpc/finisher.h"

#include <atomic>
#include <utility>

namespace tensorcast::rpc {

struct Finisher::State {
  explicit State(std::function<void(absl::Status)> f) : finish(std::move(f)) {}
  ~State() { Finish(absl::InternalError("the server dropped this call without an answer")); }

  void Finish(absl::Status status) {
    if (!finished.exchange(true)) std::exchange(finish, nullptr)(std::move(status));
  }

  std::function<void(absl::Status)> finish;
  std::atomic<bool> finished{false};
};

Finisher::Finisher(std::function<void(absl::Status)> finish)
    : state_(std::make_shared<State>(std::move(finish))) {}

void Finisher::Finish(absl::Status status) const { state_->Finish(std::move(status)); }

}  // namespace tensorcast::rpc
