#include "tools/workshop/bench/fleet.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <optional>
#include <queue>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/convert/convert.h"
#include "rpc/foreign_mutexes/foreign_mutexes.h"
#include "rpc/interceptors.h"
#include "rpc/protocol_version.h"
#include "rpc/retry.h"
#include "rpc/retry_after.h"
#include "tools/workshop/bench/flight.h"

namespace tensorcast::bench {
namespace {

// As the daemon's (GlobalStoreLink::Options).
constexpr rpc::Backoff::Options kBackoff = {.initial = absl::Milliseconds(100), .max = absl::Seconds(1)};
constexpr uint64_t kPoolBytes = uint64_t{64} << 30;
constexpr int kNodesInARack = 32;

using Stub = v1::GlobalStore::Stub;

void FillPool(v1::Pool* pool) {
  pool->mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
  pool->set_capacity_bytes(kPoolBytes);
  pool->set_used_bytes(kPoolBytes / 2);
}

}  // namespace

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address,
                                          std::shared_ptr<grpc::ChannelCredentials> credentials) {
  rpc::StopCheckingForeignMutexes();
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(rpc::MakeClientInterceptorFactory(/*session_id=*/"", address));
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, arguments,
                                                                 std::move(interceptors));
}

std::string Fleet::NameOf(int node) { return absl::StrCat("node-", node); }

v1::Node Fleet::Describe(int index) {
  v1::Node node;
  node.set_node_id(NameOf(index));
  node.set_name(NameOf(index));
  node.set_incarnation(1);
  node.set_host_id(absl::StrCat("host-", index));
  node.set_grpc_address(
      absl::StrCat("10.", index / 65536 % 256, ".", index / 256 % 256, ".", index % 256, ":7000"));
  node.set_handle_socket("/run/tensorcast/handles.sock");
  node.add_lanes("tcp");
  node.set_protocol_version(rpc::kProtocolVersion);
  (*node.mutable_labels())["rack"] = absl::StrCat("rack-", index / kNodesInARack);
  FillPool(node.add_pools());
  return node;
}

// What all nodes share: when each is due, and what they count.
struct Fleet::Shared {
  explicit Shared(FleetOptions fleet) : options(std::move(fleet)) {
    observer.on_call = [this](std::string_view method) { CountCall(method); };
    observer.on_ready = [this](const std::string& artifact_id) {
      absl::MutexLock lock(&mutex);
      ready[artifact_id].push_back(SteadyNow());
    };
  }
  void CountCall(std::string_view method) {
    absl::MutexLock lock(&mutex);
    ++calls_by_method[std::string(method)];
  }
  // A node is in `due` only while it has neither a step nor a call under way. So the thread does not step a
  // node before the answer to its previous call.
  void Schedule(SteadyTime at, Node* node) {
    absl::MutexLock lock(&mutex);
    due.emplace(at, node);
  }
  void Run();

  const FleetOptions options;
  FleetFollower::Observer observer;
  mutable absl::Mutex mutex;
  using Due = std::pair<SteadyTime, Node*>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  // Steps under way. A step that starts a call ends only with the answer.
  int calls ABSL_GUARDED_BY(mutex) = 0;  // under way
  FleetCounts counts ABSL_GUARDED_BY(mutex);
  std::string last_error ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<uint64_t, int> reported ABSL_GUARDED_BY(mutex);  // nodes, by the store's epoch
  std::map<std::string, uint64_t, std::less<>> calls_by_method ABSL_GUARDED_BY(mutex);
  // When each follower had the artifact.
  std::map<std::string, std::vector<SteadyTime>, std::less<>> ready ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Node>> nodes;
  std::thread thread;
};

// A node, which takes one step at a time: a step makes at most one call, and its end schedules the next step.
// Step runs on the fleet's thread and uses no field once its call has started; the answer arrives on a thread
// of gRPC. The lock that Done takes orders an answer before the next step, so the fields need no lock.
//
// A node registers, then sends its inventory, then heartbeats. It registers again when a heartbeat is
// answered by a store with another epoch, or when a call is answered with NOT_FOUND or ABORTED. It sends its
// inventory again when an answer wants one.
class Fleet::Node {
 public:
  Node(Shared& shared, int index) : shared_(shared), index_(index), backoff_(kBackoff) {
    // Node 0 publishes.
    if (shared.options.follower.has_value() && index > 0) {
      follower_ = std::make_unique<FleetFollower>(*shared.options.follower, NameOf(index), &shared.observer);
    }
  }

  void Step() {
    if (stub_ == nullptr) Connect();
    if (!registered_) return Register();
    if (inventory_due_) return SendInventory();
    if (SteadyNow() >= next_heartbeat_) return SendHeartbeat();
    if (SteadyNow() >= WorkDue()) {
      return follower_->Step(stub_.get(), [this](const absl::Status& status) {
        if (!status.ok()) return OnError(status);
        OnAnswer();
      });
    }
    Done(std::min(next_heartbeat_, WorkDue()));
  }

