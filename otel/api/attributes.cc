#include "otel/api/attributes.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::otel {
namespace {

// Every name of the list, for callers that spell a name out instead of using the constant.
constexpr AttributeKey kListed[] = {
#define X(name, text) attr::k##name,
    TENSORCAST_ATTRIBUTES(X)
#undef X
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
  // The list is searched first: it is constant, and needs no lock.
  if (key.listed() || allow_all.load(std::memory_order_relaxed)) return true;
  if (std::ranges::any_of(kListed, [&](const AttributeKey& one) { return one.name() == key.name(); })) {
    return true;
  }
  absl::ReaderMutexLock lock(&extra().mutex);
  return extra().keys.contains(key.name());
}

}  // namespace tensorcast::otel
