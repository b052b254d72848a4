// The parts of this node that answer calls, and its two gRPC servers. The servers accept no request before
// Listen. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/device/device_runtime.h"
#include "daemon/app/cluster_side.h"
#include "daemon/app/daemon_options.h"
#include "daemon/app/engine_side.h"
#include "daemon/app/storage.h"
#include "daemon/keeper/kept_pool.h"
#include "daemon/node/local_node.h"
#include "daemon/service/archiver.h"
#include "daemon/service/broadcast_groups.h"
#include "daemon/service/damaged_replicas.h"
#include "daemon/service/difference_maker.h"
#include "daemon/service/difference_paths.h"
#include "daemon/service/import_joins.h"
#include "daemon/service/ingest.h"
#include "daemon/service/live_replicas.h"
#include "daemon/service/materialize.h"
#include "daemon/service/node_probe.h"
#include "daemon/service/status_report.h"
#include "daemon/service/transfer_explainer.h"
#include "daemon/sources/origin_comparer.h"
#include "daemon/sources/origin_files.h"
#include "rpc/executor.h"
#include "rpc/server.h"
#include "transport/transport.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace tensorcast::daemon {

struct CallSide {
  // The arguments must outlive this object; `kept` may be null.
  CallSide(const DaemonOptions& options, LocalNode* node, DeviceRuntime* devices, const Storage& storage,
           const std::vector<transport::Transport*>& transports, GlobalStoreSide& store, SourceSide& sources,
           EngineSide& replicas, const BroadcastGroups& groups, const KeptPool* kept);
  ~CallSide();

  absl::Status Listen(const DaemonOptions& options);

  StatusReporter status;
  TransferExplainer explainer;
  const NodeProbe probe;
  const DifferencePaths difference_paths;
  const DifferenceMaker difference_maker;
  const Materializer materializer;
  LiveReplicas live;
  const Archiver archiver;
  ImportJoins joins;
  const Ingester ingester;
  OriginChecker origins;
  OriginComparer comparer;
  rpc::Executor quick;
  rpc::Executor waiting;
  const std::unique_ptr<grpc::Service> service;
  const std::unique_ptr<grpc::Service> possession;
  const std::unique_ptr<grpc::Service> records;
  // The thread of `damaged` uses the members above. The servers below use `damaged`.
  DamagedReplicas damaged;
  const std::unique_ptr<grpc::Service> proxy;
  const std::unique_ptr<grpc::Service> versions;
  const std::unique_ptr<grpc::Service> live_leases;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<rpc::Server> clients;  // for callers with the client role

 private:
  // Makes another replica of the damaged replica's artifact at the same location, from any source. Returns
  // the id of the new replica.
  absl::StatusOr<std::string> Replace(const RequestContext& context,
                                      const v1::DamagedReplica& damaged_replica) const;
};

}  // namespace tensorcast::daemon
