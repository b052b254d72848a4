// Calls of etcd's API (v3, 3.4 or newer: KV, Lease, Maintenance, Auth), whichever of its members answers.
//
// A call that fails for a reason that passes (a member away or stopped, the cluster without a leader) is made
// again, on the next member, until its deadline; then the last error is returned, as UNAVAILABLE. So a change
// may be made twice, or after its error was returned: callers make only such as can be (store.h says how).
// Other errors are etcd's own, as absl::Status; a full quota is RESOURCE_EXHAUSTED and says what to do.
// Thread-safe; calls block.
// Source: https://etcd.io/docs/v3.4/dev-guide/api_reference_v3/
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
  // PEM files. With an authority connections are TLS; with a certificate and its key this process shows it.
  std::string ca, certificate, key;
  std::string user, password;  // no user: etcd is not asked for one
  // A member that has not answered a call for so long is asked no more, and the next one is.
  absl::Duration member_timeout = absl::Seconds(1);
};

class Client {
 public:
  // INVALID_ARGUMENT without an endpoint, or with a file that cannot be read. Connects later.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const RequestContext& context,
                                                    const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const RequestContext& context,
                                                const etcdserverpb::TxnRequest& request);
  // What is older than this revision is forgotten.
  absl::Status Compact(const RequestContext& context, int64_t revision);
  absl::StatusOr<etcdserverpb::StatusResponse> Status(const RequestContext& context);

  struct Lease {
    int64_t id = 0;
    absl::Duration ttl;  // that etcd gave
  };
  absl::StatusOr<Lease> Grant(const RequestContext& context, absl::Duration ttl);
  // How long it holds from the moment that this call began; NOT_FOUND once it has ended.
  absl::StatusOr<absl::Duration> KeepAlive(const RequestContext& context, int64_t lease);
  absl::Status Revoke(const RequestContext& context, int64_t lease);

  std::string endpoints() const;  // for messages

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::global_store::etcd
