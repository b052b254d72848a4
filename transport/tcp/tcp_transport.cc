#include "transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "security/identity.h"
#include "security/name.h"
#include "transport/rate_limit.h"
#include "transport/registered_memory.h"
#include "transport/serving.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/socket.h"
#include "transport/pull/connect_pull.h"
#include "transport/tcp/tcp_source.h"
#include "transport/pull/wire.h"

namespace tensorcast::transport {
namespace {

constexpr int kMaxLoops = 64;

// How many loops and connections there are by default. A loop receives and digests, or sends, a few
// GB/s; more than four rarely find a link that is faster.
int LoopsFor(int configured) {
  if (configured > 0) return configured;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
}

// Said at the start, and not by each connection.
absl::Status CheckCongestionControl(const tcp::SocketOptions& options) {
  if (options.congestion_control.empty()) return absl::OkStatus();
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe) return ErrnoStatus(errno, "making", "a TCP socket");
  if (absl::Status status = tcp::Configure(probe.get(), options); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        status.message(), "; sysctl net.ipv4.tcp_allowed_congestion_control says what there is"));
  }
  return absl::OkStatus();
}

class TcpServing : public Serving {
 public:
  TcpServing(tcp::TcpSource* source, std::shared_ptr<tcp::SourceServing> serving, std::string descriptor)
      : source_(source), serving_(std::move(serving)), descriptor_(std::move(descriptor)) {}
  ~TcpServing() override { source_->Revoke(*serving_); }

  const std::string& descriptor() const override { return descriptor_; }
  ServeStats stats() const override { return serving_->counter().stats(); }

 private:
  tcp::TcpSource* const source_;
  const std::shared_ptr<tcp::SourceServing> serving_;
  const std::string descriptor_;
};

}  // namespace

struct TcpTransport::State {
  ~State() {
    // Reads that are under way post to the loops, so those outlive the source.
    source.reset();
    for (const std::unique_ptr<tcp::IoLoop>& loop : loops) loop->Stop();
  }

  absl::Status Listen(const TcpOptions& options);

  RegisteredMemory memory;
  std::optional<RateLimit> send_limit;  // as those below, from Create on
  std::optional<RateLimit> receive_limit;
  std::vector<std::unique_ptr<tcp::IoLoop>> loops;
  tcp::SessionCache sessions;
  tcp::ReceiverContext receiver;
  std::unique_ptr<tcp::TcpSource> source;  // null: it only receives
  std::vector<std::string> addresses;
  std::shared_ptr<const security::Identity> identity;
};

absl::Status TcpTransport::State::Listen(const TcpOptions& options) {
  TC_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
  TC_ASSIGN_OR_RETURN(const SocketAddress address, ResolveAddress(listen));
  absl::StatusOr<uint16_t> port = source->Listen(address);
  if (!port.ok()) return Annotate(port.status(), options.listen);
  const std::vector<std::string> own = {options.listen};
  for (const std::string& name : options.advertise.empty() ? own : options.advertise) {
    TC_ASSIGN_OR_RETURN(HostPort advertised, ParseHostPort(name));
    if (advertised.port == 0) advertised.port = *port;
    addresses.push_back(FormatHostPort(advertised));
  }
  return absl::OkStatus();
}

TcpTransport::TcpTransport(std::unique_ptr<State> state) : state_(std::move(state)) {}
TcpTransport::~TcpTransport() {
  if (state_->source != nullptr) state_->source->Shutdown();
}

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(const TcpOptions& options) {
  if (options.threads < 0 || options.threads > kMaxLoops || options.connections < 0 ||
      options.connections > static_cast<int>(tcp::SourceServing::kMaxConnections) ||
      options.serving_threads < 1 || options.advertise.size() > tcp::kMaxAddresses) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a TCP transport has at most ", kMaxLoops, " threads, ", tcp::SourceServing::kMaxConnections,
        " connections a pull and ", tcp::kMaxAddresses, " addresses, and at least one serving thread"));
  }
  std::vector<tcp::IoLoop*> loops;
  const tcp::SocketOptions socket = {.peer_timeout = options.peer_timeout,
                                     .congestion_control = options.congestion_control};
  TC_RETURN_IF_ERROR(CheckCongestionControl(socket));
  auto state = std::make_unique<State>();
  state->identity = options.identity;
  state->send_limit.emplace(options.send_limit);
  state->receive_limit.emplace(options.receive_limit);
  for (int i = 0; i < LoopsFor(options.threads); ++i) {
    TC_ASSIGN_OR_RETURN(std::unique_ptr<tcp::IoLoop> loop, tcp::IoLoop::Start(absl::StrCat("tc-tcp-", i)));
    loops.push_back(loop.get());
    state->loops.push_back(std::move(loop));
  }
  state->receiver = {
      .loops = loops,
      .memory = &state->memory,
      .stream = {.socket = socket, .limit = &*state->receive_limit, .identity = options.identity},
      .sessions = &state->sessions,
      .connections = options.connections > 0 ? options.connections : static_cast<int>(loops.size()),
      .connect_timeout = options.connect_timeout};
  std::unique_ptr<TcpTransport> transport(new TcpTransport(std::move(state)));
  if (!options.listen.empty()) {
    State& made = *transport->state_;
    made.source = std::make_unique<tcp::TcpSource>(
        std::move(loops), tcp::TcpSource::Options{.socket = socket,
                                                  .identity = options.identity,
                                                  .limits = {.rate = &*made.send_limit},
                                                  .hello_timeout = options.hello_timeout,
                                                  .serving_threads = options.serving_threads});
    TC_RETURN_IF_ERROR(made.Listen(options));
  }
  return transport;
}

