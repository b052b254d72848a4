#include "transport/pull/connect_pull.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"

namespace tensorcast::transport::pull {
namespace {

absl::Status Cancelled() { return absl::CancelledError("the receiver cancelled the pull"); }

// Thread-safe. Outlived by nothing: tasks on the threads keep it alive.
// One pull over its connections. All work of a connection is a task on its channel's queue; a caller's thread
// only checks, chooses a connection and posts. `mutex_` guards what callers and channels share, and no task,
// callback or observer runs under it.
class PullCore : public PullConnection::Owner, public std::enable_shared_from_this<PullCore> {
 public:
  PullCore(const ReceiverOptions& options, Descriptor descriptor, const TraceContext& trace,
           std::vector<std::shared_ptr<MessageChannel>> channels)
      : options_(options),
        descriptor_(std::move(descriptor)),
        traceparent_(trace.ToTraceparent()),
        where_(absl::StrJoin(descriptor_.addresses, ", ")) {
    for (std::shared_ptr<MessageChannel>& channel : channels) {
      connections_.push_back(std::make_unique<PullConnection>(std::move(channel), this, options_.credit,
                                                              &descriptor_, &traceparent_, where_));
    }
  }

  // Returns when the first connection is welcome; the others follow on their own. Once, and whatever comes of
  // it, End must be called.
  absl::Status Connect(const RequestContext& context);
  FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline, FetchDone done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelFetch(FetchId fetch);
  void SetSilenceLimit(absl::Duration limit);
  // From Connect on.
  std::shared_ptr<const Availability> availability() const { return mirror_; }
  // Fails every fetch and all that follow.
  void Break(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Break, and returns when every fetch has completed and every connection is closed.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<void> Hold() override { return shared_from_this(); }
  void OnBytes() override ABSL_LOCKS_EXCLUDED(mutex_);
  bool MovedWithin(absl::Duration time) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFetchOver() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnLost(const absl::Status& why) override { Break(why); }

 private:
  PullConnection& first() { return *connections_.front(); }
  static TaskQueue& QueueOf(PullConnection& connection) { return connection.channel().queue(); }
  // The first connection is welcome.
  void Connected();
  // Completes a fetch that was not given to a connection.
  void FailFetch(FetchDone done, absl::Status why);
  void CloseAll(const absl::Status& why);
  PullConnection* LeastLoaded();

  const ReceiverOptions options_;
  const Descriptor descriptor_;
  const std::string traceparent_;
  const std::string where_;
  std::vector<std::unique_ptr<PullConnection>> connections_;
  std::atomic<FetchId> fetches_made_ = 0;
  // Of what the source has; null: everything. Set while only the first connection's thread knows
  // this pull.
  std::shared_ptr<Availability> mirror_;

  absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;  // fetches that connections have
  SteadyTime last_bytes_ ABSL_GUARDED_BY(mutex_);
};

absl::Status PullCore::Connect(const RequestContext& context) {
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("connect to ", where_)));
  const SteadyTime deadline = std::min(context.deadline, SteadyNow() + options_.connect_timeout);
  // Shared with the channel's thread. Three may end the wait, an answer, the timer and the caller's
  // cancellation; the connection tells the first, and only that.
  struct Connecting {
    absl::Notification done;
    absl::Status status;
  };
  auto connecting = std::make_shared<Connecting>();
  TaskQueue& queue = QueueOf(first());
  queue.Post([self = shared_from_this(), connecting, deadline, &queue] {
    const TaskQueue::TimerId timer = queue.At(deadline, [core = self.get()] {
      core->first().Close(absl::DeadlineExceededError(absl::StrCat(
          "connect to ", core->where_, ": the source did not answer before the deadline; allow more time")));
    });
    self->first().Connect([core = self.get(), connecting, timer, &queue](absl::Status status) {
      queue.CancelTimer(timer);
      if (status.ok()) core->Connected();
      connecting->status = std::move(status);
      connecting->done.Notify();
    });
  });
  const Cancellation::Registration on_cancel = context.cancellation.OnCancel([this, &queue] {
    queue.Post([self = shared_from_this()] {
      // A cancellation that comes after the answer is the pull's own business (Cancel).
      if (!self->first().open()) {
        self->first().Close(absl::CancelledError(
            absl::StrCat("connect to ", self->where_, ": the receiver cancelled the pull")));
      }
    });
  });
  connecting->done.WaitForNotification();
  return connecting->status;
}

void PullCore::Connected() {
  if (const uint64_t chunk_bytes = first().welcome().chunk_bytes; chunk_bytes != 0) {
    mirror_ = std::make_shared<Availability>(descriptor_.image_bytes, chunk_bytes);
    first().Follow(mirror_);
  }
  for (size_t i = 1; i < connections_.size(); ++i) {
    PullConnection* const connection = connections_[i].get();
    QueueOf(*connection).Post([self = shared_from_this(), connection] {
      connection->Connect([where = self->where_](const absl::Status& status) {
        // The pull goes on over those that there are; without any, its fetches say so.
        if (!status.ok() && !absl::IsCancelled(status)) {
          LOG(INFO) << "pull from " << where << ": the pull continues with one connection fewer: " << status;
        }
      });
    });
  }
}

FetchId PullCore::Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                        FetchDone done) {
  const FetchId id = ++fetches_made_;
  const absl::StatusOr<uint64_t> bytes =
      CheckFetch(*options_.memory, descriptor_.image_bytes, offset, destination);
  if (!bytes.ok()) {
    FailFetch(std::move(done), bytes.status());
    return id;
  }
  // As of now: that the source announces the rest later does not make it break its word here.
  const bool announced = mirror_ != nullptr && mirror_->HasRange(offset, *bytes);
  PullConnection* connection = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) {
      FailFetch(std::move(done), broken_);
      return id;
    }
    connection = LeastLoaded();
    // Counted at once, so that the next fetch finds it.
    connection->AddLoad(*bytes);
    ++pending_;
  }
  QueueOf(*connection)
      .Post([self = shared_from_this(), connection,
             fetch = pull::Fetch{.id = id,
                                 .offset = offset,
                                 .bytes = *bytes,
                                 .destination = std::move(destination),
                                 .deadline = deadline,
                                 .done = std::move(done),
                                 .announced = announced}]() mutable { connection->Start(std::move(fetch)); });
  return id;
}

