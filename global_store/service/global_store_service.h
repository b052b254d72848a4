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
  // True: all nodes are on this host. False: a node's address must be one that other hosts can connect to.
  bool own_host_only = false;
  std::shared_ptr<const rpc::Credentials> credentials;  // for the calls to daemons; null: unencrypted
  security::KeyRules key_rules;
  // Adds the other stores and the size of the metadata to the response; may block. Empty: this is the only
  // global store.
  std::function<void(const RequestContext&, v1::GetClusterStatusResponse&)> describe_stores;
};

// The service must outlive the rpc::Server that serves it. `coordinator` and `admission` must outlive the
// service. `admission` queues the calls.
std::unique_ptr<grpc::Service> MakeGlobalStoreService(Coordinator* coordinator,
                                                      rpc::AdmissionQueue* admission,
                                                      const ServiceOptions& options);

}  // namespace tensorcast::global_store
