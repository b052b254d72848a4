// A collector in this process that can misbehave as real collectors do. It keeps what it accepts.
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "otel/sdk/receiver/export_call.h"
#include "otel/sdk/receiver/received_telemetry.h"

namespace tensorcast::otel::testing {

enum class Behaviour {
  kAccept,
  kHang,    // does not answer until the behaviour changes or the caller gives up
  kRefuse,  // answers UNAVAILABLE, which allows a retry
  kReject,  // answers INVALID_ARGUMENT, which does not
};

class Collector : public ReceivedTelemetry {
 public:
  // `listen`: host:port; port 0 picks one.
  static absl::StatusOr<std::unique_ptr<Collector>> Start(const std::string& listen = "127.0.0.1:0");

  const std::string& endpoint() const { return server_->endpoint(); }  // http://host:port
  // Hanging calls are then answered by the new behaviour.
  void SetBehaviour(Behaviour behaviour) ABSL_LOCKS_EXCLUDED(mutex_);

  StringMap last_headers() const ABSL_LOCKS_EXCLUDED(mutex_);  // metadata of the latest call
  int calls() const ABSL_LOCKS_EXCLUDED(mutex_);               // that began, answered or not

 private:
  class Call;

  Collector() = default;

  void Count(StringMap headers) ABSL_LOCKS_EXCLUDED(mutex_);
  Behaviour behaviour() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Both return false when another thread answers the call.
  bool Hang(Call* call) ABSL_LOCKS_EXCLUDED(mutex_);
  bool StopHanging(Call* call) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  StringMap headers_ ABSL_GUARDED_BY(mutex_);
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  Behaviour behaviour_ ABSL_GUARDED_BY(mutex_) = Behaviour::kAccept;
  std::set<Call*> hanging_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ExportServer> server_;  // last: destroyed before the members that its calls use
};

}  // namespace tensorcast::otel::testing
