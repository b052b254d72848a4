#include "transport/ucx/ucx_transport.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/status.h"
#include "transport/pull/connect_pull.h"
#include "transport/pull/pull_source.h"
#include "transport/pull/wire.h"
#include "transport/registered_memory.h"
#include "transport/ucx/endpoint_cache.h"
#include "transport/ucx/ucx_channel.h"
#include "transport/ucx/ucx_source.h"
#include "transport/ucx/ucx_worker.h"

namespace tensorcast::transport {
namespace {

// UCX's names of the transports, and of the connection manager, which the listener is one of.
constexpr char kTcp[] = "tcp";
constexpr char kRdma[] = "rc,dc,ud";
constexpr char kRdmaConnections[] = "rdmacm";

// Over TCP each piece is one message that fills one UCX segment, and the receiver copies it into its
// destination while it is in the cache. Rendezvous would save the copy, but costs two more turns of the
// network a piece, and UCX 1.13 aborts the *source* when a receiver closes by force in the middle of one
// (tcp_ep.c, PUT_TX_WAITING_ACK).
constexpr uint64_t kTcpSegmentBytes = 256 << 10;
constexpr uint32_t kTcpPieceBytes = kTcpSegmentBytes - 1024;  // leaves room for UCX's headers and ours

}  // namespace

struct UcxTransport::State {
  UcxOptions options;
  std::string address;
  RegisteredMemory memory;
  pull::ReceiverOptions pulls;
  UcxReceiver receiver;
  // In this order: what follows the worker uses it, and goes before it. Reads that are under way at the
  // source post to it.
  std::unique_ptr<UcxWorker> worker;
  std::unique_ptr<EndpointCache> cache;
  std::unique_ptr<pull::PullSource> source;
  std::unique_ptr<UcxSource> listener;

  absl::Status Listen();
  absl::Status DescribeMemory(const std::vector<ConstHostSpan>& segments, pull::Descriptor& descriptor);
  absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr base, uint64_t bytes);
};

absl::Status UcxTransport::State::Listen() {
  TC_ASSIGN_OR_RETURN(HostPort listen, ParseHostPort(options.listen));
  TC_ASSIGN_OR_RETURN(const SocketAddress socket, ResolveAddress(listen));
  absl::StatusOr<uint16_t> port;
  // UCX's worker serves one thread, so each call of UCX goes to the progress thread.
  worker->Run([&] { port = listener->Listen(socket); });
  if (!port.ok()) {
    return absl::UnavailableError(absl::StrCat("listen on ", options.listen, ": ", port.status().message(),
                                               "; choose an address of this host and a free port"));
  }
  if (!options.advertise_host.empty()) listen.host = options.advertise_host;
  listen.port = *port;
  address = FormatHostPort(listen);
  return absl::OkStatus();
}

