// One UCP context and worker with its progress thread, and what UCX's error codes mean to us. Private to this
// folder.
//
// Everything of UCX is touched on the progress thread alone; others reach it by Post and Run. The thread
// spins while operations are in flight, and otherwise sleeps on the worker's event descriptor.
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

// "<what>: <UCX's text>". Losing a peer is UNAVAILABLE, however UCX noticed; never INVALID_ARGUMENT, since no
// argument of a caller reaches UCX unchecked.
absl::Status UcxStatus(ucs_status_t status, std::string_view what);

class UcxWorker {
 public:
  // Active message ids: of frames alone, and of DATA with its piece.
  static constexpr unsigned kControlId = 1;
  static constexpr unsigned kDataId = 2;

  struct Options {
    std::string tls;                 // the UCX transports that may be used: what makes a lane a lane
    std::string connection_manager;  // UCX's name of the only one that listens; empty: all that there are
    std::string net_devices;         // empty: all
    bool rma = false;                // also one-sided reads
    bool devices = false;            // also memory of CUDA's devices, where UCX can: reaches_devices
    uint64_t tcp_segment_bytes = 0;  // of TCP's send and receive buffers; 0: UCX's own choice
    // Pieces from this size on go by rendezvous, smaller ones in messages that carry them.
    uint64_t rendezvous_bytes = 16 << 10;
  };

  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const Options& options);
  // REQUIRES: every endpoint is closed, every listener destroyed.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // Thread-safe.
  void Post(TaskQueue::Task task) { queue_.Post(std::move(task)); }
  // Waits until every endpoint has closed, and the tasks that its closing posted have run. REQUIRES: not on
  // the thread.
  void WaitForEndpoints();
  // Runs `task` on the progress thread and waits for it; at once when already there.
  void Run(absl::FunctionRef<void()> task);
  bool OnThread() const { return std::this_thread::get_id() == thread_id_.load(); }

  // The rest belongs to the progress thread.
  ucp_context_h context() const { return context_; }
  ucp_worker_h worker() const { return worker_; }
  uint64_t rendezvous_bytes() const { return rendezvous_bytes_; }
  bool reaches_devices() const { return reaches_devices_; }
  TaskQueue& queue() { return queue_; }

  struct Region {
    const std::byte* base = nullptr;
    uint64_t bytes = 0;  // 0: nothing is mapped
    ucp_mem_h handle = nullptr;
    ucs_memory_type_t type = UCS_MEMORY_TYPE_HOST;
  };
  // Maps memory for remote reading and local use, as the n-th region; it is unmapped with the worker, or
  // before. REQUIRES for a device's: its context is current. REQUIRES for unmapping: nothing uses it.
  absl::Status MapMemory(size_t region, std::byte* base, uint64_t bytes, ucs_memory_type_t type);
  void UnmapMemory(size_t region);
  // The region that holds `address`; nullptr when none does.
  const Region* FindMemory(const std::byte* address) const;
  // The key with which a peer reads the n-th mapped region.
  absl::StatusOr<std::string> PackRemoteKey(size_t region) const;

  // Operations in flight, of whatever kind, keep the thread awake.
  void AddInFlight(int delta) { in_flight_ += delta; }

  // Endpoints that messages and errors are delivered to.
  void AddEndpoint(ucp_ep_h ep, std::shared_ptr<UcxEndpoint> endpoint) {
    endpoints_[ep] = std::move(endpoint);
  }
  void RemoveEndpoint(ucp_ep_h ep) { endpoints_.erase(ep); }
  std::shared_ptr<UcxEndpoint> FindEndpoint(ucp_ep_h ep) const;

  // Counts the endpoints that have not closed yet; the worker must not be destroyed before they have.
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