 private:
  SteadyTime WorkDue() const {
    return follower_ == nullptr ? SteadyTime::InfiniteFuture() : follower_->due();
  }

  // A channel of its own, as a process of its own has.
  void Connect() {
    const auto& credentials = shared_.options.credentials;
    stub_ = v1::GlobalStore::NewStub(
        OwnChannel(shared_.options.address, credentials != nullptr ? credentials(index_) : nullptr));
  }

  void FillIdentity(v1::NodeIdentity* identity) const {
    identity->set_node_id(NameOf(index_));
    identity->set_incarnation(1);
  }

  void Register() {
    auto flight = std::make_shared<Flight<v1::RegisterNodeRequest, v1::RegisterNodeResponse>>();
    flight->request.mutable_node()->CopyFrom(Describe(index_));
    stub_->async()->RegisterNode(flight->call.get(), &flight->request, &flight->response,
                                 [this, flight](const grpc::Status& status) {
                                   OnRegistered(flight->call.Outcome(status), flight->response);
                                 });
  }

  void OnRegistered(const absl::Status& status, const v1::RegisterNodeResponse& response) {
    if (!status.ok()) return OnError(status);
    // This store already took an inventory of the node: it had dropped the node in the meantime.
    if (epoch_ == response.store_epoch()) Count(&FleetCounts::registered_again);
    Obey(response.heartbeat_interval());
    registered_ = true;
    inventory_due_ = true;
    answered_by_ = response.store_epoch();
    next_heartbeat_ = SteadyNow() + interval_;
    OnAnswer();
  }

  void SendInventory() {
    // The call is a client stream. The whole inventory is its first and last message.
    struct Reactor : grpc::ClientWriteReactor<v1::ReconcileInventoryRequest> {
      explicit Reactor(Node* node) : node(node) {}
      void OnDone(const grpc::Status& status) override {
        node->OnInventory(flight.call.Outcome(status));
        delete this;
      }
      Node* const node;
      Flight<v1::ReconcileInventoryRequest, v1::ReconcileInventoryResponse> flight;
    };
    auto* const reactor = new Reactor(this);  // until OnDone
    v1::ReconcileInventoryRequest& request = reactor->flight.request;
    FillIdentity(request.mutable_node());
    request.set_sequence(0);
    for (size_t i = 0; i < shared_.options.artifacts.size(); ++i) {
      v1::Replica& replica = *request.add_replicas();
      replica.set_replica_id(absl::StrCat("replica-", index_, "-", i));
      replica.set_artifact_id(shared_.options.artifacts[i]);
      replica.set_node_id(NameOf(index_));
      replica.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
      replica.set_state(v1::REPLICA_STATE_READY);
      replica.set_image_bytes(uint64_t{1} << 30);
      replica.set_chunks_total(256);
      replica.set_chunks_present(256);
    }
    reactor->flight.call.AnnounceMessages(1);
    stub_->async()->ReconcileInventory(reactor->flight.call.get(), &reactor->flight.response, reactor);
    reactor->StartWriteLast(&request, grpc::WriteOptions());
    reactor->StartCall();
  }

  void OnInventory(const absl::Status& status) {
    if (!status.ok()) return OnError(status);
    inventory_due_ = false;
    if (follower_ != nullptr) {
      follower_->SetInventory(shared_.options.artifacts.front(), absl::StrCat("replica-", index_, "-0"));
    }
    {
      absl::MutexLock lock(&shared_.mutex);
      if (epoch_ != 0) --shared_.reported[epoch_];
      ++shared_.reported[answered_by_];
    }
    epoch_ = answered_by_;
    OnAnswer();
  }

  void SendHeartbeat() {
    auto flight = std::make_shared<Flight<v1::HeartbeatRequest, v1::HeartbeatResponse>>();
    FillIdentity(flight->request.mutable_node());
    FillPool(flight->request.add_pools());
    if (follower_ != nullptr) follower_->Report(&flight->request);
    shared_.CountCall("Heartbeat");
    stub_->async()->Heartbeat(flight->call.get(), &flight->request, &flight->response,
                              [this, flight](const grpc::Status& status) {
                                OnHeartbeat(flight->call.Outcome(status), flight->response);
                              });
  }

  void OnHeartbeat(const absl::Status& status, const v1::HeartbeatResponse& response) {
    if (!status.ok()) return OnError(status);
    Count(&FleetCounts::heartbeats);
    Obey(response.heartbeat_interval());
    next_heartbeat_ = SteadyNow() + interval_;
    if (follower_ != nullptr) follower_->Answered(response);
    // Another store answered than the one that took the registration, as after a restart.
    if (response.store_epoch() != answered_by_) registered_ = false;
    inventory_due_ |= response.inventory_wanted();
    OnAnswer();
  }

