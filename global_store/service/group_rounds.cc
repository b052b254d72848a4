#include "global_store/service/group_rounds.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {

// A call enters `waiting_` in Take, and leaves it by Extract or Close, exactly once: when there is news or
// its time is over (TakeDue), when another call of its process replaces it (Take), when it is cancelled
// (End), or at the shutdown (Close). Answers are given with no lock held, since they run code of the caller.
//
// The watcher and the cancellations hold weak pointers: they may still be called while this object goes.
std::shared_ptr<GroupRounds> GroupRounds::Create(Coordinator* coordinator) {
  std::shared_ptr<GroupRounds> rounds(new GroupRounds(coordinator));
  auto watcher = std::make_shared<KeyWatcher>();
  watcher->on_change = [weak = std::weak_ptr<GroupRounds>(rounds)](const KeyRecord& record) {
    if (const std::shared_ptr<GroupRounds> alive = weak.lock()) alive->NoteKey(record.name);
  };
  watcher->on_close = [weak = std::weak_ptr<GroupRounds>(rounds)](const absl::Status& why) {
    if (const std::shared_ptr<GroupRounds> alive = weak.lock()) alive->Close(why);
  };
  rounds->watch_ = coordinator->Watch(std::move(watcher));
  return rounds;
}

GroupRounds::~GroupRounds() { coordinator_.Unwatch(watch_); }

void GroupRounds::Give(std::vector<Due> due) {
  for (Due& one : due) one.waiting.answer(std::move(one.answer));
}

GroupRounds::Waiting GroupRounds::Extract(const CallName& call) {
  auto found = waiting_.extract(call);
  call_of_.erase(found.mapped().call.instance);
  return std::move(found.mapped());
}

void GroupRounds::Take(const RequestContext& context, const GroupCall& call, Answer answer) {
  std::vector<Due> due;
  std::optional<CallName> waits;
  const std::string name = VersionGroupName(call.group, call.key);
  coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
    absl::MutexLock lock(&mutex_);
    // Both locks are held from the report to the entry in `waiting_`, so whatever is applied later finds the
    // call there.
    // A call of the same process came before: it asks for something else now.
    if (const auto before = call_of_.find(call.instance); before != call_of_.end()) {
      due.push_back({.waiting = Extract(CallName(before->second)), .answer = GroupAnswer()});
    }
    const absl::Status noted = closed_.ok() ? groups_.Note(call, directory.announcements(), now) : closed_;
    Waiting waiting{.call = call,
                    .answer = std::move(answer),
                    .until = now + std::min(kLongestWait, call.lost_after / 3),
                    .cancelled = nullptr};
    if (!noted.ok()) {
      due.push_back({.waiting = std::move(waiting), .answer = noted});
    } else if (call.leaves) {
      due.push_back({.waiting = std::move(waiting), .answer = GroupAnswer()});
    } else {
      waits = CallName(name, ++calls_);
      call_of_[call.instance] = *waits;
      waiting_.emplace(*waits, std::move(waiting));
    }
    return true;
  });
  Give(std::move(due));
  if (waits.has_value()) {
    // `cancelled` is declared before the lock below, so a registration that is not needed any more ends
    // without the mutex: its destructor waits for the callback.
    // Without the mutex, which the callback takes: it runs at once where the call is cancelled already.
    auto cancelled = std::make_shared<Cancellation::Registration>(
        context.cancellation.OnCancel([weak = weak_from_this(), call = *waits] {
          if (const std::shared_ptr<GroupRounds> alive = weak.lock()) {
            alive->End(call,
                       absl::CancelledError("agree on a version: the caller cancelled the call; call again"));
          }
        }));
    absl::MutexLock lock(&mutex_);
    if (const auto found = waiting_.find(*waits); found != waiting_.end()) {
      found->second.cancelled.swap(cancelled);
    }
  }
  Advance(name);
}

void GroupRounds::TakeDue(const std::string& name, const Directory& directory, SteadyTime now,
                          std::vector<Due>& due) {
  std::vector<std::pair<CallName, absl::StatusOr<GroupAnswer>>> ended;
  for (auto at = waiting_.lower_bound({name, 0}); at != waiting_.end() && at->first.first == name; ++at) {
    absl::StatusOr<std::optional<GroupAnswer>> answer =
        groups_.AnswerTo(at->second.call, directory.catalog(), directory.announcements(), now);
    if (!answer.ok()) {
      ended.emplace_back(at->first, answer.status());
    } else if (answer->has_value()) {
      ended.emplace_back(at->first, **std::move(answer));
    } else if (now >= at->second.until) {
      ended.emplace_back(at->first, GroupAnswer{.waits_for = groups_.WaitsFor(name, now)});
    }
  }
  for (auto& [call, answer] : ended) due.push_back({.waiting = Extract(call), .answer = std::move(answer)});
}

void GroupRounds::Advance(const std::string& name) {
  std::optional<AnnouncementRecord> agreed;
  coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
    absl::MutexLock lock(&mutex_);
    agreed = groups_.ToAnnounce(name, directory.catalog(), directory.announcements(), now);
    return true;
  });
  if (agreed.has_value()) {
    // Durable before any member hears of it, so that a store which takes over announces nothing older.
    const absl::Status announced =
        coordinator_
            .Mutate("",
                    [&agreed](const Directory& directory, absl::Time wall_now) -> absl::StatusOr<Change> {
                      agreed->updated = wall_now;
                      return Change{.facts = directory.announcements().Prepare(*agreed)};
                    })
            .status();
    LOG_IF(INFO, announced.ok()) << "group " << agreed->group << " announces revision " << agreed->revision
                                 << " of key " << agreed->key << ": " << agreed->artifact_id;
    LOG_IF_EVERY_N_SEC(WARNING, !announced.ok(), 10)
        << "announce revision " << agreed->revision << " of key " << agreed->key << " to group "
        << agreed->group << ": " << announced << "; the global store tries again";
  }
  std::vector<Due> due;
  coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
    absl::MutexLock lock(&mutex_);
    TakeDue(name, directory, now, due);
    return true;
  });
  Give(std::move(due));
}

void GroupRounds::NoteKey(const std::string& key) {
  std::vector<Due> due;
  coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
    absl::MutexLock lock(&mutex_);
    for (const std::string& name : groups_.Names()) {
      // The name of a group has no '/', so the rest is the key.
      if (std::string_view(name).substr(name.find('/') + 1) == key) TakeDue(name, directory, now, due);
    }
    return true;
  });
  Give(std::move(due));
}

void GroupRounds::Tick() {
  const std::vector<std::string> names = coordinator_.WithDirectory([&](Directory&, SteadyTime now) {
    absl::MutexLock lock(&mutex_);
    groups_.Expire(now);
    std::vector<std::string> waiting;
    for (const auto& [call, one] : waiting_) {
      if (waiting.empty() || waiting.back() != call.first) waiting.push_back(call.first);
    }
    return waiting;
  });
  // Advance may commit an announcement, so it runs with the directory unlocked.
  for (const std::string& name : names) Advance(name);
}

void GroupRounds::End(const CallName& call, const absl::Status& why) {
  std::vector<Due> due;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.contains(call)) due.push_back({.waiting = Extract(call), .answer = why});
  }
  Give(std::move(due));
}

void GroupRounds::Close(const absl::Status& why) {
  std::vector<Due> due;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = why;
    for (auto& [call, waiting] : std::exchange(waiting_, {})) {
      due.push_back({.waiting = std::move(waiting), .answer = why});
    }
    call_of_.clear();
  }
  Give(std::move(due));
}

}  // namespace tensorcast::global_store
