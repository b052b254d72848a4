// What keys mean: the global store's word while it answers, and this node's memory of that word while it does
// not.
//
// A node remembers the keys that it resolved, bound or watched, the last used of them, in its state
// directory, too: a daemon that is started while the global store is away still gives its packed artifacts by
// name. An answer from memory alone is marked as unconfirmed: the key may have been bound anew or removed
// elsewhere.
//
// No answer is older than one that this node gave or saw before, a deletion included, also after a restart of
// the daemon. Bindings of a key are ordered by revision; a lower revision is newer only where it was bound
// later, by a global store that had lost the higher one. Where it cannot be told which of two answers is the
// newer, neither is given from memory. An answer of the global store that is older (it was restored from a
// backup) is not passed on. Thread-safe.
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
    kCurrent,  // it is the newest word there is, and is known now
    kCrossed,  // it was asked for before what is known was noted: which of them is newer is not known
    kOlder,    // it is older than what was known already when it was asked for
  };

  // `file` is read now and written by Save; one that is missing or damaged is as an empty one. `global_store`
  // must outlive it.
  KnownKeys(GlobalStoreClient* global_store, std::string file, size_t max = 4096);

  // NOT_FOUND when the global store says so. Where the global store does not answer (it is given two seconds,
  // or a moment where it did not answer before), or answers with an older binding, what this node knows,
  // marked as unconfirmed; UNAVAILABLE when it knows nothing, or when only a `confirmed` answer will do.
  // `manifest`, where it is not null, is asked for by the same call, and is that of the returned artifact.
  absl::StatusOr<v1::ResolveKeyResponse> Resolve(const RequestContext& context, const std::string& name,
                                                 bool confirmed = false, std::string* manifest = nullptr);

  // The last binding that this node saw; nullopt where it may be unbound since.
  std::optional<v1::Key> Find(const std::string& name);

  // What follows is the global store's word. It may be passed on once these return: what the file had of the
  // key before is replaced by then.

  // In answer to a question that was asked at `asked`.
  Order Note(const v1::Key& key, SteadyTime asked);
  // The same of many, which need not be remembered where they are not known yet.
  void NoteListed(const google::protobuf::RepeatedPtrField<v1::Key>& keys, SteadyTime asked);
  // From a watch that began at `began`. Never kCrossed for what is older.
  Order NoteWatched(const v1::Key& key, SteadyTime began);
  // A put bound the key; `key` has its revision and, by this node's clock, a time not before the binding. A
  // repeated put is told what it was told first, so a revision that is not higher only says that what is
  // known may be out of date.
  void NotePut(const v1::Key& key, SteadyTime asked);
  // A watch says that this binding was deleted, at `key.updated`.
  Order NoteDeletion(const v1::Key& key);
  // The key was deleted through this node.
  void NoteDeleted(const std::string& name, SteadyTime asked);
  // The key is not bound. kCrossed where it was bound by an answer noted since `asked`.
  Order Forget(const std::string& name, SteadyTime asked);

  // Writes the file if something changed since it was written. A failure is logged, and the next call tries
  // again.
  void Save() ABSL_LOCKS_EXCLUDED(save_mutex_, mutex_);

 private:
  struct Entry {
    // Without an artifact id the key is not known to be bound: what comes after this revision is news, and
    // what was bound after `updated`.
    v1::Key key;
    SteadyTime noted;
    bool exact = false;  // this revision was deleted, so that a higher one was bound after that

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
  // Null when the key is not known; else it is the last used from now on.
  Entry* Get(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Put(Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Bind(Entry& entry, const v1::Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unbind(Entry& entry, uint64_t revision, bool exact) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the file has something else of the key than is known.
  bool FileDiffers(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes the file where it differs. To be called with no lock held, before the caller passes on an answer.
  void Settle(const std::string& name) ABSL_LOCKS_EXCLUDED(save_mutex_, mutex_);
  void Write(What what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(save_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  void Load();

  GlobalStoreClient* const global_store_;
  const std::string file_;
  const size_t max_;

  absl::Mutex save_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one writer of the file
  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // the last used first
  absl::flat_hash_map<std::string, Entries::iterator> by_name_ ABSL_GUARDED_BY(mutex_);
  // When a key that is not in `entries_` was last found to be unbound.
  SteadyTime forgotten_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  // What the file has: name -> revision and artifact id.
  using Filed = absl::flat_hash_map<std::string, std::pair<uint64_t, std::string>>;
  Filed filed_ ABSL_GUARDED_BY(mutex_);
  bool failing_ ABSL_GUARDED_BY(save_mutex_) = false;
};

}  // namespace tensorcast::daemon
