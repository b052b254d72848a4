// The views of documents.h, a file for each page: *_documents.cc. Private to this folder.
//
// What servers answer is shared by all views and tabs (Cached). Thread-safe.
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

inline constexpr absl::Duration kDocumentTimeout = absl::Seconds(8);  // of a call for one document

// The document is Protobuf's own JSON, as the commands print it. The text is parsed, since documents are
// joined and compared.
template <class Message>
nlohmann::json ToDocument(const Message& message) {
  return nlohmann::json::parse(cli::ToJson(message), nullptr, /*allow_exceptions=*/false);
}

nlohmann::json Problem(std::string subject, const absl::Status& status);
// "" where the node has no such label.
std::string LabelOf(const v1::Node& node, const char* name);
// It has not been heard for longer than a node that is well leaves the store without a word.
bool IsLate(const v1::Node& node);
// Whether zone and rack, where the query names them, are those of the node.
bool IsIn(const Query& query, const v1::Node& node);
// As the store tells it, but without seconds that change with every look although nothing happened.
nlohmann::json NodeRow(v1::Node node);
// A node's rings can be long: half of each goes until the message fits. What of the host changes with every
// look although nothing happened is left out.
nlohmann::json StatusRow(v1::GetStatusResponse status);
// Bytes a second between two looks at a counter.
double RateOf(uint64_t now, uint64_t before, absl::Duration between);

class Documents::Maker {
 public:
  explicit Maker(Options options) : options_(std::move(options)), nodes_(options_.connect) {}

  absl::StatusOr<nlohmann::json> Make(const std::string& view, const Query& query);

 private:
  template <class T>
  using Shared = absl::StatusOr<std::shared_ptr<const T>>;

  absl::StatusOr<std::shared_ptr<client::AdminClient>> Own();

  // Makes a call to the daemon or store beside which the dashboard is. One that is away is looked for again
  // by the next call: its successor may have another address.
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

  // A global store has no such call, and would log each that comes: it is asked once a connection.
  Shared<v1::GetStatusResponse> Daemon();
  // With the nodes sorted by name.
  Shared<v1::GetClusterStatusResponse> Cluster();
  Shared<std::vector<v1::Artifact>> AllArtifacts();
  Shared<v1::ListKeysResponse> AllKeys();
  Shared<v1::ListReplicationTasksResponse> AllTasks();

  // The registered nodes, or the daemon's own where the global store does not answer: then `problems` says
  // so.
  absl::StatusOr<std::vector<v1::Node>> KnownNodes(nlohmann::json* problems);
  // A name or an id; an id says more than a name that another node happens to have.
  absl::StatusOr<v1::Node> FindNode(const std::string& wanted, nlohmann::json* problems);
  absl::StatusOr<std::map<std::string, v1::Node>> NodesById();
  // The own statuses of the first kMaxAskedNodes of `nodes`.
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
  std::shared_ptr<client::AdminClient> store_alone_
      ABSL_GUARDED_BY(mutex_);  // of a global store, not of a daemon
  Cached<v1::GetStatusResponse> daemon_;
  Cached<v1::GetClusterStatusResponse> cluster_;
  Cached<std::vector<v1::Artifact>> artifacts_;
  Cached<v1::ListKeysResponse> keys_;
  Cached<v1::ListReplicationTasksResponse> tasks_;
};

}  // namespace tensorcast::dashboard
