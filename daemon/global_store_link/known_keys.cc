#include "daemon/global_store_link/known_keys.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/log/log.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr absl::Duration kPatienceWhileAway = absl::Milliseconds(500);
// A key that is bound and deleted all the time can make each answer doubtful.
constexpr int kMaxQuestions = 4;

absl::Status WithMessage(const absl::Status& status, std::string_view message) {
  absl::Status renamed(status.code(), message);
  status.ForEachPayload(
      [&](std::string_view type, const absl::Cord& payload) { renamed.SetPayload(type, payload); });
  return renamed;
}

v1::ResolveKeyResponse Resolved(v1::Key key, bool unconfirmed) {
  v1::ResolveKeyResponse resolved;
  *resolved.mutable_key() = std::move(key);
  resolved.set_unconfirmed(unconfirmed);
  return resolved;
}

std::pair<uint64_t, std::string> Filing(const v1::Key& key) { return {key.revision(), key.artifact_id()}; }

}  // namespace

// A remembered key is bound, unbound exactly or unbound. Bound: the newest binding that this node saw.
// Unbound exactly: this very revision was deleted, so a higher one is newer for certain. Unbound: somewhere
// at or after this revision the key was not bound, so only an answer that was asked for later can bind it
// again. Unknown keys share `forgotten_`, the last time at which one of them was found unbound.
KnownKeys::KnownKeys(GlobalStoreClient* global_store, std::string file, size_t max)
    : global_store_(global_store), file_(std::move(file)), max_(max) {
  Load();
}

absl::StatusOr<v1::ResolveKeyResponse> KnownKeys::Resolve(const RequestContext& context,
                                                          const std::string& name, bool confirmed,
                                                          std::string* manifest) {
  for (int question = 0; question < kMaxQuestions; ++question) {
    const SteadyTime asked = SteadyNow();
    const bool away = global_store_->away_for() > absl::ZeroDuration();
    RequestContext call = context;
    // Long enough for a global store that is well, less where it is known to be away: a key that is known
    // here need not cost the caller its whole time.
    call.deadline = std::min(context.deadline, asked + (away ? kPatienceWhileAway : kPatience));
    absl::StatusOr<v1::Key> key = global_store_->ResolveKey(call, name, manifest);
    if (key.ok()) {
      const Order order = Note(*key, asked);
      if (order == Order::kCurrent) return Resolved(*std::move(key), false);
      if (manifest != nullptr) manifest->clear();  // of an answer that is not passed on
      if (order == Order::kOlder) return FromMemory(name, confirmed, Behind(*key), ", or bind the key again");
      // What was noted since the question is the global store's word, too, unless that is a deletion: then
      // the key may have been bound before it or after it.
      if (std::optional<v1::Key> known = Find(name); known.has_value()) {
        return Resolved(*std::move(known), false);
      }
      continue;
    }
    const absl::Status& status = key.status();
    if (absl::IsNotFound(status)) {
      if (Forget(name, asked) == Order::kCrossed) continue;
      return status;
    }
    if (!absl::IsUnavailable(status)) return status;
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("resolve key ", name)));
    return FromMemory(name, confirmed, status, "");
  }
  return absl::UnavailableError(absl::StrCat(
      "resolve key ", name, ": another process bound and deleted the key during the call; try again"));
}

absl::Status KnownKeys::Behind(const v1::Key& answer) {
  absl::MutexLock lock(&mutex_);
  const Entry* known = Get(answer.name());
  return rpc::WithoutRetry(absl::UnavailableError(
      absl::StrCat("the global store has revision ", answer.revision(), ", but this node has seen ",
                   known == nullptr   ? "a later revision"
                   : known->IsBound() ? absl::StrCat("revision ", known->key.revision())
                                      : "the deletion of the key",
                   "; check that this is the same global store, and that it was not restored from an older "
                   "back-up")));
}

absl::StatusOr<v1::ResolveKeyResponse> KnownKeys::FromMemory(const std::string& name, bool confirmed,
                                                             const absl::Status& reason,
                                                             std::string_view remedy) {
  std::optional<v1::Key> known = Find(name);
  if (!known.has_value()) {
    return WithMessage(reason,
                       absl::StrCat("resolve key ", name, ": this node knows no binding of the key, and ",
                                    reason.message(), remedy));
  }
  if (confirmed) {
    return WithMessage(
        reason,
        absl::StrCat("resolve key ", name, ": the call accepts only a confirmed answer, and ",
                     reason.message(), remedy, ", or use the artifact id of the unconfirmed revision ",
                     known->revision(), ", the last that this node has seen: ", known->artifact_id()));
  }
  LOG(WARNING) << "resolve key " << name << ": this node answers with " << known->artifact_id()
               << ", revision " << known->revision() << ", the last that this node has seen, because "
               << reason.message();
  return Resolved(*std::move(known), /*unconfirmed=*/true);
}

