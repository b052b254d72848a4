// Lists the running global stores of an etcd prefix, whether they lead or wait. The list is for people: no
// decision depends on it. Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "base/task_loop.h"
#include "global_store/metadata/etcd/client.h"
#include "global_store/metadata/etcd/leadership.h"

namespace tensorcast::global_store::etcd {

class Membership {
 public:
  // Registers this process in the background, and again if etcd loses the registration. Does not use
  // `options.ttl`. `client` must outlive this object.
  Membership(Client* client, const LeadershipOptions& options);
  // Unregisters this process if etcd answers.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Reads the running stores from etcd. Sorted by name.
  absl::StatusOr<std::vector<StoreAddress>> List(const RequestContext& context) const;

 private:
  absl::Status Renew();

  Client* const client_;
  const LeadershipOptions options_;
  int64_t lease_ = 0;  // used by the task; 0: none
  std::unique_ptr<TaskLoop> task_;
};

}  // namespace tensorcast::global_store::etcd
