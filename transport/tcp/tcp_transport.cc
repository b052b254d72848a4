#include "transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"
#include "base/rate_limit.h"
#include "base/status.h"
#include "security/identity.h"
#include "security/name.h"
#include "transport/pull/connect_pull.h"
#include "transport/pull/pull_source.h"
#include "transport/pull/wire.h"
#include "transport/registered_memory.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/tcp_source.h"

namespace tensorcast::transport {
namespace {

constexpr int kMaxLoops = 64;
// A connection more is worth its introduction for so many bytes.
constexpr uint64_t kBytesAConnection = uint64_t{16} << 20;

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
  if (!probe) return ErrnoStatus(errno, "create", "a TCP socket");
  if (absl::Status status = tcp::Configure(probe.get(), options); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        status.message(),
        "; choose a congestion control that sysctl net.ipv4.tcp_allowed_congestion_control lists"));
  }
  return absl::OkStatus();
}

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

}  // namespace

struct TcpTransport::State {
  ~State() {
    // Reads that are under way post to the loops, so those outlive the source.
    listener.reset();
    source.reset();
    for (const std::unique_ptr<tcp::IoLoop>& loop : loops) loop->Stop();
  }

  absl::Status Listen(const TcpOptions& options);

  RegisteredMemory memory;
  std::optional<RateLimit> send_limit;  // as those below, from Create on
  std::optional<RateLimit> receive_limit;
  std::vector<std::unique_ptr<tcp::IoLoop>> loops;
  tcp::SessionCache sessions;
  pull::ReceiverOptions receiver;
  tcp::SocketOptions socket;
  int connections = 1;                       // of one pull, at most
  std::unique_ptr<pull::PullSource> source;  // null: it only receives
  std::unique_ptr<tcp::TcpSource> listener;  // likewise
  std::vector<std::string> addresses;
  std::shared_ptr<const security::Identity> identity;
};

absl::Status TcpTransport::State::Listen(const TcpOptions& options) {
  TC_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
  TC_ASSIGN_OR_RETURN(const SocketAddress address, ResolveAddress(listen));
  absl::StatusOr<uint16_t> port = listener->Listen(address);
  if (!port.ok()) return Annotate(port.status(), absl::StrCat("listen on ", options.listen));
  const std::vector<std::string> own = {options.listen};
  for (const std::string& name : options.advertise.empty() ? own : options.advertise) {
    TC_ASSIGN_OR_RETURN(HostPort advertised, ParseHostPort(name));
    // Port 0 lets the system choose, so that the real one is known only now.
    if (advertised.port == 0) advertised.port = *port;
    addresses.push_back(FormatHostPort(advertised));
  }
  return absl::OkStatus();
}

TcpTransport::TcpTransport(std::unique_ptr<State> state) : state_(std::move(state)) {}
// The listener first, on its loop: from then on no connection is admitted. The state then goes in the order
// that its own destructor says.
TcpTransport::~TcpTransport() {
  if (state_->listener != nullptr) state_->listener->Shutdown();
}

absl::StatusOr<std::unique_ptr<TcpTransport>> TcpTransport::Create(const TcpOptions& options) {
  if (options.threads < 0 || options.threads > kMaxLoops) {
    return absl::InvalidArgumentError(
        absl::StrCat("open the tcp lane: ", options.threads, " threads were given; give 0 to ", kMaxLoops));
  }
  if (options.connections < 0 ||
      options.connections > static_cast<int>(pull::SourceServing::kMaxConnections)) {
    return absl::InvalidArgumentError(absl::StrCat("open the tcp lane: ", options.connections,
                                                   " connections were given for each pull; set "
                                                   "daemon.tcp_connections to a number from 0 to ",
                                                   pull::SourceServing::kMaxConnections));
  }
  if (options.serving_threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("open the tcp lane: ", options.serving_threads,
                                                   " serving threads were given; give at least 1"));
  }
  if (options.advertise.size() > pull::kMaxAddresses) {
    return absl::InvalidArgumentError(absl::StrCat("open the tcp lane: ", options.advertise.size(),
                                                   " advertised addresses were given; give at most ",
                                                   pull::kMaxAddresses));
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
  state->socket = socket;
  state->receiver = {.memory = &state->memory, .connect_timeout = options.connect_timeout};
  state->connections = options.connections > 0 ? options.connections : static_cast<int>(loops.size());
  // From here on the destructor shuts down the listener, whatever fails below.
  std::unique_ptr<TcpTransport> transport(new TcpTransport(std::move(state)));
  if (!options.listen.empty()) {
    State& made = *transport->state_;
    made.source =
        std::make_unique<pull::PullSource>(tcp::kTcpLane, pull::SourceLimits{}, options.serving_threads);
    made.listener =
        std::make_unique<tcp::TcpSource>(std::move(loops), made.source.get(),
                                         tcp::TcpSource::Options{.socket = socket,
                                                                 .identity = options.identity,
                                                                 .send_limit = &*made.send_limit,
                                                                 .hello_timeout = options.hello_timeout});
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
    return absl::FailedPreconditionError("serve by tcp: this transport only receives; set daemon.tcp_listen");
  }
  TC_RETURN_IF_ERROR(pull::PullSource::CheckImage(state_->memory, *image));
  // The name that the receiver's certificate has to have.
  std::string wanted;
  if (state_->identity != nullptr && !receiver.empty()) {
    wanted = security::Name{.trust_domain = state_->identity->trust_domain(),
                            .role = security::Role::kNode,
                            .name = std::string(receiver)}
                 .ToString();
  }
  return state_->source->Serve(
      std::move(image), std::move(wanted),
      {.addresses = state_->addresses,
       .source = state_->identity == nullptr ? "" : state_->identity->self().name.ToString()},
      /*hold=*/nullptr);
}

