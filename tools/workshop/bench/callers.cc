#include "tools/workshop/bench/callers.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/channel.h"
#include "rpc/credentials.h"

namespace tensorcast::bench {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(20);

}  // namespace

class Callers::Stub {
 public:
  Stub(const std::string& address, std::shared_ptr<security::Identity> identity)
      : stub_(v1::GlobalStore::NewStub(rpc::MakeChannel(
            address, {.credentials = identity == nullptr
                                         ? nullptr
                                         : std::make_shared<rpc::Credentials>(std::move(identity))}))) {}
  v1::GlobalStore::Stub& operator*() { return *stub_; }

 private:
  const std::unique_ptr<v1::GlobalStore::Stub> stub_;
};

Callers::Callers(const RequestContext& context, const std::string& address, std::string key,
                 std::shared_ptr<security::Identity> identity)
    : context_(context), key_(std::move(key)), stub_(std::make_unique<Stub>(address, std::move(identity))) {}

Callers::~Callers() = default;

absl::StatusOr<CallWindow> Callers::Run(absl::Duration length) {
  CallWindow window;
  absl::Mutex mutex;
  absl::Status failure;
  std::atomic<bool> stop = false;
  std::vector<std::thread> callers;
  const SteadyTime start = SteadyNow();
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      std::vector<double> latencies;
      absl::Status status;
      while (!stop && status.ok()) status = CallOnce(&latencies);
      absl::MutexLock lock(&mutex);
      window.latencies_ms.insert(window.latencies_ms.end(), latencies.begin(), latencies.end());
      failure.Update(status);
    });
  }
  absl::SleepFor(length);
  stop = true;
  for (std::thread& caller : callers) caller.join();
  const absl::Duration elapsed = SteadyNow() - start;
  TC_RETURN_IF_ERROR(failure);
  window.calls_per_second = static_cast<double>(window.latencies_ms.size()) / absl::ToDoubleSeconds(elapsed);
  return window;
}

absl::Status Callers::CallOnce(std::vector<double>* latencies) {
  RequestContext context = context_;
  // A trace for each call, as for a client's calls: sampling decides by the trace.
  context.trace = TraceContext::NewRoot();
  context.deadline = std::min(context.deadline, SteadyNow() + kCallTimeout);
  v1::ResolveKeyRequest request;
  request.set_key(key_);
  const SteadyTime start = SteadyNow();
  TC_RETURN_IF_ERROR(
      rpc::CallUnary(**stub_, &v1::GlobalStore::Stub::ResolveKey, context, request, {.what = "resolving"})
          .status());
  latencies->push_back(absl::ToDoubleMilliseconds(SteadyNow() - start));
  return absl::OkStatus();
}

}  // namespace tensorcast::bench
