#include "daemon/global_store_link/known_keys.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr absl::Duration kPatienceWhileAway = absl::Milliseconds(500);

}  // namespace

KnownKeys::KnownKeys(GlobalStoreClient* global_store, std::string file, size_t most)
    : global_store_(global_store), file_(std::move(file)), most_(most) {
  Load();
}

// `asked` is taken before the call: what was noted while it was under way (a bind, another resolve) is as new
// as its answer or newer, and is not undone by it.
absl::StatusOr<ResolvedKey> KnownKeys::Resolve(const RequestContext& context, const std::string& name) {
  const SteadyTime asked = SteadyNow();
  const bool away = global_store_->away_for() > absl::ZeroDuration();
  RequestContext call = context;
  // Long enough for a global store that is well, less where it is known to be away: a key that is known here
  // need not cost the caller its whole time.
  call.deadline = std::min(context.deadline, asked + (away ? kPatienceWhileAway : kPatience));
  absl::StatusOr<v1::Key> key = global_store_->ResolveKey(call, name);
  if (key.ok()) {
    Note(*key, asked);
    return ResolvedKey{.key = *std::move(key)};
  }
  const absl::Status& status = key.status();
  if (absl::IsNotFound(status)) Forget(name, asked);
  if (!absl::IsUnavailable(status)) return status;
  TC_RETURN_IF_ERROR(context.Check("resolving a key"));
  if (std::optional<v1::Key> known = Find(name); known.has_value()) {
    LOG(WARNING) << "Key " << name << " is taken to be " << known->artifact_id() << ", revision "
                 << known->revision() << ", as this node last knew it: " << status.message();
    return ResolvedKey{.key = *std::move(known), .unconfirmed = true};
  }
  return Annotate(status, absl::StrCat("what key ", name, " means is not known on this node"));
}

std::optional<v1::Key> KnownKeys::Find(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->key;
}

void KnownKeys::Note(const v1::Key& key, SteadyTime asked) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_name_.find(key.name());
  if (found == by_name_.end()) {
    changed_ = true;
    Put({.key = key, .noted = SteadyNow()});
    return;
  }
  Entry& entry = *found->second;
  entries_.splice(entries_.begin(), entries_, found->second);
  // A lower revision is news only from a global store that lost its database.
  if (key.revision() < entry.key.revision() && asked < entry.noted) return;
  changed_ |= key.revision() != entry.key.revision() || key.artifact_id() != entry.key.artifact_id();
  entry = {.key = key, .noted = SteadyNow()};
}

void KnownKeys::Forget(const std::string& name, SteadyTime asked) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end() || asked < found->second->noted) return;
  entries_.erase(found->second);
  by_name_.erase(found);
  changed_ = true;
}

void KnownKeys::Put(Entry entry) {
  entries_.push_front(std::move(entry));
  by_name_[entries_.front().key.name()] = entries_.begin();
  if (entries_.size() > most_) {
    by_name_.erase(entries_.back().key.name());
    entries_.pop_back();
  }
}

// The file has the last used first; put in from the end, they come to stand in that order again. Their time
// is the infinite past, so that any answer replaces them.
void KnownKeys::Load() {
  std::ifstream file(file_, std::ios::binary);
  if (!file) return;
  v1::ListKeysResponse known;
  if (!known.ParseFromIstream(&file)) {
    LOG(WARNING) << file_ << " is damaged: the keys that this node knew are forgotten";
    return;
  }
  absl::MutexLock lock(&mutex_);
  for (auto key = known.keys().rbegin(); key != known.keys().rend(); ++key) {
    if (!by_name_.contains(key->name())) Put({.key = *key, .noted = SteadyTime::InfinitePast()});
  }
}

void KnownKeys::Save() {
  // One writer at a time, and the table's mutex is not held while the disk works.
  absl::MutexLock save_lock(&save_mutex_);
  v1::ListKeysResponse known;
  {
    absl::MutexLock lock(&mutex_);
    // Taken back before the write: a change that comes during it asks for another.
    if (!std::exchange(changed_, false)) return;
    for (const Entry& entry : entries_) *known.add_keys() = entry.key;
  }
  const absl::Status written = ReplaceFile(file_, known.SerializeAsString());
  LOG_IF(WARNING, !written.ok() && !failing_)
      << "The keys that this node knows are not kept for its next start, for now: " << written;
  failing_ = !written.ok();
  if (failing_) {
    absl::MutexLock lock(&mutex_);
    changed_ = true;
  }
}

}  // namespace tensorcast::daemon
