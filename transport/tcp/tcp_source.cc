#include "transport/tcp/tcp_source.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "transport/pull/source_connection.h"
#include "transport/tcp/byte_stream.h"
#include "transport/tcp/frame_io.h"
#include "transport/tcp/tcp_channel.h"

namespace tensorcast::transport::tcp {
namespace {

// So many are accepted before the connections of the first loop have their turn.
constexpr int kAcceptsATurn = 16;
// How long to wait for a descriptor, or memory, where the system has none to accept with.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
constexpr int kLogSeconds = 10;

}  // namespace

// A connection from accept to HELLO, on the first loop. It ends in one of four ways: HELLO admits it, and its
// stream goes to a loop (Release); it is refused with an ERROR; it sends something else, or closes; or its
// time is over. Forget destroys it in each of them.
class TcpSource::PendingConnection : public IoLoop::Handler {
 public:
  PendingConnection(TcpSource* source, std::unique_ptr<ByteStream> stream)
      : source_(source), stream_(std::move(stream)) {}
  ~PendingConnection() override { Release(); }

  absl::Status Start(SteadyTime deadline) {
    TC_ASSIGN_OR_RETURN(watch_, loop().Watch(stream_->fd(), EPOLLIN, this));
    timer_ = loop().queue().At(deadline, [this] { source_->Forget(this); });
    return absl::OkStatus();
  }

  void OnReady(uint32_t) override {
    if (absl::Status status = Read(); !status.ok()) {
      FrameWriter writer;
      writer.Put(pull::Error{.status = std::move(status)});
      // Where a socket that was never written to takes no frame, the peer does not read.
      if (stream_ != nullptr) (void)writer.Flush(*stream_, pull::kMaxFrameHeadBytes);
      done_ = true;
    }
    if (done_) source_->Forget(this);
  }

  // The name in its certificate; empty: it has shown none.
  const std::string& peer() const { return stream_->peer(); }

  // The connection, which this loop has no part in any more.
  std::unique_ptr<ByteStream> Release() {
    if (watch_.has_value()) loop().Unwatch(*std::exchange(watch_, std::nullopt), stream_->fd());
    loop().queue().CancelTimer(timer_);
    return std::move(stream_);
  }

 private:
  IoLoop& loop() { return *source_->loops_.front(); }

  // An error is sent to the other end; one that is not a receiver, or is gone, is closed without one.
  absl::Status Read() {
    absl::StatusOr<std::optional<Frame>> frame = std::nullopt;
    do {
      const iovec room = reader_.Room();
      const absl::StatusOr<size_t> bytes = stream_->Read({&room, 1});
      if (bytes.ok()) reader_.Received(*bytes);
      frame = reader_.Next();
      done_ = !bytes.ok() || !frame.ok();
      if (absl::IsUnauthenticated(bytes.status()) || absl::IsPermissionDenied(bytes.status())) {
        otel::metrics::kP2pConnectionsRefused.Add(1, {kTcpLane, "certificate"});
        LOG_EVERY_N_SEC(WARNING, kLogSeconds)
            << "serve pulls over tcp: refuse a connection: " << bytes.status();
      }
    } while (!done_ && !frame->has_value() && stream_->has_buffered());
    if (done_ || !frame->has_value()) {
      if (!done_) WaitForMore();
      return absl::OkStatus();
    }
    done_ = true;
    const auto* hello = std::get_if<pull::Hello>(&**frame);
    // Nothing follows a HELLO before its WELCOME.
    return hello != nullptr && reader_.empty() ? source_->Admit(*this, *hello) : absl::OkStatus();
  }

  // During its introduction a stream may wait for room to write.
  void WaitForMore() {
    const uint32_t events = stream_->Events(/*has_output=*/false);
    if (events != events_) loop().Change(*watch_, stream_->fd(), events_ = events);
  }

