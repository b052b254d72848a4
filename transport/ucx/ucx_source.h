// The source's side of a UCX lane: the listener, and the receivers' connections. A connection carries one
// pull after another. Private to this folder. Only the progress thread uses it.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "transport/pull/pull_source.h"
#include "transport/ucx/ucx_worker.h"

namespace tensorcast::transport {

class UcxSource {
 public:
  struct Options {
    size_t connections = 1024;  // max connections; further ones are refused
    bool one_sided = false;     // receivers read the image from this process's memory
    absl::Duration drain_timeout = absl::Milliseconds(500);
  };

  // `worker` and `source` must outlive this object.
  UcxSource(UcxWorker* worker, pull::PullSource* source, const Options& options)
      : worker_(worker), source_(source), options_(options) {}
  // REQUIRES: Shutdown was called.
  ~UcxSource();

  // Listens on `address`; returns the port.
  absl::StatusOr<uint16_t> Listen(const SocketAddress& address);
  // Stops listening and closes every connection.
  void Shutdown();

 private:
  class Connection;

  static void OnConnectionRequest(ucp_conn_request_h request, void* arg);
  void Accept(ucp_conn_request_h request);

  UcxWorker* const worker_;
  pull::PullSource* const source_;
  const Options options_;
  ucp_listener_h listener_ = nullptr;
  absl::flat_hash_map<Connection*, std::shared_ptr<Connection>> connections_;
};

}  // namespace tensorcast::transport
