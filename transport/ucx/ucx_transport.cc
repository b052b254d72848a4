#include "transport/ucx/ucx_transport.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/address.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "transport/registered_memory.h"
#include "transport/ucx/endpoint_cache.h"
#include "transport/ucx/ucx_pull.h"
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
constexpr uint64_t kTcpPieceBytes = kTcpSegmentBytes - 1024;  // leaves room for UCX's headers and ours

class UcxServing : public Serving {
 public:
  UcxServing(UcxSource* source, UcxWorker* worker, std::shared_ptr<SourceServing> serving,
             std::string descriptor, std::shared_ptr<void> hold)
      : source_(source),
        worker_(worker),
        hold_(std::move(hold)),
        serving_(std::move(serving)),
        descriptor_(std::move(descriptor)) {}

  ~UcxServing() override {
    CHECK(!worker_->OnThread()) << "a serving was destroyed in a transport callback, which must not block";
    absl::Notification idle;
    // Blocks until nothing reads the image any more; then the lease that holds its memory may end.
    worker_->Post([this, &idle] { source_->Revoke(serving_, [&idle] { idle.Notify(); }); });
    idle.WaitForNotification();
  }

  const std::string& descriptor() const override { return descriptor_; }
  ServeStats stats() const override { return serving_->counter.stats(); }

 private:
  UcxSource* const source_;
  UcxWorker* const worker_;
  const std::shared_ptr<void> hold_;  // of the image's memory: goes when nothing reads it any more
  const std::shared_ptr<SourceServing> serving_;
  const std::string descriptor_;
};

// What Connect waits for.
struct Connecting {
  absl::Notification done;
  absl::Status status;
};

}  // namespace

struct UcxTransport::State {
  UcxOptions options;
  std::string address;
  uint32_t max_piece_bytes = 0;
  RegisteredMemory memory;
  // In this order: the cache and the source use the worker, and go before it.
  std::unique_ptr<UcxWorker> worker;
  std::unique_ptr<EndpointCache> cache;
  std::unique_ptr<UcxSource> source;

  absl::Status Listen();
  absl::Status DescribeMemory(const std::vector<ConstHostSpan>& segments, UcxDescriptor& descriptor);
  absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr base, uint64_t bytes);
  std::shared_ptr<UcxPullCore> NewPull(UcxDescriptor descriptor, const SocketAddress& peer,
                                       std::string traceparent);
};

absl::Status UcxTransport::State::Listen() {
  TC_ASSIGN_OR_RETURN(HostPort listen, ParseHostPort(options.listen));
  TC_ASSIGN_OR_RETURN(const SocketAddress socket, ResolveAddress(listen));
  absl::StatusOr<uint16_t> port;
  worker->Run([&] { port = source->Listen(socket); });
  if (!port.ok()) return absl::UnavailableError(absl::StrCat(options.listen, ": ", port.status().message()));
  if (!options.advertise_host.empty()) listen.host = options.advertise_host;
  listen.port = *port;
  address = FormatHostPort(listen);
  return absl::OkStatus();
}

