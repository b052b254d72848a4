// One UCP context and worker with its progress thread, and the mapping of UCX's error codes to absl::Status.
// Private to this folder.
//
// Only the progress thread calls UCX; other threads use Post and Run. The progress thread busy-waits while
// operations in flight make progress, and otherwise sleeps on the worker's event descriptor.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/task_queue.h"

namespace tensorcast::transport {

class UcxEndpoint;

// A status with the text "<what>: <UCX's text>"; OK for UCS_OK. A lost connection is UNAVAILABLE. The code is
// never INVALID_ARGUMENT.
absl::Status UcxStatus(ucs_status_t status, std::string_view what);

class UcxWorker {
 public:
  // The ids of active messages: kControlId for frames without a piece, kDataId for DATA with its piece.
  static constexpr unsigned kControlId = 1;
  static constexpr unsigned kDataId = 2;

  struct Options {
    std::string tls;                 // the UCX transports (UCX_TLS) that this lane may use
    std::string connection_manager;  // UCX's name of the connection manager that listens; empty: all
    std::string net_devices;         // the network devices that UCX may use; empty: all
    bool rma = false;                // the worker also does one-sided reads
    bool devices = false;            // also uses memory of CUDA devices if UCX can; see reaches_devices()
    uint64_t tcp_segment_bytes = 0;  // size of UCX's TCP send and receive segments; 0: UCX's default
    // UCX sends pieces of at least this size by rendezvous, and smaller ones together with their head.
    uint64_t rendezvous_bytes = 16 << 10;
  };

  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const Options& options);
  // REQUIRES: every endpoint is closed and every listener is destroyed.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // Thread-safe.
  void Post(TaskQueue::Task task) { queue_.Post(std::move(task)); }
  // Waits until every endpoint has closed, and until the tasks that the closing posted have run. REQUIRES:
  // not on the progress thread.
  void WaitForEndpoints();
  // Runs `task` on the progress thread and waits until `task` has returned. Any thread may call Run.
  void Run(absl::FunctionRef<void()> task);
  bool OnThread() const { return std::this_thread::get_id() == thread_id_.load(); }

  // All functions below belong to the progress thread.
  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }
  uint64_t rendezvous_bytes() const { return rendezvous_bytes_; }
  bool reaches_devices() const { return reaches_devices_; }
  TaskQueue& queue() { return queue_; }

  struct Region {
    const std::byte* base = nullptr;
    uint64_t bytes = 0;  // 0: no memory is mapped
    ucp_mem_h handle = nullptr;
    ucs_memory_type_t type = UCS_MEMORY_TYPE_HOST;
  };
  // Maps memory for local use and for remote reads, as region number `region`. UnmapMemory or the worker's
  // destructor unmaps the region. REQUIRES: for device memory, the device's context is current.
  absl::Status MapMemory(size_t region, std::byte* base, uint64_t bytes, ucs_memory_type_t type);
  // REQUIRES: no operation uses the memory.
  void UnmapMemory(size_t region);
  // The region that holds `address`; nullptr if none does.
  const Region* FindMemory(const std::byte* address) const;
  // The key with which a peer reads the region with this number.
  absl::StatusOr<std::string> PackRemoteKey(size_t region) const;

  // Adds to the number of operations in flight. While the number is not 0, the progress thread busy-waits.
  void AddInFlight(int delta) { in_flight_ += delta; }

  // The worker delivers UCX's messages and errors to an endpoint from AddEndpoint to RemoveEndpoint.
  void AddEndpoint(ucp_ep_h ep, std::shared_ptr<UcxEndpoint> endpoint) {
    endpoints_[ep] = std::move(endpoint);
  }
  void RemoveEndpoint(ucp_ep_h ep) { endpoints_.erase(ep); }
  std::shared_ptr<UcxEndpoint> FindEndpoint(ucp_ep_h ep) const;

  // Adds to the number of endpoints that have not closed. The number must be 0 when the worker is destroyed.
  void AddOpenEndpoint(int delta);

 private:
  explicit UcxWorker(uint64_t rendezvous_bytes);
  absl::Status Init(const Options& options);
  absl::Status SetHandler(unsigned id, ucp_am_recv_callback_t callback);
  static ucs_status_t OnControl(void* arg, const void* header, size_t header_bytes, void* data,
                                size_t data_bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t OnData(void* arg, const void* header, size_t header_bytes, void* data,
                             size_t data_bytes, const ucp_am_recv_param_t* param);
  void Wake();
  void Loop();
  bool Progress();
  void Sleep();

  const uint64_t rendezvous_bytes_;
  TaskQueue queue_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  int in_flight_ = 0;
  int idle_rounds_ = 0;
  int open_endpoints_ = 0;
  std::function<void()> on_no_endpoints_;  // set by WaitForEndpoints
  bool reaches_devices_ = false;
  std::vector<Region> regions_;
  absl::flat_hash_map<ucp_ep_h, std::shared_ptr<UcxEndpoint>> endpoints_;
  std::atomic<bool> stop_ = false;
  std::atomic<std::thread::id> thread_id_{};
  std::thread thread_;
};

}  // namespace tensorcast::transport
