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

void CallContexts::File(const void* call, RequestContext context) {
  Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  s.contexts.insert_or_assign(call, std::move(context));
}

std::optional<RequestContext> CallContexts::Find(const void* call) const {
  const Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  auto it = s.contexts.find(call);
  if (it == s.contexts.end()) return std::nullopt;
  return it->second;
}

void CallContexts::Remove(const void* call) {
  Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  s.contexts.erase(call);
  s.callers.erase(call);
}

void CallContexts::FileCaller(const void* call, Caller caller, absl::Status refused) {
  Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  s.callers.insert_or_assign(call, std::pair(std::move(caller), std::move(refused)));
}

Caller CallContexts::FindCaller(const void* call) const {
  const Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  const auto it = s.callers.find(call);
  return it == s.callers.end() ? Caller{} : it->second.first;
}

absl::Status CallContexts::FindRefusal(const void* call) const {
  const Shard& s = shard(call);
  absl::MutexLock lock(&s.mutex);
  const auto it = s.callers.find(call);
  return it == s.callers.end() ? absl::OkStatus() : it->second.second;
}

Caller CallerOf(const grpc::ServerContextBase& call) { return CallContexts::ForServer().FindCaller(&call); }

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
  if (auto filed = CallContexts::ForServer().Find(call)) return *std::move(filed);
  RequestContext context;
  context.deadline = ServerCallDeadline(*call);
  context.trace = TraceContext::NewRoot();
  return context;
}

}  // namespace tensorcast::rpc
