// The Possession service on gRPC: from messages to daemon/serving's Possession and back. Thread-safe.
#pragma once

#include "daemon/serving/possession.h"
#include "proto/possession.grpc.pb.h"
#include "rpc/executor.h"

namespace tensorcast::daemon {

class PossessionService final : public v1::Possession::CallbackService {
 public:
  // All must outlive the server that this is registered with. What may wait for a disk, or reads a whole
  // replica, runs on `waiting`.
  PossessionService(Possession* possession, rpc::Executor* quick, rpc::Executor* waiting)
      : possession_(*possession), quick_(*quick), waiting_(*waiting) {}

  grpc::ServerUnaryReactor* Prove(grpc::CallbackServerContext* call, const v1::ProveRequest* request,
                                  v1::ProveResponse* response) override;
  grpc::ServerUnaryReactor* DigestAgain(grpc::CallbackServerContext* call,
                                        const v1::DigestAgainRequest* request,
                                        v1::DigestAgainResponse* response) override;

 private:
  Possession& possession_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace tensorcast::daemon
