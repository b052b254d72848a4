#include "transport/ucx/ucx_worker.h"

#include <poll.h>
#include <ucs/async/async_fwd.h>
#include <uct/api/uct.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "transport/ucx/ucx_endpoint.h"

namespace tensorcast::transport {
namespace {

// Rounds without any progress before a thread with operations in flight sleeps too: long enough to bridge the
// gaps of a running transfer, short enough that a peer which stopped costs no core.
constexpr int kSpinRounds = 200;
// UCX signals the descriptor for all that we wait for; the bound only limits what a lost signal could cost.
constexpr absl::Duration kLongestSleepInFlight = absl::Milliseconds(20);
constexpr absl::Duration kLongestSleep = absl::Seconds(1);

absl::StatusCode CodeOf(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return absl::StatusCode::kOk;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::StatusCode::kResourceExhausted;
    case UCS_ERR_CANCELED:
      return absl::StatusCode::kCancelled;
    case UCS_ERR_TIMED_OUT:
      return absl::StatusCode::kDeadlineExceeded;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
      return absl::StatusCode::kUnimplemented;
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_REJECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_BUSY:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status Modify(ucp_config_t* config, const std::string& name, const std::string& value) {
  return UcxStatus(ucp_config_modify(config, name.c_str(), value.c_str()),
                   absl::StrCat("set UCX's ", name, " to '", value, "'"));
}

// How ucp_config_modify wants an option of the TCP transport named: up to 1.14 without the transport's
// prefix.
std::string TransportOption(const char* name) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return major == 1 && minor < 15 ? name : absl::StrCat("TCP_", name);
}

// UCX's components, as the libraries that it found make them.
struct Components {
  Components() = default;
  Components(const Components&) = delete;
  Components& operator=(const Components&) = delete;
  ~Components() {
    if (all != nullptr) uct_release_component_list(all);
  }
  absl::Status Query() { return UcxStatus(uct_query_components(&all, &count), "list the components of UCX"); }
  // Of that name, with all of these flags; null: there is none.
  uct_component_h Find(std::string_view name, uint64_t flags) const {
    const auto found = std::find_if(all, all + count, [&](uct_component_h component) {
      uct_component_attr_t attributes{};
      attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_FLAGS;
      return uct_component_query(component, &attributes) == UCS_OK && name == attributes.name &&
             (attributes.flags & flags) == flags;
    });
    return found == all + count ? nullptr : *found;
  }