absl::StatusOr<std::unique_ptr<Pull>> TcpTransport::Connect(const RequestContext& context,
                                                            std::string_view descriptor) {
  TC_ASSIGN_OR_RETURN(pull::Descriptor decoded, pull::DecodeDescriptor(tcp::kTcpLane, descriptor));
  // Neither end goes on in clear where the other one requires certificates.
  if (decoded.source.empty() != (state_->identity == nullptr)) {
    return absl::FailedPreconditionError(
        decoded.source.empty()
            ? "connect by tcp: the source has no certificate; configure security on the source's node"
            : absl::StrCat("connect by tcp: ", decoded.source,
                           " accepts only nodes with a certificate; configure security on this node"));
  }
  const auto target = std::make_shared<tcp::TcpTarget>();
  TC_ASSIGN_OR_RETURN(target->addresses, ResolveNames(decoded.addresses));
  target->socket = state_->socket;
  target->identity = state_->identity;
  target->source = decoded.source;
  target->sessions = &state_->sessions;
  const uint64_t worth_it = 1 + decoded.image_bytes / kBytesAConnection;
  // The leading channel connects first and tells the others of the address and the TLS session that worked
  // (TcpTarget).
  const auto connections = std::min<uint64_t>(worth_it, state_->connections);
  // Two pulls at a time begin with two loops.
  static std::atomic<size_t> pulls_made = 0;
  size_t loop = pulls_made++;
  std::vector<std::shared_ptr<pull::MessageChannel>> channels;
  for (uint64_t i = 0; i < connections; ++i) {
    channels.push_back(std::make_shared<tcp::TcpReceiverChannel>(
        state_->loops[loop++ % state_->loops.size()].get(), &*state_->receive_limit, target,
        /*leads=*/i == 0));
  }
  return pull::ConnectPull(state_->receiver, context, std::move(decoded), std::move(channels));
}

Lane TcpLane() {
  static constexpr std::string_view kListen = "daemon.tcp_listen";
  static constexpr std::string_view kAdvertise = "daemon.tcp_advertise";
  static constexpr std::string_view kConnections = "daemon.tcp_connections";
  static constexpr std::string_view kCongestionControl = "daemon.tcp_congestion_control";
  return {.name = tcp::kTcpLane,
          .help = "plain sockets, between any two hosts",
          .certified = true,
          .limited = true,
          .serves_filling = true,
          .keys = {kListen, kAdvertise, kConnections, kCongestionControl},
          .listen_key = kListen,
          .advertise_key = kAdvertise,
          .make = [](const LaneConfig& config) -> absl::StatusOr<std::unique_ptr<Transport>> {
            std::vector<std::string> advertise = config.Values(kAdvertise);
            if (advertise.empty() && !config.advertise_host.empty()) {
              advertise.push_back(FormatHostPort({config.advertise_host, 0}));
            }
            int connections = 0;  // the configuration knows the key as a number
            (void)absl::SimpleAtoi(config.Value(kConnections), &connections);
            return TcpTransport::Create({.listen = config.Value(kListen),
                                         .advertise = std::move(advertise),
                                         .connections = connections,
                                         .congestion_control = config.Value(kCongestionControl),
                                         .send_limit = config.send_limit,
                                         .receive_limit = config.receive_limit,
                                         .peer_timeout = config.peer_timeout,
                                         .identity = config.identity});
          }};
}

}  // namespace tensorcast::transport
