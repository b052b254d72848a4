// Holds the calls of version groups that wait for other members. A waiting call uses no thread. An
// announcement is durable before a member gets it.
//
// Thread-safe. May block on the metadata store.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "global_store/coordinator/coordinator.h"
#include "global_store/version_groups/version_groups.h"

namespace tensorcast::global_store {

class GroupRounds : public std::enable_shared_from_this<GroupRounds> {
 public:
  // `coordinator` must outlive the result.
  static std::shared_ptr<GroupRounds> Create(Coordinator* coordinator);
  ~GroupRounds();
  GroupRounds(const GroupRounds&) = delete;
  GroupRounds& operator=(const GroupRounds&) = delete;

  // Calls `answer` once, on any thread: when there is news, when the context is cancelled, or when the store
  // shuts down. Without news, calls `answer` after kLongestWait or a third of GroupCall::lost_after,
  // whichever is shorter.
  using Answer = std::function<void(absl::StatusOr<GroupAnswer>)>;
  void Take(const RequestContext& context, const GroupCall& call, Answer answer) ABSL_LOCKS_EXCLUDED(mutex_);

  // Call this several times a second: removes silent members, and answers calls that have waited long.
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);

  static constexpr absl::Duration kLongestWait = absl::Seconds(5);

 private:
  using CallName = std::pair<std::string, uint64_t>;  // the group's name, and a number of the call
  struct Waiting {
    GroupCall call;
    Answer answer;
    SteadyTime until;
    std::shared_ptr<Cancellation::Registration> cancelled;  // must not be destroyed with the mutex held
  };
  // An answer that is given after the mutex is released.
  struct Due {
    Waiting waiting;
    absl::StatusOr<GroupAnswer> answer;
  };

  explicit GroupRounds(Coordinator* coordinator) : coordinator_(*coordinator) {}

  // Announces the version that the group agreed on, if any. Then answers the calls of the group that have
  // news.
  void Advance(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call this when a key was bound to a new version. Does not block.
  void NoteKey(const std::string& key) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeDue(const std::string& name, const Directory& directory, SteadyTime now, std::vector<Due>& due)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const CallName& call, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  Waiting Extract(const CallName& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Give(std::vector<Due> due);

  Coordinator& coordinator_;
  uint64_t watch_ = 0;  // id of the watch of all keys
  absl::Mutex mutex_;   // may be locked while the directory's mutex is held; never the reverse
  VersionGroups groups_ ABSL_GUARDED_BY(mutex_);
  std::map<CallName, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, CallName> call_of_ ABSL_GUARDED_BY(mutex_);  // waiting calls, by instance
  uint64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::global_store
