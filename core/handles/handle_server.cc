#include "core/handles/handle_server.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/posix/unix_socket.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/task_queue.h"
#include "core/handles/client_acceptor.h"
#include "core/handles/ring_room.h"
#include "core/handles/server_connection.h"
#include "core/handles/wakeable_poll.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast {
namespace {

// The numbers that epoll events carry. Connections and orphans have numbers that are never used again, so an
// event that was fetched before its connection ended finds nothing.
constexpr uint64_t kListenerId = 0;
constexpr uint64_t kFirstFreeId = 1;

constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);  // when the system accepts no connection

}  // namespace

// The server's thread with all that it serves. What other threads reach stands first: the tables lock
// themselves, the counts are atomic, a task may be posted. The rest belongs to the thread alone.
//
// The thread sleeps in the poll. It wakes for the listener, for a connection that can be read or written, for
// the end of an orphan's process (its pidfd), for a call of Wake, and for the earliest of these times: a
// ticket's expiry, a connection's deadline, a follower's next message, the end of a pause in accepting.
// Another thread that wants something posts a task.
class HandleServer::Loop {
 public:
  Loop(const Options& options, std::unique_ptr<UnixListener> listener, std::unique_ptr<WakeablePoll> poll,
       std::shared_ptr<RingRoom> room)
      : options(options),
        tickets(options.ticket_ttl),
        ring_room(std::move(room)),
        acceptor_(std::move(listener), options.allowed_groups, options.max_connections, &connection_count),
        poll_(std::move(poll)) {}

