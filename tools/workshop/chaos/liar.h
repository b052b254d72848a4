// A malicious node, with a valid certificate if the cluster has certificates. It claims replicas of
// everything, under the ids of other nodes' replicas, accuses other nodes' replicas, and has no bytes. It
// registers, sends heartbeats, and answers calls of a store daemon with refusals. Its destructor ends all of
// it. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "daemon/global_store_link/global_store_client.h"
#include "proto/global_store.pb.h"

namespace tensorcast::rpc {
class Credentials;
class Server;
}  // namespace tensorcast::rpc

namespace tensorcast::chaos {

struct LiarOptions {
  std::string global_store;  // its address
  std::string name = "liar";
  std::string host_id = "host-of-the-liar";
  std::string handle_socket;                            // registered and reported as its own
  std::function<std::string()> ticket;                  // its answer to an attach; null: it refuses
  std::shared_ptr<const rpc::Credentials> credentials;  // null: the cluster has no certificates
  std::string listen = "127.0.0.1:0";                   // of its server; "unix:/path" for no ports
};

class Liar {
 public:
  // Listens and registers, and then sends heartbeats.
  static absl::StatusOr<std::unique_ptr<Liar>> Start(const LiarOptions& options);
  ~Liar();

  // Registers again with its description as changed by `change`.
  absl::Status Register(const std::function<void(v1::Node&)>& change);
  // Sends an inventory with a ready replica of each artifact: under the ids of the artifact's listed
  // replicas, and under an id of its own.
  absl::Status Claim(const std::vector<v1::Artifact>& artifacts);
  // Reports every listed replica as corrupt without a grant on any. With `with_grants` it also requests a
  // grant where possible, and accuses that source.
  absl::Status Accuse(const std::vector<v1::Artifact>& artifacts, bool with_grants);

  daemon::GlobalStoreClient& store() { return *store_; }
  v1::NodeIdentity identity() const;
  // The number of attempts of other nodes to read from it.
  int asked() const { return asked_; }

 private:
  class Service;

  explicit Liar(const LiarOptions& options);

  const LiarOptions options_;
  std::unique_ptr<daemon::GlobalStoreClient> store_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<rpc::Server> server_;
  std::atomic<int> asked_ = 0;
  std::atomic<uint64_t> sequence_ = 0;
  v1::Node node_;
  std::unique_ptr<TaskLoop> heartbeats_;  // last: it uses the other members
};

}  // namespace tensorcast::chaos
