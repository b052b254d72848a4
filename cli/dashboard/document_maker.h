// Makes the views of documents.h; each page has a file *_documents.cc. Private to this folder.
//
// All views and tabs share the answers of servers (Cached). Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/status.h"
#include "cli/dashboard/cached.h"
#include "cli/dashboard/documents.h"
#include "cli/dashboard/node_statuses.h"
#include "cli/output/output.h"
#include "client/admin.h"

namespace tensorcast::dashboard {

inline constexpr absl::Duration kDocumentTimeout = absl::Seconds(8);  // max for the calls of one document

// The message in protobuf's JSON mapping.
template <class Message>
nlohmann::json ToDocument(const Message& message) {
  return nlohmann::json::parse(cli::ToJson(message), nullptr, /*allow_exceptions=*/false);
}

nlohmann::json Problem(std::string subject, const absl::Status& status);
// The value of the node's label; "" if it has no such label.
std::string LabelOf(const v1::Node& node, const char* name);
// Whether the node was silent for longer than a healthy node can be.
bool IsLate(const v1::Node& node);
// Whether the node has the zone and rack in the query; a parameter that the query lacks matches every node.
bool IsIn(const Query& query, const v1::Node& node);
// The node as the global store describes it, without times that change at each poll.
nlohmann::json NodeRow(v1::Node node);
// A node's status, without facts of the host that change at each poll. Leaves out the oldest recent_transfers
// and servings if the message is too long.
nlohmann::json StatusRow(v1::GetStatusResponse status);
// The rate between two readings of a byte counter, in bytes per second.
double RateOf(uint64_t now, uint64_t before, absl::Duration between);

class Documents::Maker {
 public:
  explicit Maker(Options options) : options_(std::move(options)), nodes_(options_.connect) {}

  absl::StatusOr<nlohmann::json> Make(const std::string& view, const Query& query);

 private:
  template <class T>
  using Shared = absl::StatusOr<std::shared_ptr<const T>>;

  absl::StatusOr<std::shared_ptr<client::AdminClient>> Own();

  // Calls the server (daemon or global store) of this dashboard. After UNAVAILABLE the next call looks up the
  // server's address again.
  template <class Call>
  auto Ask(Call call)
      -> decltype(call(std::declval<client::AdminClient&>(), std::declval<const RequestContext&>())) {
    TC_ASSIGN_OR_RETURN(const auto own, Own());
    auto answer = call(*own, RequestContext::Background(kDocumentTimeout));
    if (absl::IsUnavailable(answer.status())) {
      // Another call may have connected again meanwhile; its connection stays.
      const absl::MutexLock lock(&mutex_);
      if (own_ == own) own_ = nullptr;
    }
    return answer;
  }

  // The daemon's status. UNIMPLEMENTED if the dashboard is connected to a global store.
  Shared<v1::GetStatusResponse> Daemon();
  // The cluster, with the nodes sorted by name.
  Shared<v1::GetClusterStatusResponse> Cluster();
  Shared<std::vector<v1::Artifact>> AllArtifacts();
  Shared<v1::ListKeysResponse> AllKeys();
  Shared<v1::ListReplicationTasksResponse> AllTasks();

  // Returns the registered nodes. If the global store does not answer, returns only the daemon's own node and
  // adds the error to `problems`.
  absl::StatusOr<std::vector<v1::Node>> KnownNodes(nlohmann::json* problems);
  // Finds a node by its name or id; an id takes precedence over an equal name of another node.
  absl::StatusOr<v1::Node> FindNode(const std::string& wanted, nlohmann::json* problems);
  absl::StatusOr<std::map<std::string, v1::Node>> NodesById();
  // The statuses of the first kMaxAskedNodes of `nodes`, in their order.
  std::vector<Cached<NodeStatus>::Value> AskNodes(const std::vector<v1::Node>& nodes);
  void KnowOwn();

  absl::StatusOr<nlohmann::json> Status(const Query& query);
  absl::StatusOr<nlohmann::json> Zones(const Query& query);
  absl::StatusOr<nlohmann::json> Nodes(const Query& query);
  absl::StatusOr<nlohmann::json> Node(const Query& query);
  absl::StatusOr<nlohmann::json> Artifacts(const Query& query);
  absl::StatusOr<nlohmann::json> Artifact(const Query& query);
  absl::StatusOr<nlohmann::json> Keys(const Query& query);
  absl::StatusOr<nlohmann::json> Key(const Query& query);
  absl::StatusOr<nlohmann::json> Transfers(const Query& query);
  absl::StatusOr<nlohmann::json> Transfer(const Query& query);
  absl::StatusOr<nlohmann::json> Tasks(const Query& query);

  const Options options_;
  NodeStatuses nodes_;
  absl::Mutex mutex_;
  std::shared_ptr<client::AdminClient> own_ ABSL_GUARDED_BY(mutex_);
  // Equal to own_ if own_ is connected to a global store and not to a daemon.
  std::shared_ptr<client::AdminClient> store_alone_ ABSL_GUARDED_BY(mutex_);
  Cached<v1::GetStatusResponse> daemon_;
  Cached<v1::GetClusterStatusResponse> cluster_;
  Cached<std::vector<v1::Artifact>> artifacts_;
  Cached<v1::ListKeysResponse> keys_;
  Cached<v1::ListReplicationTasksResponse> tasks_;
};

}  // namespace tensorcast::dashboard