  ~Loop() {
    stopping_.store(true);
    Wake();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    TC_RETURN_IF_ERROR(poll_->Watch(acceptor_.fd(), EPOLLIN, kListenerId));
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(absl::StrCat("serve ", options.path, ": no thread can be started (",
                                                       error.what(),
                                                       "); raise the limit of threads (`ulimit -u`)"));
    }
    pthread_setname_np(thread_.native_handle(), "tc-handles");
    return absl::OkStatus();
  }

  // Lets the thread look at the time and at what changed. On any thread; takes no lock.
  void Wake() { poll_->Wake(); }

  // As HandleServer::Fence, for the holders so far. Called on the thread.
  int FenceHolders(std::string_view replica_id, const absl::Status& why) {
    // Collected first, since to end a connection changes the map.
    std::vector<uint64_t> holders;
    for (const auto& [id, entry] : entries_) {
      if (entry.connection->Fence(replica_id, why)) holders.push_back(id);
    }
    for (const uint64_t id : holders) {
      const auto it = entries_.find(id);
      it->second.connection->OnWritable() ? Update(it) : Destroy(it);
    }
    return static_cast<int>(holders.size());
  }

  // As HandleServer::HoldersOf. Called on the thread.
  std::vector<pid_t> NameHolders(std::string_view replica_id,
                                 const std::function<bool(const void* hold)>& except) const {
    std::vector<pid_t> holders;
    for (const auto& [id, entry] : entries_) {
      const std::optional<pid_t> holder = entry.connection->HolderOf(replica_id, except);
      if (holder.has_value()) holders.push_back(*holder);
    }
    std::ranges::sort(holders);
    return holders;
  }

  const Options options;
  TicketTable tickets;
  OfferTable offers;
  FencedReplicas fenced;
  const std::shared_ptr<RingRoom> ring_room;
  std::atomic<int> rings_awaited = 0;
  std::atomic<int> connection_count = 0;
  std::atomic<int> daemon_connection_count = 0;  // of them
  LeaseCounts leases;
  TaskQueue queue{[this] { Wake(); }};  // of the thread

 private:
  struct Entry {
    std::unique_ptr<ServerConnection> connection;
    uint32_t events = 0;                                 // watched for
    SteadyTime deadline = SteadyTime::InfiniteFuture();  // as in deadlines_
    SteadyTime news_due = SteadyTime::InfiniteFuture();  // as in news_due_
    bool of_daemon = false;                              // and counted as such
    bool awaits_ring = false;                            // and is in ring_queue_
  };

  void Run() {
    while (!stopping_.load()) {
      // Events first, then what other threads asked for, then what is due by time. Each step may end
      // connections, so the later ones look them up again by number.
      for (const epoll_event& event : poll_->Wait(NextTime())) Dispatch(event.data.u64, event.events);
      queue.RunPosted();
      HandleTime(SteadyNow());
    }
    // A thread that waits for a task is answered also at the end.
    queue.RunPosted();
    orphans_.clear();
    while (!entries_.empty()) Destroy(entries_.begin());
  }

  SteadyTime NextTime() const {
    SteadyTime next = std::min(tickets.next_expiry(), resume_accepting_);
    if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
    if (!news_due_.empty()) next = std::min(next, news_due_.begin()->first);
    return next;
  }

  void HandleTime(SteadyTime now) {
    // A ticket that no client claims in time gives its hold back.
    const std::vector<Claim> expired = tickets.TakeExpired(now);  // releases their holds at its end
    if (!expired.empty()) otel::metrics::kTicketsExpired.Add(expired.size());
    if (resume_accepting_ <= now) PauseAccepting(false);
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      // deadlines_ has the time of the last Update. A put that takes a ring on another thread moves the
      // deadline of its connection without an Update.
      const auto it = entries_.find(deadlines_.begin()->second);
      if (it->second.connection->deadline() > now) {  // a ring that was put through meanwhile
        // Moves the connection to its new time, so that this loop goes on.
        Update(it);
        continue;
      }
      LOG_EVERY_N_SEC(WARNING, 10) << "serve " << options.path
                                   << ": a client did not finish its request in time, so the daemon closes "
                                      "the connection";
      Destroy(it);
    }
    TellNews(now);
    GiveRings();
  }

  // Gives rings to the connections that wait, first come, first served: a large ring is not overtaken by
  // small ones.
  void GiveRings() {
    // A connection that went, or got an error, while it waited is passed over.
    for (; !ring_queue_.empty(); ring_queue_.pop_front(), rings_awaited.fetch_sub(1)) {
      const auto it = entries_.find(ring_queue_.front());
      if (it != entries_.end() && it->second.connection->wants_ring()) {
        ServerConnection& connection = *it->second.connection;
        RingRoom::Hold room = ring_room->Take(connection.ring_shape().bytes());
        if (room == nullptr) return;  // what gives room back wakes this thread
        connection.GiveRing(std::move(room)) ? Update(it) : Destroy(it);
      }
    }
  }

  // Looks at a connection for which there may be news. On any thread, also under the lock of an availability:
  // tasks run without a lock, and none is called here.
  void NoteNews(uint64_t id) {
    queue.Post([this, id] {
      if (const auto it = entries_.find(id); it != entries_.end()) Update(it);
    });
  }

  // Tells the followers for which the time has come.
  void TellNews(SteadyTime now) {
    while (!news_due_.empty() && news_due_.begin()->first <= now) {
      const auto it = entries_.find(news_due_.begin()->second);
      it->second.connection->TellNews(now) ? Update(it) : Destroy(it);
    }
  }

  void Dispatch(uint64_t id, uint32_t events) {
    if (id == kListenerId) return Accept();
    if (orphans_.erase(id) > 0) return;  // its process is gone
    const auto it = entries_.find(id);
    if (it == entries_.end()) return;
    ServerConnection& connection = *it->second.connection;
    bool alive = true;
    if ((events & EPOLLOUT) != 0) alive = connection.OnWritable();
    // A peer that hung up may have sent something before: reading finds both.
    if (alive && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      // A connection that only sends ends here: its peer hung up and reads no more.
      alive = connection.wants_to_read() && connection.OnReadable();
    }
    alive ? Update(it) : Destroy(it);
  }

  void Accept() {
    const bool accepts = acceptor_.Accept([this](UniqueFd socket, const absl::Status& verdict) {
      verdict.ok() ? AddConnection(std::move(socket)) : Refuse(std::move(socket), verdict);
    });
    if (!accepts) PauseAccepting(true);
  }

  void Refuse(UniqueFd socket, const absl::Status& reason) {
    LOG_EVERY_N_SEC(WARNING, 10) << "serve " << options.path << ": refuse a client: " << reason;
    NewConnection(std::move(socket), kListenerId)
        ->Refuse(reason);  // fits a fresh socket's buffer: no need to wait
  }

  std::unique_ptr<ServerConnection> NewConnection(UniqueFd socket, uint64_t id) {
    return std::make_unique<ServerConnection>(
        std::move(socket),
        ServerConnection::Shared{&tickets, &offers, &fenced, &leases, &options.on_host_claim,
                                 options.stall_timeout},
        SteadyNow() + options.exchange_timeout, [this, id] { NoteNews(id); });
  }

  // A listener that is ready but cannot be served would keep the thread spinning.
  void PauseAccepting(bool pause) {
    resume_accepting_ = pause ? SteadyNow() + kAcceptPause : SteadyTime::InfiniteFuture();
    const absl::Status status = poll_->Change(acceptor_.fd(), pause ? 0u : uint32_t{EPOLLIN}, kListenerId);
    LOG_IF(ERROR, !status.ok()) << status;
  }

  void AddConnection(UniqueFd socket) {
    const uint64_t id = next_id_++;
    std::unique_ptr<ServerConnection> connection = NewConnection(std::move(socket), id);
    const absl::Status watched = poll_->Watch(connection->fd(), EPOLLIN, id);
    if (!watched.ok()) {
      LOG_EVERY_N_SEC(ERROR, 10) << watched;
      connection->Refuse(watched);
      return;
    }
    connection_count.fetch_add(1);
    Update(entries_.emplace(id, Entry{std::move(connection), EPOLLIN}).first);
  }

  using Entries = std::unordered_map<uint64_t, Entry>;

  // Watches for what the connection wants now, and notes its deadline.
  void Update(Entries::iterator it) {
    Entry& entry = it->second;
    const ServerConnection& connection = *entry.connection;
    uint32_t events = 0;
    if (connection.wants_to_read()) events |= EPOLLIN;
    if (connection.wants_to_write()) events |= EPOLLOUT;
    if (events != entry.events) {
      const absl::Status watched = poll_->Change(connection.fd(), events, it->first);
      if (!watched.ok()) {
        LOG(ERROR) << watched;
        return Destroy(it);
      }
      entry.events = events;
    }
    // Each of these is noted once in the life of a connection.
    if (connection.of_daemon() && !std::exchange(entry.of_daemon, true)) daemon_connection_count.fetch_add(1);
    if (connection.wants_ring() && !std::exchange(entry.awaits_ring, true)) {
      ring_queue_.push_back(it->first);
      rings_awaited.fetch_add(1);
    }
    SetTime(deadlines_, it->first, entry.deadline, connection.deadline());
    SetTime(news_due_, it->first, entry.news_due, connection.news_due());
  }

  using ByTime = std::set<std::pair<SteadyTime, uint64_t>>;

  // `current` is the time of this connection in `times`.
  static void SetTime(ByTime& times, uint64_t id, SteadyTime& current, SteadyTime time) {
    if (current == time) return;
    // Set by (time, id), so that an entry is found and moved without a search.
    times.erase({current, id});
    if (time != SteadyTime::InfiniteFuture()) times.emplace(time, id);
    current = time;
  }

  void Destroy(Entries::iterator it) {
    SetTime(deadlines_, it->first, it->second.deadline, SteadyTime::InfiniteFuture());
    SetTime(news_due_, it->first, it->second.news_due, SteadyTime::InfiniteFuture());
    // Taken out before the connection goes, which releases what it holds.
    std::optional<OrphanedClaim> orphan = it->second.connection->TakeOrphan();
    const bool of_daemon = it->second.of_daemon;
    entries_.erase(it);  // closes the socket and releases what it held
    if (orphan && !stopping_.load()) AddOrphan(*std::move(orphan));
    if (of_daemon) daemon_connection_count.fetch_sub(1);
    connection_count.fetch_sub(1);
  }

  void AddOrphan(OrphanedClaim orphan) {
    const uint64_t id = next_id_++;
    const absl::Status watched = poll_->Watch(orphan.process.get(), EPOLLIN, id);
    // Memory that is never freed is better than memory that is freed while it is in use.
    LOG_IF(ERROR, !watched.ok()) << watched << "; replica " << orphan.held->claim().handles.replica_id
                                 << " stays leased until the daemon stops";
    orphans_.emplace(id, std::move(orphan));
  }

  ClientAcceptor acceptor_;
  const std::unique_ptr<WakeablePoll> poll_;
  std::atomic<bool> stopping_ = false;

  // From here on used by the thread only.
  uint64_t next_id_ = kFirstFreeId;
  Entries entries_;
  std::unordered_map<uint64_t, OrphanedClaim> orphans_;
  ByTime deadlines_;
  ByTime news_due_;
  std::deque<uint64_t> ring_queue_;  // connections that wait for a ring, and some that have gone
  SteadyTime resume_accepting_ = SteadyTime::InfiniteFuture();

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HandleServer>> HandleServer::Start(const Options& options) {
  TC_ASSIGN_OR_RETURN(std::unique_ptr<UnixListener> listener,
                      UnixListener::Listen(options.path, options.allowed_groups));
  TC_ASSIGN_OR_RETURN(std::unique_ptr<WakeablePoll> poll, WakeablePoll::Create(options.path));
  // The room has a descriptor of its own, since a put that still reads its ring may outlive the loop.
  TC_ASSIGN_OR_RETURN(UniqueFd wake_too, poll->DuplicateWake());
  auto room = std::make_shared<RingRoom>(options.put_rings_bytes, std::move(wake_too));
  auto loop = std::make_unique<Loop>(options, std::move(listener), std::move(poll), std::move(room));
  TC_RETURN_IF_ERROR(loop->Start());
  return std::unique_ptr<HandleServer>(new HandleServer(std::move(loop)));
}

