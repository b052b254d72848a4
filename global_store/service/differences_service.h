// The Differences service of proto/differences.proto: nodes report differences that make wrong bytes. Owns
// the reports, which are soft state. Thread-safe.
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
std::unique_ptr<grpc::Service> MakeDifferencesService(Coordinator* coordinator,
                                                      rpc::AdmissionQueue* admission);

}  // namespace tensorcast::global_store
