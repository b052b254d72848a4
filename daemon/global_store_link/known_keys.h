// What keys mean: the global store's word while it answers, and this node's memory of that word while it does
// not.
//
// A node remembers the keys that it resolved, bound or watched, the last used of them, in its state
// directory, too: a daemon that is started while the global store is away still gives its packed artifacts by
// name. What comes from memory alone is marked as unconfirmed; the key may have been bound anew or removed
// elsewhere. Thread-safe.
#pragma once

#include <list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "daemon/global_store_link/global_store_client.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

struct ResolvedKey {
  v1::Key key;
  bool unconfirmed = false;
};

class KnownKeys {
 public:
  // `file` is read now and written by Save; one that is missing or damaged is as an empty one. `global_store`
  // must outlive it.
  KnownKeys(GlobalStoreClient* global_store, std::string file, size_t most = 4096);

  // NOT_FOUND when the global store says so. UNAVAILABLE when it does not answer (it is given two seconds, or
  // a moment where it did not answer before) and this node does not know the key.
  absl::StatusOr<ResolvedKey> Resolve(const RequestContext& context, const std::string& name);

  // The global store's word in answer to a question that was asked at `asked`. Answers that crossed on the
  // way do not undo each other.
  void Note(const v1::Key& key, SteadyTime asked);
  void Forget(const std::string& name, SteadyTime asked);

  // Writes the file if something changed since it was written. A failure is logged, and the next call tries
  // again.
  void Save();

 private:
  struct Entry {
    v1::Key key;
    SteadyTime noted;
  };
  using Entries = std::list<Entry>;

  std::optional<v1::Key> Find(const std::string& name);
  void Put(Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Load();

  GlobalStoreClient* const global_store_;
  const std::string file_;
  const size_t most_;

  absl::Mutex save_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one writer of the file
  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // the last used first
  absl::flat_hash_map<std::string, Entries::iterator> by_name_ ABSL_GUARDED_BY(mutex_);
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool failing_ ABSL_GUARDED_BY(save_mutex_) = false;
};

}  // namespace tensorcast::daemon