// A descriptor has room for 255 keys. The pool is registered once, and so is a replica on a GPU: an image has
// one key as a rule.
absl::Status UcxTransport::State::DescribeMemory(const std::vector<ConstHostSpan>& segments,
                                                 pull::Descriptor& descriptor) {
  std::vector<size_t> regions;  // of each remote key
  for (const ConstHostSpan& segment : segments) {
    // Keys are of registrations, and the segments of an image mostly share one: each key is sent once.
    const size_t region = *memory.RegionOf(segment);
    size_t rkey = std::ranges::find(regions, region) - regions.begin();
    if (rkey == regions.size()) {
      absl::StatusOr<std::string> packed;
      worker->Run([&] { packed = worker->PackRemoteKey(region); });
      if (!packed.ok()) return packed.status();
      regions.push_back(region);
      descriptor.rkeys.push_back(*std::move(packed));
    }
    descriptor.segments.push_back({.rkey = static_cast<uint8_t>(rkey),
                                   .address = reinterpret_cast<uint64_t>(segment.data()),
                                   .bytes = segment.size()});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<void>> UcxTransport::State::RegisterDevice(DevicePtr base, uint64_t bytes) {
  TC_RETURN_IF_ERROR(options.devices->MakeCurrent(base.device));
  TC_ASSIGN_OR_RETURN(const RegisteredMemory::AddedDevice added, memory.AddDevice(base, bytes));
  if (added.is_new) {
    const HostSpan addresses = AddressesOf(base, bytes);
    const absl::Status mapped =
        worker->MapMemory(added.region, addresses.data(), bytes, UCS_MEMORY_TYPE_CUDA);
    if (!mapped.ok()) {
      memory.RemoveDevice(added.region);
      // Whatever UCX called it: no peer is away, and other lanes may do.
      return absl::ResourceExhaustedError(mapped.message());
    }
  }
  // Unmapped on the progress thread as well: no other thread may call UCX.
  return std::shared_ptr<void>(nullptr, [this, region = added.region](void*) {
    worker->Run([this, region] {
      if (memory.RemoveDevice(region)) worker->UnmapMemory(region);
    });
  });
}

UcxTransport::UcxTransport(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const UcxOptions& options) {
  auto state = std::make_unique<State>();
  state->options = options;
  const bool rma = options.lane == UcxLane::kRma;
  const bool tcp = options.over_tcp;
  UcxWorker::Options worker_options{.tls = kTcp, .net_devices = {}, .rma = rma};
  if (!tcp) {
    // A small message is copied by this process, which cannot touch a GPU's memory: one-sided reads alone.
    worker_options.devices = rma && options.devices != nullptr && options.devices->backend() == "cuda";
    // Asked before UCX is, which complains on its log about networks that a host does not have.
    TC_RETURN_IF_ERROR(RequireRdmaDevice());
    worker_options.tls = kRdma;
    // Else UCX's listener may be a TCP socket, on which crafted bytes abort the process.
    worker_options.connection_manager = kRdmaConnections;
  }
  pull::SourceLimits limits{.piece_bytes = pull::kMaxPieceBytes, .one_sided = rma};
  if (tcp && !rma) {
    worker_options.tcp_segment_bytes = kTcpSegmentBytes;
    // Never: see above.
    worker_options.rendezvous_bytes = std::numeric_limits<uint64_t>::max();
    limits.piece_bytes = kTcpPieceBytes;
    state->receiver.max_piece_bytes = kTcpPieceBytes;
  }
  if (options.requests_in_flight == 0 || options.request_bytes == 0 || options.serving_threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("open the UCX transport: ", options.requests_in_flight,
                                                   " requests in flight of ", options.request_bytes,
                                                   " bytes and ", options.serving_threads,
                                                   " serving threads were given; give at least 1 of each"));
  }
  // TCP devices are named like interfaces; RDMA devices are not, and stay UCX's choice.
  if (!options.listen.empty() && tcp) {
    TC_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
    TC_ASSIGN_OR_RETURN(const SocketAddress socket, ResolveAddress(listen));
    worker_options.net_devices = InterfaceOf(socket);
  }
  absl::StatusOr<std::unique_ptr<UcxWorker>> worker = UcxWorker::Create(worker_options);
  // Whatever UCX called it: the lane cannot be had here, which a daemon with other lanes lives with.
  if (!worker.ok()) return absl::UnavailableError(worker.status().message());
  state->worker = *std::move(worker);
  state->cache = std::make_unique<EndpointCache>(state->worker.get(), EndpointCache::Limits{});
  state->receiver.worker = state->worker.get();
  state->receiver.cache = state->cache.get();
  state->receiver.drain_timeout = options.drain_timeout;
  state->receiver.one_sided = rma;
  state->pulls = {.memory = &state->memory,
                  .credit = {.request_bytes = options.request_bytes,
                             .window_bytes = options.request_bytes * options.requests_in_flight,
                             .drain_timeout = options.drain_timeout},
                  .connect_timeout = options.connect_timeout};
  state->source =
      std::make_unique<pull::PullSource>(UcxLaneName(options.lane), limits, options.serving_threads);
  state->listener = std::make_unique<UcxSource>(
      state->worker.get(), state->source.get(),
      UcxSource::Options{.one_sided = rma, .drain_timeout = options.drain_timeout});
  std::unique_ptr<UcxTransport> transport(new UcxTransport(std::move(state)));
  if (!options.listen.empty()) TC_RETURN_IF_ERROR(transport->state_->Listen());
  return transport;
}

UcxTransport::~UcxTransport() {
  UcxWorker& worker = *state_->worker;
  worker.Run([this] {
    state_->listener->Shutdown();
    state_->cache->Shutdown();
  });
  // Pulls that are gone may still wait for their source's last word, at most for the drain timeout.
  worker.WaitForEndpoints();
}

absl::Status RequireRdmaDevice(const std::string& devices) {
  std::error_code error;
  if (std::filesystem::directory_iterator(devices, error) != std::filesystem::directory_iterator()) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("start UCX: there is no RDMA device in ", devices,
                   "; load the driver of the device, or leave daemon.ucx_listen out"));
}