const std::string& TcpTransport::address() const {
  static const std::string none;
  return state_->addresses.empty() ? none : state_->addresses.front();
}

std::string_view TcpTransport::name() const { return tcp::kTcpLane; }

absl::Status TcpTransport::RegisterMemory(std::byte* base, uint64_t bytes) {
  return state_->memory.Add(base, bytes).status();
}

absl::StatusOr<std::unique_ptr<Serving>> TcpTransport::Serve(std::shared_ptr<ServedImage> image,
                                                             std::string_view receiver) {
  if (state_->source == nullptr) {
    return absl::FailedPreconditionError(
        "this TCP transport only receives: configure an address to listen on");
  }
  TC_RETURN_IF_ERROR(CheckInPlace(state_->memory, *image));
  if (const auto availability = image->availability(); availability != nullptr && !availability->complete()) {
    if (availability->image_bytes() != image->image_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat("an image of ", image->image_bytes(),
                                                     " bytes, and the availability of one of ",
                                                     availability->image_bytes()));
    }
    if (absl::Status status = tcp::CheckFilling(image->image_bytes(), availability->chunk_bytes());
        !status.ok()) {
      return absl::FailedPreconditionError(status.message());
    }
  }
  std::string wanted;
  if (state_->identity != nullptr && !receiver.empty()) {
    wanted = security::Name{.trust_domain = state_->identity->trust_domain(),
                            .role = security::Role::kNode,
                            .name = std::string(receiver)}
                 .ToString();
  }
  auto serving = std::make_shared<tcp::SourceServing>(NewPullId(), std::move(image), std::move(wanted));
  std::string descriptor = tcp::EncodeDescriptor(
      {.pull_id = serving->id(),
       .image_bytes = serving->image_bytes(),
       .addresses = state_->addresses,
       .source = state_->identity == nullptr ? "" : state_->identity->self().name.ToString()});
  state_->source->Add(serving);
  return std::make_unique<TcpServing>(state_->source.get(), std::move(serving), std::move(descriptor));
}

absl::StatusOr<std::unique_ptr<Pull>> TcpTransport::Connect(const RequestContext& context,
                                                            std::string_view descriptor) {
  TC_ASSIGN_OR_RETURN(tcp::Descriptor decoded, tcp::DecodeDescriptor(descriptor));
  // Neither end goes on in clear where the other one requires certificates.
  if (decoded.source.empty() != (state_->identity == nullptr)) {
    return absl::FailedPreconditionError(
        decoded.source.empty()
            ? "the source has no certificate, and this node speaks to none without: configure security on it"
            : absl::StrCat("the source ", decoded.source,
                           " speaks to nodes with a certificate only: configure security on this one"));
  }
  return tcp::ConnectPull(state_->receiver, context, std::move(decoded));
}

Lane TcpLane() {
  return {.name = tcp::kTcpLane,
          .help = "plain sockets, between any two hosts",
          .listen_key = "daemon.tcp_listen",
          .listen = &LaneConfig::tcp_listen,
          .advertise = &LaneConfig::tcp_advertise,
          .make = [](const LaneConfig& config) -> absl::StatusOr<std::unique_ptr<Transport>> {
            std::vector<std::string> advertise = config.tcp_advertise;
            if (advertise.empty() && !config.advertise_host.empty()) {
              advertise.push_back(FormatHostPort({config.advertise_host, 0}));
            }
            return TcpTransport::Create({.listen = config.tcp_listen,
                                         .advertise = std::move(advertise),
                                         .connections = config.tcp_connections,
                                         .congestion_control = config.tcp_congestion_control,
                                         .send_limit = config.send_limit,
                                         .receive_limit = config.receive_limit,
                                         .peer_timeout = config.peer_timeout,
                                         .identity = config.identity});
          }};
}

}  // namespace tensorcast::transport