  uct_component_h* all = nullptr;
  unsigned count = 0;
};

// The transports by which UCX knows CUDA's memory, to be added to a list of others: those that are installed,
// since it complains on its log about names that it does not have.
absl::StatusOr<std::string> DeviceTransports() {
  Components components;
  TC_RETURN_IF_ERROR(components.Query());
  std::string names;
  if (components.Find("cuda_cpy", 0) != nullptr) absl::StrAppend(&names, ",cuda_copy");
  if (components.Find("gdr_copy", 0) != nullptr) absl::StrAppend(&names, ",gdr_copy");
  return names;
}

absl::Status Configure(ucp_config_t* config, const UcxWorker::Options& options) {
  std::string tls = options.tls;
  if (options.devices) {
    TC_ASSIGN_OR_RETURN(const std::string names, DeviceTransports());
    tls += names;
  }
  TC_RETURN_IF_ERROR(Modify(config, "TLS", tls));
  if (!options.connection_manager.empty()) {
    TC_RETURN_IF_ERROR(Modify(config, "SOCKADDR_TLS_PRIORITY", options.connection_manager));
  }
  if (!options.net_devices.empty()) TC_RETURN_IF_ERROR(Modify(config, "NET_DEVICES", options.net_devices));
  // Connections that a source closed keep its port in TIME_WAIT for a minute. Without this a daemon that
  // served a pull could not be started again on its address until then. Two listeners at once are refused all
  // the same. The name is that of every connection manager's option (TCP's, RDMA's), in all versions.
  TC_RETURN_IF_ERROR(Modify(config, "CM_REUSEADDR", "y"));
  if (options.tcp_segment_bytes > 0) {
    const std::string bytes = absl::StrCat(options.tcp_segment_bytes);
    TC_RETURN_IF_ERROR(Modify(config, TransportOption("TX_SEG_SIZE"), bytes));
    TC_RETURN_IF_ERROR(Modify(config, TransportOption("RX_SEG_SIZE"), bytes));
  }
  return absl::OkStatus();
}

// Whether UCX can listen and connect by this connection manager. Asked before a worker is made with it alone:
// one without any aborts the process when it is to listen (ucp_listen, from 1.13 to today).
absl::Status RequireConnectionManager(const std::string& name) {
  Components components;
  TC_RETURN_IF_ERROR(components.Query());
  const uct_component_h found = components.Find(name, UCT_COMPONENT_FLAG_CM);
  if (found == nullptr) {
    return absl::UnavailableError(absl::StrCat("start UCX: UCX finds no connection manager '", name,
                                               "' on this host; install the package librdmacm1"));
  }
  ucs_async_context_t* async = nullptr;
  TC_RETURN_IF_ERROR(UcxStatus(ucs_async_context_create(UCS_ASYNC_MODE_POLL, &async), "start UCX"));
  const auto destroy_async = absl::MakeCleanup([async] { ucs_async_context_destroy(async); });
  uct_worker_h worker = nullptr;
  TC_RETURN_IF_ERROR(UcxStatus(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker), "start UCX"));
  const auto destroy_worker = absl::MakeCleanup([worker] { uct_worker_destroy(worker); });
  uct_cm_config_t* config = nullptr;
  TC_RETURN_IF_ERROR(
      UcxStatus(uct_cm_config_read(found, nullptr, nullptr, &config), "read UCX's configuration"));
  const auto release_config = absl::MakeCleanup([config] { uct_config_release(config); });
  uct_cm_h manager = nullptr;
  if (const ucs_status_t status = uct_cm_open(found, worker, config, &manager); status != UCS_OK) {
    return absl::UnavailableError(absl::StrCat("open UCX's connection manager '", name,
                                               "': ", ucs_status_string(status),
                                               "; load the kernel's module rdma_ucm, and give this process "
                                               "access to /dev/infiniband/rdma_cm"));
  }
  uct_cm_close(manager);
  return absl::OkStatus();
}

}  // namespace

absl::Status UcxStatus(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::Status(CodeOf(status), absl::StrCat(what, ": ", ucs_status_string(status)));
}

UcxWorker::UcxWorker(uint64_t rendezvous_bytes)
    : rendezvous_bytes_(rendezvous_bytes), queue_([this] { Wake(); }) {}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const Options& options) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker(options.rendezvous_bytes));
  TC_RETURN_IF_ERROR(worker->Init(options));
  worker->thread_ = std::thread([raw = worker.get()] { raw->Loop(); });
  return worker;
}

