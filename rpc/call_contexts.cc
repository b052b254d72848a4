#include "rpc/call_contexts.h"

#include <grpcpp/server_context.h>

#include <chrono>
#include <utility>

#include "absl/hash/hash.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {

// Never destroyed: calls may still end while the process runs its exit handlers.
CallContexts& CallContexts::ForServer() {
  static auto* const contexts = new CallContexts;
  return *contexts;
}

CallContexts& CallContexts::ForClient() {
  static auto* const contexts = new CallContexts;
  return *contexts;
}

// Many small tables, so that calls on different threads seldom meet at a mutex.
CallContexts::Shard& CallContexts::shard(const void* call) const {
  return shards_[absl::HashOf(call) % shards_.size()];
}

// The address of a call may be used again for a later one, after this call's entry was removed.
void CallContexts::File(const void* call, Entry entry) {
  Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  s.entries.insert_or_assign(call, std::move(entry));
}

std::optional<CallContexts::Entry> CallContexts::Find(const void* call) const {
  const Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  const auto found = s.entries.find(call);
  if (found == s.entries.end()) return std::nullopt;
  return found->second;
}

void CallContexts::Remove(const void* call) {
  Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  s.entries.erase(call);
}

Caller CallerOf(const grpc::ServerContextBase& call) {
  return CallContexts::ForServer().Find(&call).value_or(CallContexts::Entry()).caller;
}

SteadyTime ServerCallDeadline(const grpc::ServerContextBase& call) {
  const std::chrono::system_clock::time_point deadline = call.deadline();
  // gRPC writes "none" as the largest time point, give or take its own conversions.
  if (deadline >= std::chrono::system_clock::time_point::max() - std::chrono::hours(1)) {
    return SteadyTime::InfiniteFuture();
  }
  // gRPC speaks in wall time here, though it measures by the monotonic clock: what is left of it by the wall
  // clock, now, is what is left.
  return SteadyNow() + absl::FromChrono(deadline - std::chrono::system_clock::now());
}

gpr_timespec ToGrpcDeadline(SteadyTime deadline) {
  if (deadline == SteadyTime::InfiniteFuture()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(absl::ToInt64Nanoseconds(TimeLeft(deadline)), GPR_TIMESPAN));
}

RequestContext ServerCallContext(grpc::ServerContextBase* call) {
  if (auto filed = CallContexts::ForServer().Find(call)) return std::move(filed->context);
  RequestContext context;
  context.deadline = ServerCallDeadline(*call);
  context.trace = TraceContext::NewRoot();
  return context;
}

}  // namespace tensorcast::rpc