HandleServer::HandleServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HandleServer::~HandleServer() = default;

const std::string& HandleServer::path() const { return loop_->options.path; }

std::string HandleServer::IssueTicket(Claim claim) {
  TicketTable::Issued issued = loop_->tickets.Issue(std::move(claim), SteadyNow());
  if (issued.was_empty) loop_->Wake();  // the thread waits for no expiry yet
  return std::move(issued.ticket);
}

absl::StatusOr<Offer> HandleServer::TakeOffer(std::string_view token) {
  std::optional<Offer> offer = loop_->offers.Take(token);
  if (offer) return *std::move(offer);
  return absl::NotFoundError(
      "take a client's offer: no offer has this token, because the client's connection ended or another call "
      "took the offer; repeat the put or the import");
}

int HandleServer::Fence(std::string_view replica_id, const absl::Status& why) {
  // First: a ticket that is claimed from now on is refused. Then the holders so far are told.
  loop_->fenced.Add(replica_id, why);
  int holders = 0;
  loop_->queue.PostAndWait([&] { holders = loop_->FenceHolders(replica_id, why); });
  return holders;
}

std::vector<pid_t> HandleServer::HoldersOf(std::string_view replica_id,
                                           const std::function<bool(const void* hold)>& except) const {
  std::vector<pid_t> holders;
  loop_->queue.PostAndWait([&] { holders = loop_->NameHolders(replica_id, except); });
  return holders;
}

uint64_t HandleServer::put_ring_bytes() const { return loop_->ring_room->used_bytes(); }
int HandleServer::put_rings_awaited() const { return loop_->rings_awaited.load(); }
int HandleServer::connections() const { return loop_->connection_count.load(); }
int HandleServer::tickets() const { return loop_->tickets.size(); }

int HandleServer::leases() const {
  int leases = 0;
  for (const Holder holder : {Holder::kClient, Holder::kDaemon}) {
    for (const int count : loop_->leases.of(holder)) leases += count;
  }
  return leases;
}

HandleCounts HandleServer::counts() const {
  const int of_daemons = loop_->daemon_connection_count.load();
  return {.client_connections = std::max(0, loop_->connection_count.load() - of_daemons),
          .daemon_connections = of_daemons,
          .client_leases = loop_->leases.of(Holder::kClient),
          .daemon_leases = loop_->leases.of(Holder::kDaemon),
          .tickets = loop_->tickets.Count()};
}

}  // namespace tensorcast
