// The StoreDaemon service on gRPC: from messages to the functions of this folder and back, nothing more.
// Thread-safe.
#pragma once

#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/node/local_node.h"
#include "daemon/service/ingest.h"
#include "daemon/service/materialize.h"
#include "daemon/service/status_report.h"
#include "daemon/service/transfer_explainer.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/session/sessions.h"
#include "daemon/sources/origin_comparer.h"
#include "daemon/sources/origin_files.h"
#include "proto/daemon.grpc.pb.h"
#include "rpc/executor.h"

namespace tensorcast::daemon {

class StoreDaemonService final : public v1::StoreDaemon::CallbackService {
 public:
  struct Options {
    const LocalNode* node = nullptr;  // all must outlive the server that this is registered with
    StoreEngine* engine = nullptr;
    const Materializer* materializer = nullptr;
    const Ingester* ingester = nullptr;
    const StatusReporter* status = nullptr;
    TransferExplainer* explainer = nullptr;
    ServeRegistry* servings = nullptr;
    Sessions* sessions = nullptr;
    OriginChecker* origins = nullptr;
    OriginComparer* comparer = nullptr;
    GlobalStoreLink* link = nullptr;
    // Calls that wait for transfers or for the global store, or watch, have threads of their own, so that
    // what those need of this daemon (OpenPull, AttachReplica, CheckOrigin) never queues behind them.
    rpc::Executor* quick = nullptr;
    rpc::Executor* waiting = nullptr;
  };

  explicit StoreDaemonService(const Options& options)
      : options_(options), quick_(*options.quick), waiting_(*options.waiting) {}

  grpc::ServerBidiReactor<v1::PutArtifactRequest, v1::PutArtifactResponse>* PutArtifact(
      grpc::CallbackServerContext* call) override;
  grpc::ServerWriteReactor<v1::PutArtifactResponse>* ImportArtifact(
      grpc::CallbackServerContext* call, const v1::ImportArtifactRequest* request) override;
  grpc::ServerWriteReactor<v1::MaterializeReplicaResponse>* MaterializeReplica(
      grpc::CallbackServerContext* call, const v1::MaterializeReplicaRequest* request) override;
  grpc::ServerUnaryReactor* AttachReplica(grpc::CallbackServerContext* call,
                                          const v1::AttachReplicaRequest* request,
                                          v1::AttachReplicaResponse* response) override;
  grpc::ServerUnaryReactor* EvictReplica(grpc::CallbackServerContext* call,
                                         const v1::EvictReplicaRequest* request,
                                         v1::EvictReplicaResponse* response) override;
  grpc::ServerUnaryReactor* PinReplica(grpc::CallbackServerContext* call,
                                       const v1::PinReplicaRequest* request,
                                       v1::PinReplicaResponse* response) override;
  grpc::ServerUnaryReactor* UnpinReplica(grpc::CallbackServerContext* call,
                                         const v1::UnpinReplicaRequest* request,
                                         v1::UnpinReplicaResponse* response) override;
  grpc::ServerUnaryReactor* ListReplicas(grpc::CallbackServerContext* call,
                                         const v1::ListReplicasRequest* request,
                                         v1::ListReplicasResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* call, const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerWriteReactor<v1::GetStatusResponse>* WatchStatus(
      grpc::CallbackServerContext* call, const v1::WatchStatusRequest* request) override;
  grpc::ServerUnaryReactor* ExplainTransfer(grpc::CallbackServerContext* call,
                                            const v1::ExplainTransferRequest* request,
                                            v1::ExplainTransferResponse* response) override;
  grpc::ServerUnaryReactor* DescribeHop(grpc::CallbackServerContext* call,
                                        const v1::DescribeHopRequest* request,
                                        v1::TransferHop* response) override;
  grpc::ServerWriteReactor<v1::GetManifestResponse>* GetManifest(
      grpc::CallbackServerContext* call, const v1::GetManifestRequest* request) override;
  grpc::ServerUnaryReactor* OpenPull(grpc::CallbackServerContext* call, const v1::OpenPullRequest* request,
                                     v1::OpenPullResponse* response) override;
  grpc::ServerUnaryReactor* ClosePull(grpc::CallbackServerContext* call, const v1::ClosePullRequest* request,
                                      v1::ClosePullResponse* response) override;
  grpc::ServerUnaryReactor* CheckOrigin(grpc::CallbackServerContext* call,
                                        const v1::CheckOriginRequest* request,
                                        v1::CheckOriginResponse* response) override;

 private:
  const Options options_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace tensorcast::daemon