// Runs on the thread that creates the transport, before the progress thread begins.
absl::Status UcxWorker::Init(const Options& options) {
  if (!options.connection_manager.empty()) {
    TC_RETURN_IF_ERROR(RequireConnectionManager(options.connection_manager));
  }
  ucp_config_t* config = nullptr;
  TC_RETURN_IF_ERROR(UcxStatus(ucp_config_read(nullptr, nullptr, &config), "read UCX's configuration"));
  auto release = absl::MakeCleanup([config] { ucp_config_release(config); });
  TC_RETURN_IF_ERROR(Configure(config, options));

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  // WAKEUP lets the thread sleep on a descriptor. RMA opens memory to remote reads, so that only that lane
  // has it.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | (options.rma ? UCP_FEATURE_RMA : 0);
  params.name = "tensorcast";
  TC_RETURN_IF_ERROR(UcxStatus(ucp_init(&params, config, &context_),
                               absl::StrCat("start UCX with the transports '", options.tls, "'")));
  if (options.devices) {
    ucp_context_attr_t attributes{};
    attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    TC_RETURN_IF_ERROR(
        UcxStatus(ucp_context_query(context_, &attributes), "ask UCX which kinds of memory UCX knows"));
    reaches_devices_ = (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
  }

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // created here, then the progress thread's
  TC_RETURN_IF_ERROR(UcxStatus(ucp_worker_create(context_, &worker_params, &worker_),
                               absl::StrCat("open the UCX transports '", options.tls, "'")));
  TC_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_get_efd(worker_, &event_fd_), "get the event descriptor of a UCX worker"));
  TC_RETURN_IF_ERROR(SetHandler(kControlId, &UcxWorker::OnControl));
  return SetHandler(kDataId, &UcxWorker::OnData);
}

absl::Status UcxWorker::SetHandler(unsigned id, ucp_am_recv_callback_t callback) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = id;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = callback;
  param.arg = this;
  return UcxStatus(ucp_worker_set_am_recv_handler(worker_, &param), "register a UCX message handler");
}

// The thread ends first; what was posted and not run is dropped by Close of the queue.
UcxWorker::~UcxWorker() {
  if (thread_.joinable()) {
    CHECK(!OnThread()) << "a UCX transport was destroyed by its own progress thread";
    stop_ = true;
    Wake();
    thread_.join();
  }
  queue_.Close();
  // UCX's order: endpoints, memory, worker, context.
  CHECK_EQ(open_endpoints_, 0) << "a UCX worker was destroyed before its endpoints";
  for (size_t i = 0; i < regions_.size(); ++i) UnmapMemory(i);
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

void UcxWorker::Run(absl::FunctionRef<void()> task) {
  if (OnThread()) {
    task();
  } else {
    queue_.PostAndWait(task);
  }
}

absl::Status UcxWorker::MapMemory(size_t region, std::byte* base, uint64_t bytes, ucs_memory_type_t type) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_PROT | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = base;
  params.length = bytes;
  params.memory_type = type;
  // Peers may read it, where they were handed a remote key; no peer writes it.
  params.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_READ;
  ucp_mem_h handle = nullptr;
  const bool on_host = type == UCS_MEMORY_TYPE_HOST;
  const absl::Status mapped =
      UcxStatus(ucp_mem_map(context_, &params, &handle),
                absl::StrCat("register ", bytes, " bytes of ", on_host ? "host" : "GPU", " memory with UCX"));
  if (!mapped.ok()) {
    return absl::Status(
        mapped.code(), absl::StrCat(mapped.message(), on_host ? "; raise the memlock limit (ulimit -l)"
                                                              : "; load the kernel's module nvidia_peermem"));
  }
  if (regions_.size() <= region) regions_.resize(region + 1);
  regions_[region] = {.base = base, .bytes = bytes, .handle = handle, .type = type};
  return absl::OkStatus();
}

void UcxWorker::UnmapMemory(size_t region) {
  // The number stays with the region, so the place in the list is emptied and not erased.
  const Region gone = std::exchange(regions_[region], {});
  if (gone.bytes > 0) ucp_mem_unmap(context_, gone.handle);
}

// A transport has one pool and the GPU replicas that move now, so a list is enough.
const UcxWorker::Region* UcxWorker::FindMemory(const std::byte* address) const {
  for (const Region& region : regions_) {
    if (address >= region.base && address < region.base + region.bytes) return &region;
  }
  return nullptr;
}

absl::StatusOr<std::string> UcxWorker::PackRemoteKey(size_t region) const {
  void* key = nullptr;
  size_t bytes = 0;
  TC_RETURN_IF_ERROR(
      UcxStatus(ucp_rkey_pack(context_, regions_[region].handle, &key, &bytes), "pack a UCX remote key"));
  std::string packed(static_cast<const char*>(key), bytes);
  ucp_rkey_buffer_release(key);
  return packed;
}

