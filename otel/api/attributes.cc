#include "otel/api/attributes.h"

#include <atomic>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::otel {
namespace {

// Every name of the list, for callers that spell a name out instead of using the constant.
constexpr AttributeKey kListed[] = {
    attr::kArtifactId,
    attr::kKey,
    attr::kReplicaId,
    attr::kDeviceId,
    attr::kSessionId,
    attr::kRequestId,
    attr::kGrantId,
    attr::kTransferId,
    attr::kNodeId,
    attr::kPeerNodeId,
    attr::kSizeBytes,
    attr::kSourceType,
    attr::kLocation,
    attr::kOperationType,
    attr::kLane,
    attr::kPreviousLane,
    attr::kStage,
    attr::kChunks,
    attr::kBusySeconds,
    attr::kRefetchedChunks,
    attr::kShared,
    attr::kReason,
    attr::kAttempt,
    attr::kRpcSystem,
    attr::kRpcService,
    attr::kRpcMethod,
    attr::kRpcGrpcStatusCode,
    attr::kDbSystem,
    attr::kDbOperation,
    attr::kErrorType,
    attr::kExceptionType,
    attr::kExceptionMessage,
};

std::atomic<bool> allow_all{false};

struct Extra {
  absl::Mutex mutex;
  std::set<std::string, std::less<>> keys ABSL_GUARDED_BY(mutex);
};

// Never destroyed: spans may still end while the process runs its exit handlers.
Extra& extra() {
  static auto* const extra = new Extra;
  return *extra;
}

}  // namespace

void AllowAttribute(std::string_view key) {
  absl::MutexLock lock(&extra().mutex);
  extra().keys.emplace(key);
}

void AllowAllAttributes(bool allow) { allow_all.store(allow, std::memory_order_relaxed); }

bool IsAttributeAllowed(const AttributeKey& key) {
  if (key.listed() || allow_all.load(std::memory_order_relaxed)) return true;
  for (const AttributeKey& listed : kListed) {
    if (listed.name() == key.name()) return true;
  }
  absl::ReaderMutexLock lock(&extra().mutex);
  return extra().keys.contains(key.name());
}

}  // namespace tensorcast::otel
