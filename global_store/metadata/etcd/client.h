// Calls to etcd's API (v3, 3.4 or newer: KV, Lease, Maintenance, Auth) on any of its members.
//
// A call that fails for a transient reason (a member is away or stopped, the cluster has no leader) is
// retried on the next member until its deadline; then the last error is returned as UNAVAILABLE. So etcd may
// make a change twice, or make it after the call returned an error. Callers must only make changes for which
// both are harmless (see change_writer.h). Other errors are etcd's own, as absl::Status. An exceeded quota is
// RESOURCE_EXHAUSTED with the remedy. Thread-safe; calls block. API reference:
// https://etcd.io/docs/v3.4/dev-guide/api_reference_v3/
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "etcd/rpc.pb.h"

namespace tensorcast::global_store::etcd {

struct ClientOptions {
  std::vector<std::string> endpoints;  // host:port each
  // PEM files. With `ca`, connections use TLS. With `certificate` and `key`, this process authenticates with
  // them.
  std::string ca, certificate, key;
  std::string user, password;  // empty user: no login
  // If a member does not answer within this time, a call goes to the next member.
  absl::Duration member_timeout = absl::Seconds(1);
};

class Client {
 public:
  // INVALID_ARGUMENT without an endpoint, or with a file that cannot be read. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const RequestContext& context,
                                                    const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const RequestContext& context,
                                                const etcdserverpb::TxnRequest& request);
  // Makes etcd forget revisions before this one.
  absl::Status Compact(const RequestContext& context, int64_t revision);
  absl::StatusOr<etcdserverpb::StatusResponse> Status(const RequestContext& context);

  struct Lease {
    int64_t id = 0;
    absl::Duration ttl;  // as granted by etcd
  };
  absl::StatusOr<Lease> Grant(const RequestContext& context, absl::Duration ttl);
  // Renews the lease. Returns how long it holds, counted from the beginning of this call. NOT_FOUND once it
  // has ended.
  absl::StatusOr<absl::Duration> KeepAlive(const RequestContext& context, int64_t lease);
  absl::Status Revoke(const RequestContext& context, int64_t lease);

  std::string endpoints() const;  // for messages

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::global_store::etcd
