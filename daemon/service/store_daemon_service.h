// The StoreDaemon service on gRPC: converts between messages and the functions of this folder. Thread-safe.
#pragma once

#include <memory>

#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/node/local_node.h"
#include "daemon/service/archiver.h"
#include "daemon/service/ingest.h"
#include "daemon/service/materialize.h"
#include "daemon/service/node_probe.h"
#include "daemon/service/status_report.h"
#include "daemon/service/transfer_explainer.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/session/sessions.h"
#include "daemon/sources/origin_comparer.h"
#include "daemon/sources/origin_files.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

struct StoreDaemonServiceOptions {
  const LocalNode* node = nullptr;  // all must outlive the server with which the service is registered
  StoreEngine* engine = nullptr;
  const Materializer* materializer = nullptr;
  const Ingester* ingester = nullptr;
  const Archiver* archiver = nullptr;
  const StatusReporter* status = nullptr;
  TransferExplainer* explainer = nullptr;
  const NodeProbe* probe = nullptr;
  ServeRegistry* servings = nullptr;
  Sessions* sessions = nullptr;
  OriginChecker* origins = nullptr;
  OriginComparer* comparer = nullptr;
  GlobalStoreLink* link = nullptr;
  // Calls that watch or wait run on `waiting`. Calls from other daemons' transfers (OpenPull, AttachReplica)
  // and from the global store (CheckOrigin) run on `quick`.
  rpc::Executor* quick = nullptr;
  rpc::Executor* waiting = nullptr;
};

std::unique_ptr<grpc::Service> MakeStoreDaemonService(const StoreDaemonServiceOptions& options);

}  // namespace tensorcast::daemon
