// The Imports service of proto/imports.proto: nodes that want the same objects make one import. Owns the
// claims (global_store/imports). Thread-safe.
#pragma once

#include <memory>

#include "global_store/coordinator/coordinator.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace tensorcast::rpc {
class AdmissionQueue;
}  // namespace tensorcast::rpc

namespace tensorcast::global_store {

// Contract as for MakeGlobalStoreService.
std::unique_ptr<grpc::Service> MakeImportsService(Coordinator* coordinator, rpc::AdmissionQueue* admission);

}  // namespace tensorcast::global_store
