#include "core/replicas/commit_gate.h"

#include "absl/log/check.h"

namespace tensorcast {

// The states of the gate: open (holders enter and leave), closed (between Close and Reopen or EndLeases,
// while the ingest asks for consent: holders enter, but Leave waits), rewriting (after EndLeases, for good).
void CommitGate::Enter(const std::shared_ptr<LiveLease>& holder) {
  Entered entered{.holder = holder, .lease = holder->lease()};
  absl::MutexLock lock(&mutex_);
  // A holder that comes too late for this attempt is not counted by it.
  entered_.try_emplace(holder.get(), std::move(entered));
  if (wake_ != nullptr) wake_();
}

// Not found and open: the holder had not entered. Not found and rewriting: EndLeases took it out with all
// others.
bool CommitGate::Leave(const LiveLease* holder) {
  Entered left;  // its lease ends after the lock
  absl::MutexLock lock(&mutex_);
  const auto decided = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !closed_ || rewriting_; };
  mutex_.Await(absl::Condition(&decided));
  const auto found = entered_.find(holder);
  if (found == entered_.end()) return !rewriting_;
  left = std::move(found->second);
  entered_.erase(found);
  return true;
}

bool CommitGate::HasEntered(const LiveLease* holder) const {
  absl::MutexLock lock(&mutex_);
  return entered_.contains(holder);
}

bool CommitGate::empty() const {
  absl::MutexLock lock(&mutex_);
  return entered_.empty();
}

absl::Status CommitGate::refusal() const {
  absl::MutexLock lock(&mutex_);
  return refusal_;
}

void CommitGate::Staged(std::shared_ptr<const ReplicaLease> own, std::function<void()> wake) {
  {
    absl::MutexLock lock(&mutex_);
    own_ = std::move(own);
    wake_ = std::move(wake);
  }
  on_staged_();
}

// Without a holder nothing is to commit yet, so the ingest's own lease does not count either: the replica
// then counts as leased, and the retirement waits.
uint32_t CommitGate::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  if (entered_.empty()) return 0;
  return static_cast<uint32_t>(entered_.size()) + (own_ != nullptr ? 1 : 0);
}

void CommitGate::Reopen(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  closed_ = false;
  refusal_ = why;
}

void CommitGate::EndLeases() {
  std::map<const LiveLease*, Entered> entered;
  std::shared_ptr<const ReplicaLease> own;
  {
    absl::MutexLock lock(&mutex_);
    CHECK(closed_) << "leases end though their holders may still leave";
    rewriting_ = true;
    wake_ = nullptr;
    entered.swap(entered_);
    own.swap(own_);
  }
  // Without the lock: the end of a lease takes the table's mutex and may free memory.
  for (const auto& [address, one] : entered) one.holder->Set(nullptr);
}

}  // namespace tensorcast