void UcxWorker::AddOpenEndpoint(int delta) {
  open_endpoints_ += delta;
  if (open_endpoints_ == 0 && on_no_endpoints_ != nullptr) std::exchange(on_no_endpoints_, nullptr)();
}

void UcxWorker::WaitForEndpoints() {
  absl::Notification none;
  Post([&] {
    on_no_endpoints_ = [&none] { none.Notify(); };
    AddOpenEndpoint(0);
  });
  none.WaitForNotification();
  // The last endpoint posts its tasks after it was counted: the first round may be ahead of them, the second
  // is behind them.
  Run([] {});
  Run([] {});
}

std::shared_ptr<UcxEndpoint> UcxWorker::FindEndpoint(ucp_ep_h ep) const {
  auto it = endpoints_.find(ep);
  return it == endpoints_.end() ? nullptr : it->second;
}

// UCX tells by which endpoint a message came (the reply endpoint). One without, or of an endpoint that was
// closed, is dropped.
ucs_status_t UcxWorker::OnControl(void* arg, const void* header, size_t header_bytes, void*, size_t,
                                  const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxWorker*>(arg);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) {
    if (std::shared_ptr<UcxEndpoint> endpoint = self->FindEndpoint(param->reply_ep)) {
      endpoint->ControlArrived({static_cast<const char*>(header), header_bytes});
    }
  }
  return UCS_OK;
}

ucs_status_t UcxWorker::OnData(void* arg, const void* header, size_t header_bytes, void* data,
                               size_t data_bytes, const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxWorker*>(arg);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) {
    if (std::shared_ptr<UcxEndpoint> endpoint = self->FindEndpoint(param->reply_ep)) {
      const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
      return endpoint->DataArrived({static_cast<const char*>(header), header_bytes}, data, data_bytes,
                                   rendezvous);
    }
  }
  return UCS_OK;
}

void UcxWorker::Wake() {
  // The thread looks at its tasks before it sleeps, so it need not wake itself.
  if (!OnThread()) ucp_worker_signal(worker_);
}

// Spinning costs a core and saves the wake-up, some microseconds that each piece of a transfer would pay; so
// it does that while operations make progress, and sleeps when they do not.
void UcxWorker::Loop() {
  thread_id_ = std::this_thread::get_id();
  while (!stop_) {
    if (Progress()) {
      idle_rounds_ = 0;
    } else if (in_flight_ == 0 || ++idle_rounds_ > kSpinRounds) {
      Sleep();
    }
  }
}

bool UcxWorker::Progress() {
  bool any = queue_.RunPosted();
  if (queue_.has_timers()) any |= queue_.RunTimers(SteadyNow());
  any |= ucp_worker_progress(worker_) != 0;
  return any;
}

void UcxWorker::Sleep() {
  const ucs_status_t status = ucp_worker_arm(worker_);
  // Arming says that there is something to do already: what arrives between the last progress and the sleep
  // is not missed.
  if (status == UCS_ERR_BUSY) return;
  if (status != UCS_OK) {
    LOG_EVERY_N_SEC(ERROR, 10) << UcxStatus(status, "wait for UCX events (the thread polls instead)");
  }
  // A task posted by this thread, from a callback, signals nothing; one from another thread has signalled.
  if (queue_.HasPosted()) return;
  const absl::Duration longest = status != UCS_OK ? absl::Milliseconds(1)
                                 : in_flight_ > 0 ? kLongestSleepInFlight
                                                  : kLongestSleep;
  const absl::Duration wait = std::clamp(TimeLeft(queue_.next_timer()), absl::ZeroDuration(), longest);
  pollfd event{.fd = event_fd_, .events = POLLIN, .revents = 0};
  poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)))));
}

}  // namespace tensorcast::transport