// Behind the fetch's own Start in the queue of the connection that has it.
void PullCore::CancelFetch(FetchId fetch) {
  for (const std::unique_ptr<PullConnection>& connection : connections_) {
    QueueOf(*connection).Post([self = shared_from_this(), one = connection.get(), fetch] {
      one->Abandon(fetch, absl::CancelledError(absl::StrCat("fetch from ", self->where_,
                                                            ": the receiver cancelled the fetch")));
    });
  }
}

// A closed connection fails the fetches that it is given.
// Loads are read without the connections' threads: a choice that is not the best costs some time, and nothing
// else.
PullConnection* PullCore::LeastLoaded() {
  PullConnection* min = nullptr;
  for (const std::unique_ptr<PullConnection>& connection : connections_) {
    if (connection->open() && (min == nullptr || connection->load() < min->load())) min = connection.get();
  }
  return min != nullptr ? min : &first();
}

void PullCore::FailFetch(FetchDone done, absl::Status why) {
  // By a task, as all results are told: `done` may take locks that the caller of Fetch holds.
  QueueOf(first()).Post([done = std::move(done), why = std::move(why)] { done(why); });
}

void PullCore::SetSilenceLimit(absl::Duration limit) {
  for (const std::unique_ptr<PullConnection>& connection : connections_) {
    QueueOf(*connection).Post([self = shared_from_this(), one = connection.get(), limit] {
      one->SetSilenceLimit(limit);
    });
  }
}

// One connection may be silent while others use the link, so the time of the last byte is kept for the whole
// pull.
void PullCore::OnBytes() {
  absl::MutexLock lock(&mutex_);
  last_bytes_ = SteadyNow();
}

bool PullCore::MovedWithin(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  return SteadyNow() < last_bytes_ + time;
}

void PullCore::OnFetchOver() {
  absl::MutexLock lock(&mutex_);
  --pending_;
}

void PullCore::Break(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = why;
  }
  // Without the lock: readers of the mirror are told, and may ask this pull.
  if (mirror_ != nullptr) mirror_->End(why);
  CloseAll(why);
}

void PullCore::CloseAll(const absl::Status& why) {
  for (const std::unique_ptr<PullConnection>& connection : connections_) {
    QueueOf(*connection).Post([self = shared_from_this(), one = connection.get(), why] { one->Close(why); });
  }
}

// Break closes the connections by tasks. The tasks posted here run behind them, so when all have counted
// down, every fetch has completed and nothing is written any more.
void PullCore::End() {
  Break(Cancelled());
  // A thread cannot wait for the others, nor for itself. What is closed later, then, had nothing to receive.
  if (std::ranges::any_of(connections_,
                          [](const auto& connection) { return connection->channel().OnThread(); })) {
    absl::MutexLock lock(&mutex_);
    CHECK_EQ(pending_, 0)
        << "a pull with fetches pending was destroyed in a transport callback, which must not block";
    return;
  }
  absl::BlockingCounter emptied(static_cast<int>(connections_.size()));
  for (const std::unique_ptr<PullConnection>& connection : connections_) {
    QueueOf(*connection).Post([self = shared_from_this(), one = connection.get(), &emptied] {
      one->Close(Cancelled(), [&emptied] { emptied.DecrementCount(); });
    });
  }
  emptied.Wait();
}

class ConnectedPull : public Pull {
 public:
  explicit ConnectedPull(std::shared_ptr<PullCore> core) : core_(std::move(core)) {}
  ~ConnectedPull() override { core_->End(); }

  FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                FetchDone done) override {
    return core_->Fetch(offset, std::move(destination), deadline, std::move(done));
  }
  // By the addresses, which only a channel that reaches devices follows: no other has one registered.
  FetchId FetchToDevice(uint64_t offset, DevicePtr destination, uint64_t bytes, SteadyTime deadline,
                        FetchDone done) override {
    return core_->Fetch(offset, {AddressesOf(destination, bytes)}, deadline, std::move(done));
  }
  void CancelFetch(FetchId fetch) override { core_->CancelFetch(fetch); }
  void SetSilenceLimit(absl::Duration limit) override { core_->SetSilenceLimit(limit); }
  void Cancel() override { core_->Break(Cancelled()); }
  std::shared_ptr<const Availability> availability() const override { return core_->availability(); }

 private:
  const std::shared_ptr<PullCore> core_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Pull>> ConnectPull(const ReceiverOptions& options,
                                                  const RequestContext& context, Descriptor descriptor,
                                                  std::vector<std::shared_ptr<MessageChannel>> channels) {
  const auto core =
      std::make_shared<PullCore>(options, std::move(descriptor), context.trace, std::move(channels));
  if (absl::Status status = core->Connect(context); !status.ok()) {
    core->End();
    return status;
  }
  return std::make_unique<ConnectedPull>(core);
}

}  // namespace tensorcast::transport::pull