absl::Status UcxTransport::State::DescribeMemory(const std::vector<ConstHostSpan>& segments,
                                                 UcxDescriptor& descriptor) {
  std::vector<size_t> regions;  // of each remote key
  for (const ConstHostSpan& segment : segments) {
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
  return std::shared_ptr<void>(nullptr, [this, region = added.region](void*) {
    worker->Run([this, region] {
      if (memory.RemoveDevice(region)) worker->UnmapMemory(region);
    });
  });
}

std::shared_ptr<UcxPullCore> UcxTransport::State::NewPull(UcxDescriptor descriptor, const SocketAddress& peer,
                                                          std::string traceparent) {
  const ReceiverContext context{.worker = worker.get(),
                                .cache = cache.get(),
                                .memory = &memory,
                                .drain_timeout = options.drain_timeout,
                                .part_bytes = options.request_bytes,
                                .parts_in_flight = options.requests_in_flight,
                                .max_piece_bytes = max_piece_bytes};
  if (options.lane == UcxLane::kRma) {
    return NewRmaPull(context, std::move(descriptor), peer, std::move(traceparent));
  }
  return NewMessagesPull(context, std::move(descriptor), peer, std::move(traceparent));
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
  UcxSource::Limits limits;
  if (tcp && !rma) {
    worker_options.tcp_segment_bytes = kTcpSegmentBytes;
    // Never: see above.
    worker_options.rendezvous_bytes = std::numeric_limits<uint64_t>::max();
    limits.piece_bytes = kTcpPieceBytes;
    state->max_piece_bytes = kTcpPieceBytes;
  }
  if (options.requests_in_flight == 0 || options.request_bytes == 0 || options.serving_threads < 1) {
    return absl::InvalidArgumentError("a UCX transport needs at least one request, byte and serving thread");
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
  state->source =
      std::make_unique<UcxSource>(state->worker.get(), options.lane, limits, options.serving_threads);
  std::unique_ptr<UcxTransport> transport(new UcxTransport(std::move(state)));
  if (!options.listen.empty()) TC_RETURN_IF_ERROR(transport->state_->Listen());
  return transport;
}

UcxTransport::~UcxTransport() {
  UcxWorker& worker = *state_->worker;
  worker.Run([this] {
    state_->source->Shutdown();
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
  return absl::UnavailableError(absl::StrCat("there is no RDMA device in ", devices));
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
    return absl::FailedPreconditionError(
        "this UCX transport only receives: configure an address to listen on");
  }
  if (const auto availability = image->availability(); availability != nullptr && !availability->complete()) {
    return absl::FailedPreconditionError("the UCX lanes serve whole images only: use tcp for one that fills");
  }
  auto serving = std::make_shared<SourceServing>();
  serving->id = NewPullId();
  serving->image_bytes = image->image_bytes();
  const DevicePtr on_device = memory() == LaneMemory::kHost ? DevicePtr() : image->device_image();
  serving->in_place = image->in_place() || on_device;
  UcxDescriptor descriptor{.lane = state_->options.lane,
                           .pull_id = serving->id,
                           .address = state_->address,
                           .image_bytes = serving->image_bytes};
  std::shared_ptr<void> hold;
  if (on_device) {
    TC_ASSIGN_OR_RETURN(hold, RegisterDevice(on_device, serving->image_bytes));
    serving->segments = {AddressesOf(on_device, serving->image_bytes)};
  } else if (serving->in_place) {
    serving->segments = image->Segments(0, serving->image_bytes);
    TC_RETURN_IF_ERROR(CheckSegments(state_->memory, serving->image_bytes, serving->segments));
  }
  if (state_->options.lane == UcxLane::kRma) {
    if (!serving->in_place) {
      return absl::FailedPreconditionError("the one-sided lane serves only images in registered memory");
    }
    TC_RETURN_IF_ERROR(state_->DescribeMemory(serving->segments, descriptor));
  }
  TC_ASSIGN_OR_RETURN(std::string bytes, EncodeDescriptor(descriptor));
  serving->image = std::move(image);
  state_->worker->Run([&] { state_->source->Add(serving); });
  return std::make_unique<UcxServing>(state_->source.get(), state_->worker.get(), std::move(serving),
                                      std::move(bytes), std::move(hold));
}

absl::StatusOr<std::unique_ptr<Pull>> UcxTransport::Connect(const RequestContext& context,
                                                            std::string_view descriptor_bytes) {
  TC_ASSIGN_OR_RETURN(UcxDescriptor descriptor, DecodeDescriptor(descriptor_bytes));
  if (descriptor.lane != state_->options.lane) {
    return absl::InvalidArgumentError(absl::StrCat("a descriptor of another lane than ", name()));
  }
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("connecting to ", descriptor.address)));
  const absl::StatusOr<HostPort> host_port = ParseHostPort(descriptor.address);
  if (!host_port.ok()) return host_port.status();
  TC_ASSIGN_OR_RETURN(const SocketAddress peer, ResolveAddress(*host_port));

  const std::string where = descriptor.address;
  const SteadyTime deadline = std::min(context.deadline, SteadyNow() + state_->options.connect_timeout);
  // Shared with the progress thread. Three may end the wait, an answer, the timer and the caller's
  // cancellation; the pull tells the first, and only that.
  auto connecting = std::make_shared<Connecting>();
  std::shared_ptr<UcxPullCore> core =
      state_->NewPull(std::move(descriptor), peer, context.trace.ToTraceparent());
  UcxWorker& worker = *state_->worker;
  worker.Post([core, connecting, deadline, where, &worker] {
    const TaskQueue::TimerId timer = worker.queue().At(deadline, [core, where] {
      core->Abort(absl::DeadlineExceededError(absl::StrCat(where, " did not answer before the deadline")));
    });
    core->Connect([connecting, timer, &worker](absl::Status status) {
      worker.queue().CancelTimer(timer);
      connecting->status = std::move(status);
      connecting->done.Notify();
    });
  });
  {
    const Cancellation::Registration on_cancel = context.cancellation.OnCancel([core, &worker, where] {
      worker.Post(
          [core, where] { core->Abort(absl::CancelledError(absl::StrCat("connecting to ", where))); });
    });
    connecting->done.WaitForNotification();
  }
  TC_RETURN_IF_ERROR(connecting->status);
  return NewUcxPull(std::move(core));
}

}  // namespace tensorcast::transport