std::string_view UcxLaneName(UcxLane lane) { return lane == UcxLane::kRma ? "ucx-rma" : "ucx"; }

std::string_view UcxTransport::name() const { return UcxLaneName(state_->options.lane); }

const std::string& UcxTransport::address() const { return state_->address; }

absl::Status UcxTransport::RegisterMemory(std::byte* base, uint64_t bytes) {
  absl::Status status;
  state_->worker->Run([&] {
    const absl::StatusOr<size_t> region = state_->memory.Add(base, bytes);
    status =
        region.ok() ? state_->worker->MapMemory(*region, base, bytes, UCS_MEMORY_TYPE_HOST) : region.status();
  });
  return status;
}

bool UcxTransport::counts_served() const { return state_->options.lane != UcxLane::kRma; }

LaneMemory UcxTransport::memory() const {
  return state_->worker->reaches_devices() ? LaneMemory::kHostAndDevice : LaneMemory::kHost;
}

// On the progress thread, which is the only one to touch UCX, and needs the device's context for what UCX
// does with its memory.
absl::StatusOr<std::shared_ptr<void>> UcxTransport::RegisterDevice(DevicePtr base, uint64_t bytes) {
  if (!state_->worker->reaches_devices()) return Transport::RegisterDevice(base, bytes);
  absl::StatusOr<std::shared_ptr<void>> registered;
  state_->worker->Run([&] { registered = state_->RegisterDevice(base, bytes); });
  return registered;
}

absl::StatusOr<std::unique_ptr<Serving>> UcxTransport::Serve(std::shared_ptr<ServedImage> image,
                                                             std::string_view /*receiver*/) {
  if (state_->address.empty()) {
    return absl::FailedPreconditionError("serve by UCX: this transport only receives; set daemon.ucx_listen");
  }
  const bool rma = state_->options.lane == UcxLane::kRma;
  const auto availability = image->availability();
  if (rma && availability != nullptr && !availability->complete()) {
    return absl::FailedPreconditionError(
        "serve by ucx-rma: the replica is not complete, and receivers would read bytes that are not there; "
        "use another lane");
  }
  pull::Descriptor descriptor{.addresses = {state_->address}};
  std::shared_ptr<void> hold;
  if (const DevicePtr on_device = memory() == LaneMemory::kHost ? DevicePtr() : image->device_image()) {
    TC_ASSIGN_OR_RETURN(hold, RegisterDevice(on_device, image->image_bytes()));
    TC_RETURN_IF_ERROR(state_->DescribeMemory({AddressesOf(on_device, image->image_bytes())}, descriptor));
  } else {
    TC_RETURN_IF_ERROR(pull::PullSource::CheckImage(state_->memory, *image));
    // A receiver reads the image's own memory: there is no step in which bytes could be copied first.
    if (rma && !image->in_place()) {
      return absl::FailedPreconditionError(
          "serve by ucx-rma: the image is not in registered memory; use another lane");
    }
    if (rma) TC_RETURN_IF_ERROR(state_->DescribeMemory(image->Segments(0, image->image_bytes()), descriptor));
  }
  return state_->source->Serve(std::move(image), /*receiver=*/"", std::move(descriptor), std::move(hold));
}

absl::StatusOr<std::unique_ptr<Pull>> UcxTransport::Connect(const RequestContext& context,
                                                            std::string_view descriptor_bytes) {
  TC_ASSIGN_OR_RETURN(pull::Descriptor descriptor, pull::DecodeDescriptor(name(), descriptor_bytes));
  const bool rma = state_->options.lane == UcxLane::kRma;
  if (rma && descriptor.segments.empty() && descriptor.image_bytes > 0) {
    return absl::InvalidArgumentError(
        "open a ucx-rma pull: the descriptor has no segments; run one release on both nodes");
  }
  TC_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(descriptor.addresses.front()));
  TC_ASSIGN_OR_RETURN(const SocketAddress peer, ResolveAddress(host_port));
  return pull::ConnectPull(state_->pulls, context, descriptor,
                           {std::make_shared<UcxReceiverChannel>(state_->receiver, peer, descriptor)});
}

}  // namespace tensorcast::transport
