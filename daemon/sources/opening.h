// A source that is being opened on its own thread.
//
// Thread-safe, except Take. The destructor cancels the opening and waits for its end: usually a moment, at
// most the peer timeout.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/artifact/manifest.h"
#include "daemon/sources/granted_source.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class Opening {
 public:
  struct Plan {
    const GrantedSourceOpener* opener = nullptr;  // must outlive the opening
    RequestContext context;                       // its cancellation is ignored; use Cancel
    v1::TransportGrant grant;
    std::shared_ptr<const Manifest> manifest;
    std::string lane;               // forced; empty: the fastest that works
    Cancellation revoked;           // of the grant
    std::function<void()> on_over;  // called on the opening's thread; must not block
  };

  explicit Opening(Plan plan);
  ~Opening();
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  SteadyTime since() const { return since_; }
  bool over() const;
  void Cancel() { cancellation_.Cancel(); }
  // Waits at most until the time `until`. Returns whether the opening is over.
  bool AwaitEnd(SteadyTime until) const;
  // Returns the result. REQUIRES: over(), and Take was not called before.
  GrantOpening Take();
  // The time from since() to the end. REQUIRES: over().
  absl::Duration took() const;

 private:
  void Run();

  const Plan plan_;
  const SteadyTime since_;
  const Cancellation cancellation_;
  mutable absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration took_ ABSL_GUARDED_BY(mutex_);
  GrantOpening result_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tensorcast::daemon
