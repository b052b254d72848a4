// Resolves keys at the global store or, while the global store does not answer, from this node's memory.
//
// A node remembers the keys that it resolved, bound or watched, also across restarts. An answer from memory
// is marked as unconfirmed: another node may have rebound or deleted the key.
//
// No answer is older than a binding or deletion that this node saw before. A higher revision is newer. A
// lower revision is newer if it was bound later, by a global store that had lost the higher revision. If the
// node cannot order two bindings, it remembers neither. An older answer of the global store (after a restore
// from a backup) is not passed on. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "daemon/global_store_link/global_store_client.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class KnownKeys {
 public:
  // How an answer of the global store compares with what this node knew of the key.
  enum class Order : uint8_t {
    // The answer is the newest known binding, and is remembered now.
    kCurrent,
    // The answer was requested before the remembered binding was noted: either may be newer.
    kCrossed,
    // The answer is older than the binding that was remembered when the answer was requested.
    kOlder,
  };

  // Reads `file` now; Save writes it. A missing or damaged file counts as empty. `global_store` must outlive
  // this object.
  KnownKeys(GlobalStoreClient* global_store, std::string file, size_t max = 4096);

  // Waits at most two seconds for each answer of the global store. If the store gives no answer or an older
  // binding, returns the remembered binding, marked as unconfirmed; with `confirmed`, or if no binding is
  // remembered, returns UNAVAILABLE. NOT_FOUND if the global store does not have the key. `manifest`, if not
  // null, gets the manifest of the returned artifact, or stays empty.
  absl::StatusOr<v1::ResolveKeyResponse> Resolve(const RequestContext& context, const std::string& name,
                                                 bool confirmed = false, std::string* manifest = nullptr);

  // The last binding that this node saw; nullopt if the key may have been unbound since then.
  std::optional<v1::Key> Find(const std::string& name);

  // The next functions take answers of the global store. Pass an answer on only after the function returned:
  // from then on the file has no older binding of the key.

  // Takes an answer to a request made at `asked`.
  Order Note(const v1::Key& key, SteadyTime asked);
  // Like Note, for many keys. May ignore keys that are not remembered yet.
  void NoteListed(const google::protobuf::RepeatedPtrField<v1::Key>& keys, SteadyTime asked);
  // Takes an answer of a watch that began at `began`. Returns kOlder for every older binding.
  Order NoteWatched(const v1::Key& key, SteadyTime began);
  // A put bound the key. `key` has the binding's revision; `key.updated`: a time on this node's clock, after
  // the binding. A repeated put gets the answer of the first put, so `key` may have an older revision than
  // the remembered binding.
  void NotePut(const v1::Key& key, SteadyTime asked);
  // A watch reported that this binding was deleted, at `key.updated`.
  Order NoteDeletion(const v1::Key& key);
  // The key was deleted through this node.
  void NoteDeleted(const std::string& name, SteadyTime asked);
  // The key was found unbound. Returns kCrossed if an answer noted since `asked` bound the key.
  Order Forget(const std::string& name, SteadyTime asked);

  // Writes the file if a binding changed since the last write. A failure is logged, and the next call tries
  // again.
  void Save() ABSL_LOCKS_EXCLUDED(save_mutex_, mutex_);

 private:
  struct Entry {
    // Without an artifact id: the key is not known to be bound. A binding is then newer if it has a higher
    // revision or was made after `key.updated`.
    v1::Key key;
    SteadyTime noted;
    bool exact = false;  // exactly this revision was deleted: any higher revision is newer

    bool IsBound() const { return !key.artifact_id().empty(); }
  };
  using Entries = std::list<Entry>;
  enum class Unknown : uint8_t { kRemember, kIgnore };
  enum class What : uint8_t { kAll, kNotedHere };

  static bool IsOlder(const v1::Key& key, const v1::Key& known);
  Order NoteAnswer(const v1::Key& key, SteadyTime asked, Unknown unknown);
  absl::StatusOr<v1::ResolveKeyResponse> FromMemory(const std::string& name, bool confirmed,
                                                    const absl::Status& reason, std::string_view remedy);
  absl::Status Behind(const v1::Key& answer);
  // The entry of the key, which becomes the most recently used; null when the key is not remembered.
  Entry* Get(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Put(Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Bind(Entry& entry, const v1::Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unbind(Entry& entry, uint64_t revision, bool exact) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the file's entry for the key differs from the remembered one.
  bool FileDiffers(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the file if its entry for this key is outdated. Call this before passing on an answer.
  void Settle(const std::string& name) ABSL_LOCKS_EXCLUDED(save_mutex_, mutex_);
  void Write(What what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(save_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  void Load();

  GlobalStoreClient* const global_store_;
  const std::string file_;
  const size_t max_;

  absl::Mutex save_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one writer of the file
  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  absl::flat_hash_map<std::string, Entries::iterator> by_name_ ABSL_GUARDED_BY(mutex_);
  // When a key that is not in `entries_` was last found unbound.
  SteadyTime forgotten_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  // The content of the file: name -> revision and artifact id.
  using Filed = absl::flat_hash_map<std::string, std::pair<uint64_t, std::string>>;
  Filed filed_ ABSL_GUARDED_BY(mutex_);
  bool failing_ ABSL_GUARDED_BY(save_mutex_) = false;
};

}  // namespace tensorcast::daemon
