// The source's side of a UCX lane: the listener, the connections of receivers, and what each is served.
// Private to this folder; all of it belongs to the progress thread but for what says otherwise.
#pragma once

#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "base/address.h"
#include "transport/serving.h"
#include "transport/transport.h"
#include "transport/ucx/descriptor.h"
#include "transport/ucx/ucx_worker.h"

namespace tensorcast::transport {

class SourceConnection;

// One image under one pull id. `busy` counts what may still read the image: sends, reads on serving threads,
// connections that are being closed. A revoked serving is over when it is 0.
struct SourceServing {
  PullId id{};
  std::shared_ptr<ServedImage> image;
  uint64_t image_bytes = 0;
  bool in_place = false;
  std::vector<ConstHostSpan> segments;
  bool revoked = false;
  int busy = 0;
  std::function<void()> on_idle;  // set by Revoke
  absl::flat_hash_set<SourceConnection*> connections;

  ServeCounter counter;  // read on any thread

  void AddBusy(int delta);
};

class UcxSource {
 public:
  struct Limits {
    int connections = 1024;
    uint32_t requests_a_pull = 64;
    uint64_t request_bytes = uint64_t{64} << 20;
    uint64_t piece_bytes = uint64_t{16} << 20;
    int sends_a_pull = 16;
    int reads_a_pull = 2;
  };

  UcxSource(UcxWorker* worker, UcxLane lane, const Limits& limits, int serving_threads);
  // REQUIRES: shut down.
  ~UcxSource();

  // Listens; the bound port.
  absl::StatusOr<uint16_t> Listen(const SocketAddress& address);

  void Add(std::shared_ptr<SourceServing> serving) { servings_[serving->id] = std::move(serving); }
  // Ends every pull of it; `done` is called when nothing of ours, nor any peer, reads the image any more.
  void Revoke(const std::shared_ptr<SourceServing>& serving, std::function<void()> done);
  // Stops listening and closes every connection.
  void Shutdown();

  // For its connections.
  UcxWorker& worker() { return *worker_; }
  UcxLane lane() const { return lane_; }
  const Limits& limits() const { return limits_; }
  ServingThreads& threads() { return threads_; }
  std::shared_ptr<SourceServing> Find(const PullId& id) const;
  void Forget(SourceConnection* connection) { connections_.erase(connection); }

 private:
  static void OnConnectionRequest(ucp_conn_request_h request, void* arg);
  void Accept(ucp_conn_request_h request);

  UcxWorker* const worker_;
  const UcxLane lane_;
  const Limits limits_;
  ucp_listener_h listener_ = nullptr;
  absl::flat_hash_map<PullId, std::shared_ptr<SourceServing>> servings_;
  absl::flat_hash_map<SourceConnection*, std::shared_ptr<SourceConnection>> connections_;
  ServingThreads threads_;
};

}  // namespace tensorcast::transport
