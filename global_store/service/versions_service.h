// The Versions service of proto/versions.proto: followers of keys, and version groups. Thread-safe.
#pragma once

#include <memory>

#include "global_store/coordinator/coordinator.h"
#include "global_store/service/group_rounds.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace tensorcast::rpc {
class AdmissionQueue;
}  // namespace tensorcast::rpc

namespace tensorcast::global_store {

// Contract as for MakeGlobalStoreService.
std::unique_ptr<grpc::Service> MakeVersionsService(Coordinator* coordinator,
                                                   std::shared_ptr<GroupRounds> rounds,
                                                   rpc::AdmissionQueue* admission);

}  // namespace tensorcast::global_store
