// The GlobalStore service of proto/global_store.proto on top of a Coordinator. Thread-safe.
#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "base/request_context.h"
#include "global_store/coordinator/coordinator.h"
#include "proto/global_store.pb.h"
#include "security/key_rules.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace tensorcast::rpc {
class AdmissionQueue;
class Credentials;
}  // namespace tensorcast::rpc

namespace tensorcast::global_store {

struct ServiceOptions {
  // Only nodes of this host come here; else a node's address must be one that other hosts can connect to.
  bool own_host_only = false;
  std::shared_ptr<const rpc::Credentials> credentials;  // for the calls of daemons; null: those are in clear
  security::KeyRules key_rules;
  // Fills in the other stores, and what the metadata takes; may block. Empty: this global store is alone.
  std::function<void(const RequestContext&, v1::GetClusterStatusResponse&)> describe_stores;
};

// To be registered with an rpc::Server, and to be destroyed after it. `coordinator` and `admission`, which
// queues the calls by their class, must outlive the service.
std::unique_ptr<grpc::Service> MakeGlobalStoreService(Coordinator* coordinator,
                                                      rpc::AdmissionQueue* admission,
                                                      const ServiceOptions& options);

}  // namespace tensorcast::global_store
