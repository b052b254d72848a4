// The connections to a store daemon, and the templates that start a call on a connection and convert the
// call's result. All methods of Python's native Client use these templates.
//
// Threading: Connection is thread-safe. Start is called with the GIL. Made is called on a call's thread.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "client/live.h"
#include "client/versions.h"
#include "core/device/device_runtime.h"
#include "core/replica/transfer_report.h"
#include "python/src/call.h"
#include "python/src/errors.h"
#include "tensorcast/client.h"

namespace tensorcast::python {

// The options of every call.
struct CallOptions {
  SteadyTime deadline = SteadyTime::InfiniteFuture();
  std::string traceparent;
};

// The connections to one daemon. The CUDA runtime and the connections for administration, versions and live
// replicas are made at their first use, because making the CUDA runtime takes time and memory of each GPU.
class Connection {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Open(client::ClientOptions options);

  client::Client& plain() const { return *plain_; }
  absl::StatusOr<client::Client*> WithGpus(const Cancellation& cancellation) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<client::AdminClient*> Admin(const Cancellation& cancellation) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<client::VersionsClient*> Versions(const Cancellation& cancellation)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<client::LiveClient*> Live(const Cancellation& cancellation) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit Connection(client::ClientOptions options) : options_(std::move(options)) {}

  client::ClientOptions options_;  // not changed after Open
  absl::Mutex mutex_;
  // Declared before the clients that use it, so that it is destroyed after them.
  std::unique_ptr<DeviceRuntime> devices_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<client::Client> plain_;
  std::unique_ptr<client::Client> with_gpus_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<client::AdminClient> admin_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<client::VersionsClient> versions_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<client::LiveClient> live_ ABSL_GUARDED_BY(mutex_);
};

// The object behind Python's Client; its methods are in client.cc, administration.cc, versions.cc and
// live.cc.
struct Client {
  std::shared_ptr<Connection> connection;
  ProcessMark process;
};

// A Maker that calls `convert` with the value of `result`, with the GIL, when Python asks for the result.
template <class T, class Convert>
absl::StatusOr<Maker> Made(absl::StatusOr<T> result, Convert convert) {
  if (!result.ok()) return result.status();
  return Maker([value = *std::move(result), convert]() mutable {
    return nanobind::object(convert(std::move(value)));
  });
}
inline absl::StatusOr<Maker> Made(const absl::Status& status) {
  if (!status.ok()) return status;
  return Maker([] { return nanobind::object(nanobind::none()); });
}

// The argument of a call's work.
struct Caller {
  const std::shared_ptr<Connection>& connection;
  const RequestContext& context;
  const Call::Listener& listener;

  client::Client& plain() const { return connection->plain(); }
  // `gpus`: the call attaches to GPU memory or puts from GPU memory, and so needs the CUDA runtime.
  absl::StatusOr<client::Client*> Choose(bool gpus) const {
    return gpus ? connection->WithGpus(context.cancellation) : &connection->plain();
  }
  std::function<void(const TransferProgress&)> OnProgress() const {
    return [this](const TransferProgress& progress) { listener.OnProgress(progress); };
  }
};

// Starts a call that runs `work(caller)`. Raises in a forked child.
template <class Work>
Call Start(const Client& client, const CallOptions& options, Work work,
           nanobind::object borrowed = nanobind::none()) {
  client.process.Check();
  return Call(
      [connection = client.connection, work = std::move(work)](
          const RequestContext& context, const Call::Listener& listener) mutable -> absl::StatusOr<Maker> {
        return work(Caller{connection, context, listener});
      },
      options.deadline, options.traceparent, std::move(borrowed));
}

// Makes a method of Python's Client that starts `work(caller, arguments...)`.
template <class... Arguments, class Work>
auto Method(Work work) {
  return [work](const Client& client, Arguments... arguments, const CallOptions& options) {
    return Start(client, options,
                 [=](const Caller& to) -> absl::StatusOr<Maker> { return work(to, arguments...); });
  };
}

// BindConnection binds Python's Client and the function that connects a Client. The other functions bind the
// methods of Client: for programs (client.cc), for operators (administration.cc), about the versions of keys
// (versions.cc), and for live leases (live.cc).
nanobind::class_<Client> BindConnection(nanobind::module_& module);
void BindTransfers(nanobind::class_<Client>& type);
void BindAdministration(nanobind::class_<Client>& type);
void BindVersions(nanobind::class_<Client>& type);
void BindLive(nanobind::class_<Client>& type);

}  // namespace tensorcast::python
