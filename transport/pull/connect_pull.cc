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
#include "base/address.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "security/identity.h"

namespace tensorcast::transport::tcp {
namespace {

// A connection more is worth its introduction for so many bytes.
constexpr uint64_t kBytesAConnection = uint64_t{16} << 20;

absl::Status Cancelled() { return absl::CancelledError("the pull was cancelled"); }

// Where the source listens: all addresses of all its names, in order. Names that do not resolve are left
// out while there is another.
absl::StatusOr<std::vector<SocketAddress>> ResolveNames(const std::vector<std::string>& names) {
  std::vector<SocketAddress> all;
  absl::Status unresolved;
  for (const std::string& name : names) {
    TC_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(name));
    const absl::StatusOr<std::vector<SocketAddress>> addresses = ResolveAddresses(host_port);
    if (addresses.ok()) {
      all.insert(all.end(), addresses->begin(), addresses->end());
    } else {
      unresolved = addresses.status();
    }
  }
  if (all.empty()) return unresolved;
  return all;
}

// Thread-safe. Outlived by nothing: tasks on the loops keep it alive.
class PullCore : public PullStream::Owner, public std::enable_shared_from_this<PullCore> {
 public:
  PullCore(const ReceiverContext& receiver, Descriptor descriptor, const TraceContext& trace)
      : receiver_(receiver),
        descriptor_(std::move(descriptor)),
        traceparent_(trace.ToTraceparent()),
        where_(absl::StrJoin(descriptor_.addresses, ", ")) {
    const uint64_t worth_it = 1 + descriptor_.image_bytes / kBytesAConnection;
    const auto connections = std::min<uint64_t>(worth_it, receiver_.connections);
    // Two pulls at a time begin with two loops.
    static std::atomic<size_t> pulls_made = 0;
    size_t loop = pulls_made++;
    for (uint64_t i = 0; i < connections; ++i) {
      streams_.push_back(std::make_unique<PullStream>(receiver_.loops[loop++ % receiver_.loops.size()], this,
                                                      &receiver_.stream, &descriptor_, &traceparent_));
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

  void OnBytes() override ABSL_LOCKS_EXCLUDED(mutex_);
  bool MovedWithin(absl::Duration time) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFetchOver() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnLost(const absl::Status& why) override { Break(why); }

 private:
  PullStream& first() { return *streams_.front(); }
  // The first connection is welcome, or it is not; `tls`: what it was made by, null in clear.
  void Connected(const absl::Status& status, const SessionCache::Context& tls);
  void ConnectOthers(const SessionCache::Session& session);
  // Completes a fetch that was not given to a connection.
  void FailFetch(FetchDone done, absl::Status why);
  void CloseAll(const absl::Status& why);
  PullStream* LeastLoaded();

  const ReceiverContext& receiver_;
  const Descriptor descriptor_;
  const std::string traceparent_;
  const std::string where_;
  std::vector<std::unique_ptr<PullStream>> streams_;
  std::atomic<FetchId> fetches_made_ = 0;
  // Of what the source has; null: everything. Set while only the first connection's loop knows this
  // pull.
  std::shared_ptr<Availability> mirror_;

  absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;  // fetches that connections have
  SteadyTime last_bytes_ ABSL_GUARDED_BY(mutex_);
};

absl::Status PullCore::Connect(const RequestContext& context) {
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("connecting to ", where_)));
  TC_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, ResolveNames(descriptor_.addresses));
  const SteadyTime deadline = std::min(context.deadline, SteadyNow() + receiver_.connect_timeout);
  struct Connecting {
    absl::Notification done;
    absl::Status status;
  };
  auto connecting = std::make_shared<Connecting>();
  const std::shared_ptr<const security::Identity>& identity = receiver_.stream.identity;
  SessionCache::Context tls = identity == nullptr ? nullptr : identity->ClientContext();
  IoLoop& loop = first().loop();
  loop.Post([self = shared_from_this(), connecting, addresses = std::move(addresses), deadline,
             tls = std::move(tls)]() mutable {
    PullStream& stream = self->first();
    const TaskQueue::TimerId timer = stream.loop().queue().At(deadline, [core = self.get()] {
      core->first().Close(
          absl::DeadlineExceededError(absl::StrCat(core->where_, " did not answer before the deadline")));
    });
    SessionCache::Session known = self->receiver_.sessions->Find(self->descriptor_.source, tls);
    stream.Connect(std::move(addresses), self->where_, std::move(known),
                   [core = self.get(), connecting, timer, tls = std::move(tls)](absl::Status status) {
                     core->first().loop().queue().CancelTimer(timer);
                     core->Connected(status, tls);
                     connecting->status = std::move(status);
                     connecting->done.Notify();
                   });
  });
  const Cancellation::Registration on_cancel = context.cancellation.OnCancel([this, &loop] {
    loop.Post([self = shared_from_this()] {
      if (!self->first().open()) {
        self->first().Close(absl::CancelledError(absl::StrCat("connecting to ", self->where_)));
      }
    });
  });
  connecting->done.WaitForNotification();
  return connecting->status;
}