// Revisions of a key grow, and those of a deleted key are not used again. A global store that lost the higher
// ones uses them again, for what is bound later. Without a time of the known binding that cannot be told.
bool KnownKeys::IsOlder(const v1::Key& key, const v1::Key& known) {
  if (key.revision() > known.revision()) return false;
  if (key.revision() == known.revision() && key.artifact_id() == known.artifact_id()) return false;
  return !known.has_updated() || rpc::FromProto(key.updated()) <= rpc::FromProto(known.updated());
}

std::optional<v1::Key> KnownKeys::Find(const std::string& name) {
  Settle(name);
  absl::MutexLock lock(&mutex_);
  const Entry* entry = Get(name);
  if (entry == nullptr || !entry->IsBound()) return std::nullopt;
  return entry->key;
}

KnownKeys::Entry* KnownKeys::Get(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  // The list is in the order of use: this entry is now the last to be dropped.
  entries_.splice(entries_.begin(), entries_, found->second);
  return &*found->second;
}

// `asked` is taken before the call: what was noted while it was under way may be newer than its answer.
KnownKeys::Order KnownKeys::NoteAnswer(const v1::Key& key, SteadyTime asked, Unknown unknown) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = Get(key.name());
  if (entry == nullptr) {
    // Where some key was found to be unbound since then, this one may have been: it is not remembered.
    if (unknown == Unknown::kRemember && asked >= forgotten_) {
      Put({.key = key, .noted = SteadyNow()});
      Bind(entries_.front(), key);
    }
    return Order::kCurrent;
  }
  const bool crossed = asked < entry->noted;
  if (IsOlder(key, entry->key)) return crossed ? Order::kCrossed : Order::kOlder;
  if (!entry->IsBound() && !entry->exact && crossed) return Order::kCrossed;
  Bind(*entry, key);
  return Order::kCurrent;
}

KnownKeys::Order KnownKeys::Note(const v1::Key& key, SteadyTime asked) {
  const Order order = NoteAnswer(key, asked, Unknown::kRemember);
  Settle(key.name());
  return order;
}

void KnownKeys::NoteListed(const google::protobuf::RepeatedPtrField<v1::Key>& keys, SteadyTime asked) {
  for (const v1::Key& key : keys) NoteAnswer(key, asked, Unknown::kIgnore);
  // The first that differs settles all of them.
  for (const v1::Key& key : keys) Settle(key.name());
}

KnownKeys::Order KnownKeys::NoteWatched(const v1::Key& key, SteadyTime began) {
  {
    absl::MutexLock lock(&mutex_);
    const Entry* entry = Get(key.name());
    if (entry != nullptr && IsOlder(key, entry->key)) return Order::kOlder;
    // Nothing is known of it that this could contradict, so it is as good as an answer given now.
    if (entry == nullptr) began = SteadyNow();
  }
  return Note(key, began);
}

void KnownKeys::NotePut(const v1::Key& key, SteadyTime asked) {
  {
    absl::MutexLock lock(&mutex_);
    Entry* entry = Get(key.name());
    if (entry == nullptr) {
      if (asked >= forgotten_) {
        Put({.key = key, .noted = SteadyNow()});
        Bind(entries_.front(), key);
      }
    } else if (key.revision() > entry->key.revision()) {
      // Otherwise the key was found unbound while the put was under way: it may have been deleted after the
      // put.
      if (entry->IsBound() || entry->exact || asked >= entry->noted) Bind(*entry, key);
    } else if (Filing(key) != Filing(entry->key)) {
      // A time tells later what is newer; without one, all from this put's revision on may be.
      const uint64_t last =
          entry->key.has_updated() ? entry->key.revision() : std::min(key.revision(), entry->key.revision());
      Unbind(*entry, last == 0 ? 0 : last - 1, /*exact=*/false);
    }
  }
  Settle(key.name());
}

KnownKeys::Order KnownKeys::NoteDeletion(const v1::Key& key) {
  {
    absl::MutexLock lock(&mutex_);
    Entry* entry = Get(key.name());
    if (entry == nullptr) {
      forgotten_ = SteadyNow();
    } else {
      const bool older = key.revision() < entry->key.revision() && IsOlder(key, entry->key);
      if (older) return entry->IsBound() ? Order::kOlder : Order::kCurrent;
      *entry->key.mutable_updated() = key.updated();
      Unbind(*entry, key.revision(), /*exact=*/true);
    }
  }
  Settle(key.name());
  return Order::kCurrent;
}

void KnownKeys::NoteDeleted(const std::string& name, SteadyTime asked) {
  {
    absl::MutexLock lock(&mutex_);
    Entry* entry = Get(name);
    if (entry == nullptr) {
      v1::Key unbound;
      unbound.set_name(name);
      Put({.key = std::move(unbound), .noted = SteadyNow()});
    } else {
      // What was noted meanwhile may have been bound after the deletion.
      const uint64_t revision = entry->key.revision();
      const bool after = entry->IsBound() && asked < entry->noted && revision > 0;
      Unbind(*entry, after ? revision - 1 : revision, /*exact=*/false);
    }
  }
  Settle(name);
}