  void Obey(const google::protobuf::Duration& interval) {
    const absl::Duration told = rpc::FromProto(interval);
    if (told <= absl::ZeroDuration() || told == interval_) return;
    interval_ = told;
    absl::MutexLock lock(&shared_.mutex);
    shared_.counts.heartbeat_interval = std::max(shared_.counts.heartbeat_interval, told);
  }

  void OnAnswer() {
    // `registering_` stays set until a registration succeeds, so that only the first of several refusals is
    // followed at once by the next call.
    backoff_.Reset();
    registering_ = registering_ && !registered_;
    Done(SteadyNow());
  }

  void OnError(const absl::Status& status) {
    {
      absl::MutexLock lock(&shared_.mutex);
      ++(rpc::RetryAfterOf(status).has_value() ? shared_.counts.refused : shared_.counts.failed);
      shared_.last_error = status.ToString();
    }
    const bool unknown = absl::IsAborted(status) || absl::IsNotFound(status);
    if (unknown) registered_ = false;
    // A store that does not know the node is told at once, the first time.
    const bool at_once = unknown && !std::exchange(registering_, true);
    Done(at_once ? SteadyNow() : SteadyNow() + rpc::WaitAfter(status, backoff_));
  }

  void Count(uint64_t FleetCounts::* count) {
    absl::MutexLock lock(&shared_.mutex);
    ++(shared_.counts.*count);
  }

  void Done(SteadyTime next) {
    absl::MutexLock lock(&shared_.mutex);
    --shared_.calls;
    shared_.due.emplace(next, this);
  }

  Shared& shared_;
  const int index_;
  std::unique_ptr<Stub> stub_;
  std::unique_ptr<FleetFollower> follower_;  // null: the node follows no key
  rpc::Backoff backoff_;
  bool registered_ = false;
  bool registering_ = false;
  bool inventory_due_ = false;
  uint64_t answered_by_ = 0;  // the epoch of the store that took the registration
  uint64_t epoch_ = 0;        // of the store that took the inventory; 0: none yet
  absl::Duration interval_ = absl::Seconds(1);
  SteadyTime next_heartbeat_;
};

void Fleet::Shared::Run() {
  absl::MutexLock lock(&mutex);
  while (!stopping) {
    const SteadyTime next = due.empty() ? SteadyTime::InfiniteFuture() : due.top().first;
    if (next <= SteadyNow()) {
      Node* const node = due.top().second;
      due.pop();
      ++calls;
      // Not under the lock: a step takes the lock itself, and its call may be answered before the step
      // returns.
      mutex.Unlock();
      node->Step();
      mutex.Lock();
      continue;
    }
    const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return stopping || (!due.empty() && due.top().first < next);
    };
    mutex.AwaitWithTimeout(absl::Condition(&changed), TimeLeft(next));
  }
}

Fleet::Fleet(FleetOptions options) : shared_(std::make_unique<Shared>(std::move(options))) {
  const SteadyTime start = SteadyNow();
  for (int node = 0; node < shared_->options.nodes; ++node) {
    shared_->nodes.push_back(std::make_unique<Node>(*shared_, node));
    shared_->Schedule(start + node * shared_->options.start_interval, shared_->nodes.back().get());
  }
  shared_->thread = std::thread([shared = shared_.get()] { shared->Run(); });
}

Fleet::~Fleet() {
  {
    absl::MutexLock lock(&shared_->mutex);
    // First the thread, so that no further step begins; then the calls, which have pointers to the nodes.
    shared_->stopping = true;
  }
  shared_->thread.join();
  absl::MutexLock lock(&shared_->mutex);
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(shared_->mutex) { return shared_->calls == 0; };
  shared_->mutex.Await(absl::Condition(&ended));
}

int Fleet::ReportedTo(uint64_t epoch) const {
  absl::MutexLock lock(&shared_->mutex);
  const auto found = shared_->reported.find(epoch);
  return found == shared_->reported.end() ? 0 : found->second;
}

int Fleet::ReportedToOthersThan(uint64_t epoch) const {
  absl::MutexLock lock(&shared_->mutex);
  int nodes = 0;
  for (const auto& [of, count] : shared_->reported) nodes += of == epoch ? 0 : count;
  return nodes;
}

FleetCounts Fleet::counts() const {
  absl::MutexLock lock(&shared_->mutex);
  return shared_->counts;
}

std::map<std::string, uint64_t, std::less<>> Fleet::calls() const {
  absl::MutexLock lock(&shared_->mutex);
  return shared_->calls_by_method;
}

std::vector<SteadyTime> Fleet::ReadyTimes(std::string_view artifact_id) const {
  absl::MutexLock lock(&shared_->mutex);
  const auto ready = shared_->ready.find(artifact_id);
  return ready == shared_->ready.end() ? std::vector<SteadyTime>() : ready->second;
}

std::string Fleet::last_error() const {
  absl::MutexLock lock(&shared_->mutex);
  return shared_->last_error;
}

}  // namespace tensorcast::bench