void PullCore::Connected(const absl::Status& status, const SessionCache::Context& tls) {
  const SessionCache::Session session = status.ok() ? first().session() : nullptr;
  if (tls != nullptr) receiver_.sessions->Keep(descriptor_.source, tls, session);
  if (!status.ok()) return;
  if (const uint64_t chunk_bytes = first().welcome().chunk_bytes; chunk_bytes != 0) {
    mirror_ = std::make_shared<Availability>(descriptor_.image_bytes, chunk_bytes);
    first().Follow(mirror_);
  }
  ConnectOthers(session);
}

void PullCore::ConnectOthers(const SessionCache::Session& session) {
  for (size_t i = 1; i < streams_.size(); ++i) {
    PullStream* const stream = streams_[i].get();
    stream->loop().Post([self = shared_from_this(), stream, address = first().address(), session] {
      stream->Connect({address}, self->where_, session, [where = self->where_](const absl::Status& status) {
        // The pull goes on over those that there are; without any, its fetches say so.
        if (!status.ok() && !absl::IsCancelled(status)) {
          LOG(INFO) << "a pull from " << where << " has one connection less: " << status;
        }
      });
    });
  }
}

FetchId PullCore::Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                        FetchDone done) {
  const FetchId id = ++fetches_made_;
  const absl::StatusOr<uint64_t> bytes =
      CheckFetch(*receiver_.memory, descriptor_.image_bytes, offset, destination);
  if (!bytes.ok()) {
    FailFetch(std::move(done), bytes.status());
    return id;
  }
  const bool announced = mirror_ != nullptr && mirror_->HasRange(offset, *bytes);
  PullStream* stream = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) {
      FailFetch(std::move(done), broken_);
      return id;
    }
    stream = LeastLoaded();
    stream->AddLoad(*bytes);
    ++pending_;
  }
  stream->loop().Post(
      [self = shared_from_this(), stream,
       fetch = tcp::Fetch{.id = id,
                          .offset = offset,
                          .bytes = *bytes,
                          .destination = std::move(destination),
                          .deadline = deadline,
                          .done = std::move(done),
                          .announced = announced}]() mutable { stream->Start(std::move(fetch)); });
  return id;
}

// Behind the fetch's own Start in the queue of the connection that has it.
void PullCore::CancelFetch(FetchId fetch) {
  for (const std::unique_ptr<PullStream>& stream : streams_) {
    stream->loop().Post([self = shared_from_this(), one = stream.get(), fetch] {
      one->Abandon(fetch, absl::CancelledError("the fetch was cancelled"));
    });
  }
}

// A closed stream fails the fetches that it is given.
PullStream* PullCore::LeastLoaded() {
  PullStream* min = nullptr;
  for (const std::unique_ptr<PullStream>& stream : streams_) {
    if (stream->open() && (min == nullptr || stream->load() < min->load())) min = stream.get();
  }
  return min != nullptr ? min : &first();
}

void PullCore::FailFetch(FetchDone done, absl::Status why) {
  first().loop().Post([done = std::move(done), why = std::move(why)] { done(why); });
}

void PullCore::SetSilenceLimit(absl::Duration limit) {
  for (const std::unique_ptr<PullStream>& stream : streams_) {
    stream->loop().Post(
        [self = shared_from_this(), one = stream.get(), limit] { one->SetSilenceLimit(limit); });
  }
}

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
  if (mirror_ != nullptr) mirror_->End(why);
  CloseAll(why);
}

void PullCore::CloseAll(const absl::Status& why) {
  for (const std::unique_ptr<PullStream>& stream : streams_) {
    stream->loop().Post([self = shared_from_this(), one = stream.get(), why] { one->Close(why); });
  }
}

void PullCore::End() {
  Break(Cancelled());
  // A loop cannot wait for the others. What is closed later, then, had nothing to receive.
  if (std::ranges::any_of(streams_, [](const auto& stream) { return stream->loop().OnThread(); })) {
    absl::MutexLock lock(&mutex_);
    CHECK_EQ(pending_, 0)
        << "a pull with fetches pending was destroyed in a transport callback, which must not block";
    return;
  }
  absl::BlockingCounter closed(static_cast<int>(streams_.size()));
  for (const std::unique_ptr<PullStream>& stream : streams_) {
    stream->loop().Post([self = shared_from_this(), one = stream.get(), &closed] {
      one->Close(Cancelled());
      closed.DecrementCount();
    });
  }
  closed.Wait();
}

class TcpPull : public Pull {
 public:
  explicit TcpPull(std::shared_ptr<PullCore> core) : core_(std::move(core)) {}
  ~TcpPull() override { core_->End(); }

  FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                FetchDone done) override {
    return core_->Fetch(offset, std::move(destination), deadline, std::move(done));
  }
  void CancelFetch(FetchId fetch) override { core_->CancelFetch(fetch); }
  void SetSilenceLimit(absl::Duration limit) override { core_->SetSilenceLimit(limit); }
  void Cancel() override { core_->Break(Cancelled()); }
  std::shared_ptr<const Availability> availability() const override { return core_->availability(); }

 private:
  const std::shared_ptr<PullCore> core_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Pull>> ConnectPull(const ReceiverContext& receiver,
                                                  const RequestContext& context, Descriptor descriptor) {
  const auto core = std::make_shared<PullCore>(receiver, std::move(descriptor), context.trace);
  if (absl::Status status = core->Connect(context); !status.ok()) {
    core->End();
    return status;
  }
  return std::make_unique<TcpPull>(core);
}

}  // namespace tensorcast::transport::tcp