  TcpSource* const source_;
  std::unique_ptr<ByteStream> stream_;
  FrameReader reader_;
  bool done_ = false;
  std::optional<IoLoop::WatchId> watch_;
  uint32_t events_ = EPOLLIN;
  TaskQueue::TimerId timer_ = TaskQueue::kNoTimer;
};

TcpSource::TcpSource(std::vector<IoLoop*> loops, pull::PullSource* source, const Options& options)
    : loops_(std::move(loops)), source_(source), options_(options) {}

TcpSource::~TcpSource() { CHECK(!listener_ && pending_.empty()) << "a TCP source was not shut down"; }

absl::StatusOr<uint16_t> TcpSource::Listen(const SocketAddress& address) {
  TC_ASSIGN_OR_RETURN(listener_, ListenOn(address));
  loops_.front()->Run([this] { WatchListener(); });
  return ListeningPort(listener_.get());
}

void TcpSource::WatchListener() {
  const absl::StatusOr<IoLoop::WatchId> watch = loops_.front()->Watch(listener_.get(), EPOLLIN, this);
  if (watch.ok()) {
    watch_ = *watch;
  } else {
    WatchListenerLater();
  }
}

void TcpSource::WatchListenerLater() {
  watch_timer_ = loops_.front()->queue().At(SteadyNow() + kAcceptPause, [this] { WatchListener(); });
}

void TcpSource::Shutdown() {
  loops_.front()->Run([this] {
    if (watch_.has_value()) loops_.front()->Unwatch(*std::exchange(watch_, std::nullopt), listener_.get());
    // The loop outlives this source, and would call it.
    loops_.front()->queue().CancelTimer(watch_timer_);
    listener_ = UniqueFd();
    pending_.clear();
  });
}

void TcpSource::OnReady(uint32_t) {
  for (int i = 0; i < kAcceptsATurn && watch_.has_value() && AcceptOne(); ++i) {
  }
}

// Nothing here waits for the new connection: the handshake and HELLO come by events.
bool TcpSource::AcceptOne() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) OutOfDescriptors();
    // A client that gave up in the queue is not a reason to stop.
    return errno == ECONNABORTED || errno == EINTR;
  }
  if (IsReserved(socket.get(), DescriptorUser::kNetwork)) {
    LOG_EVERY_N_SEC(WARNING, kLogSeconds) << "serve pulls over tcp: refuse a connection: the daemon has few "
                                             "file descriptors left; raise the daemon's limit of open files";
    return true;
  }
  if (absl::Status status = Configure(socket.get(), options_.socket); !status.ok()) {
    LOG_EVERY_N_SEC(WARNING, kLogSeconds) << "serve pulls over tcp: accept a connection: " << status;
    return true;
  }
  absl::StatusOr<std::unique_ptr<ByteStream>> stream =
      options_.identity == nullptr ? NewPlainStream(std::move(socket))
                                   : NewTlsServerStream(std::move(socket), options_.identity);
  if (!stream.ok()) {
    LOG_EVERY_N_SEC(WARNING, kLogSeconds) << "serve pulls over tcp: accept a connection: " << stream.status();
    return true;
  }
  // The oldest goes: it had the most time for its HELLO.
  if (pending_.size() >= options_.max_pending_connections) pending_.pop_front();
  PendingConnection& pending =
      *pending_.emplace_back(std::make_unique<PendingConnection>(this, *std::move(stream)));
  if (!pending.Start(SteadyNow() + options_.hello_timeout).ok()) pending_.pop_back();
  return true;
}

// A client in the listener's queue keeps it ready: without a pause the loop would spin.
void TcpSource::OutOfDescriptors() {
  const bool no_memory = errno == ENOBUFS || errno == ENOMEM;
  LOG_EVERY_N_SEC(WARNING, kLogSeconds)
      << "serve pulls over tcp: accept a connection: "
      << (no_memory ? "the system has no memory left for a connection; free memory on this host"
                    : "the daemon has no file descriptor left; raise the daemon's limit of open files");
  spare_.Accept(listener_.get());
  (void)spare_.Restore();
  loops_.front()->Unwatch(*std::exchange(watch_, std::nullopt), listener_.get());
  WatchListenerLater();
}

void TcpSource::Forget(PendingConnection* pending) {
  pending_.remove_if([&](const std::unique_ptr<PendingConnection>& one) { return one.get() == pending; });
}

absl::Status TcpSource::Admit(PendingConnection& pending, const pull::Hello& hello) {
  // The loops have the connections in turn.
  IoLoop* const loop = loops_[next_loop_++ % loops_.size()];
  TC_ASSIGN_OR_RETURN(const std::shared_ptr<pull::SourceConnection> connection,
                      source_->Admit(hello, pending.peer(), &loop->queue()));
  // From here on the connection is that loop's, and this one must not touch the stream.
  loop->Post([connection, loop, limit = options_.send_limit, stream = pending.Release()]() mutable {
    const auto channel = std::make_shared<TcpChannel>(loop, limit, /*receive_limit=*/nullptr);
    channel->Open(std::move(stream), connection.get());
    connection->Start(channel);
  });
  return absl::OkStatus();
}

}  // namespace tensorcast::transport::tcp
