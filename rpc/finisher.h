// Ends a call from any thread, at any later time: an asynchronous handler gets one and returns.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace tensorcast::rpc {

// Copies share one call. The first Finish counts, later ones do nothing; when the last copy goes without one,
// the call ends with INTERNAL, so none is ever left hanging. Thread-safe. After Finish the call's request and
// response must not be touched.
class Finisher {
 public:
  explicit Finisher(std::function<void(absl::Status)> finish);

  void Finish(absl::Status status) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tensorcast::rpc
