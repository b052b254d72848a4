// A node with a valid certificate (or, where the cluster has none, a node) that lies: it claims replicas of
// everything, under the ids that other nodes gave theirs, accuses other nodes' replicas, and has not a byte.
// It registers, sends heartbeats, and answers calls of a store daemon with refusals. What it does ends with
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
  std::string handle_socket;                            // registered and told as its own
  std::function<std::string()> ticket;                  // for an attach; null: it refuses
  std::shared_ptr<const rpc::Credentials> credentials;  // null: the cluster has no certificates
  std::string listen = "127.0.0.1:0";                   // of its server; "unix:/path" without ports
};

class Liar {
 public:
  // Listens, registers, and sends heartbeats from then on.
  static absl::StatusOr<std::unique_ptr<Liar>> Start(const LiarOptions& options);
  ~Liar();

  // Registers again with what `change` makes of its description.
  absl::Status Register(const std::function<void(v1::Node&)>& change);
  // An inventory with a ready replica of each artifact: under the ids of the replicas that are listed with
  // it, and one under an id of its own.
  absl::Status Claim(const std::vector<v1::Artifact>& artifacts);
  // Names every listed replica as corrupt, with no grant on any; where `with_grants` says so, asks for a
  // grant on what it can and accuses that source as well.
  absl::Status Accuse(const std::vector<v1::Artifact>& artifacts, bool with_grants);

  daemon::GlobalStoreClient& store() { return *store_; }
  v1::NodeIdentity identity() const;
  // How often another node tried to read from it.
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
  std::unique_ptr<TaskLoop> heartbeats_;  // last: it uses the rest
};

}  // namespace tensorcast::chaos