KnownKeys::Order KnownKeys::Forget(const std::string& name, SteadyTime asked) {
  {
    absl::MutexLock lock(&mutex_);
    Entry* entry = Get(name);
    if (entry == nullptr) {
      forgotten_ = SteadyNow();
    } else {
      if (entry->IsBound() && asked < entry->noted) return Order::kCrossed;
      Unbind(*entry, entry->key.revision(), /*exact=*/false);
    }
  }
  Settle(name);
  return Order::kCurrent;
}

void KnownKeys::Bind(Entry& entry, const v1::Key& key) {
  changed_ |= Filing(entry.key) != Filing(key) || !filed_.contains(key.name());
  entry = {.key = key, .noted = SteadyNow()};
  entry.key.clear_earlier();  // there may be a thousand
}

void KnownKeys::Unbind(Entry& entry, uint64_t revision, bool exact) {
  entry.key.clear_artifact_id();
  entry.key.set_revision(revision);
  entry.noted = SteadyNow();
  entry.exact = exact;
  changed_ = true;
}

void KnownKeys::Put(Entry entry) {
  entries_.push_front(std::move(entry));
  by_name_[entries_.front().key.name()] = entries_.begin();
  changed_ = true;
  if (entries_.size() > max_) {
    by_name_.erase(entries_.back().key.name());
    entries_.pop_back();
  }
}

bool KnownKeys::FileDiffers(const std::string& name) const {
  const auto filed = filed_.find(name);
  if (filed == filed_.end()) return false;
  const auto known = by_name_.find(name);
  return known == by_name_.end() || filed->second != Filing(known->second->key);
}

// A daemon that is killed now, and started while the global store is away, answers from the file.
void KnownKeys::Settle(const std::string& name) {
  {
    absl::MutexLock lock(&mutex_);
    if (!FileDiffers(name)) return;
  }
  absl::MutexLock save_lock(&save_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (!FileDiffers(name)) return;  // another thread wrote it
  }
  // Without the keys that only the file of before names: they may be out of date as well, and each of them
  // would ask for a write of its own as it is found to be, when a watch begins. They are written again soon.
  Write(What::kNotedHere);
}

// The file has the last used first; put in from the end, they come to stand in that order again. Their time
// is the infinite past, since all questions of this process come later.
void KnownKeys::Load() {
  std::ifstream file(file_, std::ios::binary);
  if (!file) return;
  v1::ListKeysResponse known;
  if (!known.ParseFromIstream(&file)) {
    LOG(WARNING) << "read " << file_
                 << ": the file is damaged, so this node forgets the keys that it knew; no action is needed "
                    "while the global store answers";
    return;
  }
  absl::MutexLock lock(&mutex_);
  for (auto key = known.keys().rbegin(); key != known.keys().rend(); ++key) {
    // `filed_` is what the file holds. By it this object sees when the file has to be written again.
    filed_[key->name()] = Filing(*key);
    if (!by_name_.contains(key->name())) Put({.key = *key, .noted = SteadyTime::InfinitePast()});
  }
  changed_ = entries_.size() != filed_.size();
}

void KnownKeys::Save() {
  absl::MutexLock save_lock(&save_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (!changed_) return;
  }
  Write(What::kAll);
}

// One writer at a time, and the table's mutex is not held while the disk works.
void KnownKeys::Write(What what) {
  v1::ListKeysResponse known;
  Filed filed;
  {
    absl::MutexLock lock(&mutex_);
    changed_ = false;  // before the write: a change that comes during it asks for another
    for (const Entry& entry : entries_) {
      if (what == What::kNotedHere && entry.noted == SteadyTime::InfinitePast()) {
        changed_ = true;
        continue;
      }
      *known.add_keys() = entry.key;
      filed[entry.key.name()] = Filing(entry.key);
    }
  }
  const absl::Status written = ReplaceFile(file_, known.SerializeAsString());
  LOG_IF(WARNING, !written.ok() && !failing_)
      << "keep the known keys for the next start of this node: " << written << "; this daemon tries again";
  failing_ = !written.ok();
  absl::MutexLock lock(&mutex_);
  if (!failing_) {
    filed_ = std::move(filed);
    return;
  }
  changed_ = true;
  // A key that is not in the file is better than one that is out of date there.
  bool differs = false;
  for (const auto& [name, filing] : filed_) differs |= FileDiffers(name);
  if (!differs) return;
  std::error_code error;
  std::filesystem::remove(file_, error);
  if (!error) filed_.clear();
}

}  // namespace tensorcast::daemon
