// The global stores that share an etcd and a prefix, whether they lead or stand by: for people, and not for
// decisions. Each keeps a key under a lease of its own while it runs. Thread-safe.
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
  // Registers in the background, and again where etcd has forgotten it. `client` must outlive it; of the
  // options it takes the prefix and this store's name and address.
  Membership(Client* client, const LeadershipOptions& options);
  // Unregisters, where etcd answers.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // The stores that run, by name. Asks etcd.
  absl::StatusOr<std::vector<StoreAddress>> List(const RequestContext& context) const;

 private:
  absl::Status Renew();

  Client* const client_;
  const LeadershipOptions options_;
  int64_t lease_ = 0;  // the task's; 0: none
  std::unique_ptr<TaskLoop> task_;
};

}  // namespace tensorcast::global_store::etcd
