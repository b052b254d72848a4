// Calls etcd's API (v3 of etcd 3.4 or newer: KV, Lease, Maintenance, Auth) on any member of the etcd cluster.
// API reference: https://etcd.io/docs/v3.4/dev-guide/api_reference_v3/
//
// After a transient failure, such as a stopped member, the client retries the call on the next member. At the
// call's deadline the client returns UNAVAILABLE with the last error. So etcd may make a change twice, or
// after the call returned an error. REQUIRES: a repeated or late change is harmless (change_writer.h).
//
// RESOURCE_EXHAUSTED: the quota of etcd is full. Other errors are etcd's own. Thread-safe; calls block.
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
  // PEM files. `ca` set: connections use TLS. `certificate` and `key` set: this process authenticates with
  // them.
  std::string ca, certificate, key;
  std::string user, password;  // empty user: no login
  // Max time for a member's answer. After this time, the client calls the next member.
  absl::Duration member_timeout = absl::Seconds(1);
};

class Client {
 public:
  // Connects at the first call. INVALID_ARGUMENT: no endpoint is set, a file cannot be read or is empty, or
  // `certificate` or `key` is set without `ca`.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const RequestContext& context,
                                                    const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const RequestContext& context,
                                                const etcdserverpb::TxnRequest& request);
  // Makes etcd forget the revisions before `revision`.
  absl::Status Compact(const RequestContext& context, int64_t revision);
  absl::StatusOr<etcdserverpb::StatusResponse> Status(const RequestContext& context);

  struct Lease {
    int64_t id = 0;
    absl::Duration ttl;  // as granted by etcd
  };
  absl::StatusOr<Lease> Grant(const RequestContext& context, absl::Duration ttl);
  // Renews the lease. Returns its time to live, counted from the start of this call. NOT_FOUND: the lease has
  // ended.
  absl::StatusOr<absl::Duration> KeepAlive(const RequestContext& context, int64_t lease);
  absl::Status Revoke(const RequestContext& context, int64_t lease);

  std::string endpoints() const;  // for messages

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::global_store::etcd
