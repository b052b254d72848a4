// One of several global stores that share an etcd. One store leads and listens; the other stores stand by.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config_reader.h"
#include "base/request_context.h"
#include "base/task_loop.h"
#include "global_store/metadata/etcd/client.h"
#include "global_store/metadata/etcd/leadership.h"
#include "global_store/metadata/etcd/membership.h"
#include "otel/api/metrics.h"
#include "proto/global_store.pb.h"

namespace tensorcast::global_store {

struct EtcdOptions {
  etcd::ClientOptions client;
  etcd::LeadershipOptions leadership{.prefix = "tensorcast"};
  uint64_t quota_bytes = 2ULL << 30;                 // etcd's quota; a warning is logged above 80 %
  Cancellation stop_waiting;                         // ends the wait of a store that does not lead
  std::function<void(const absl::Status&)> on_lost;  // called once when leadership ends; must end the store

  void FromConfig(ConfigReader& config);
  void Validate(Findings& findings) const;
};

class EtcdGroup {
 public:
  // Blocks until this store leads. Errors are those of etcd::Leadership::Campaign.
  static absl::StatusOr<std::unique_ptr<EtcdGroup>> JoinAndLead(const EtcdOptions& options);
  // The destructor resigns the leadership and leaves the group.
  EtcdGroup(const EtcdGroup&) = delete;
  EtcdGroup& operator=(const EtcdGroup&) = delete;

  etcd::Client* client() { return client_.get(); }
  etcd::Leadership* leadership() { return leadership_.get(); }

  // Sets the response's fields about the stores and etcd. Leaves out the other stores if etcd does not answer
  // within a second.
  void Describe(const RequestContext& context, v1::GetClusterStatusResponse& response) const;

 private:
  EtcdGroup(const EtcdOptions& options, std::unique_ptr<etcd::Client> client);
  void ObserveLeadership();
  void MeasureSize();

  const EtcdOptions options_;
  const std::unique_ptr<etcd::Client> client_;
  etcd::Membership membership_;
  std::atomic<uint64_t> bytes_{0};  // 0: not known yet
  bool warned_ = false;             // used by the task `measuring_` only
  std::unique_ptr<etcd::Leadership> leadership_;
  std::unique_ptr<TaskLoop> measuring_;
  std::vector<otel::GaugeRegistration> gauges_;
};

}  // namespace tensorcast::global_store
