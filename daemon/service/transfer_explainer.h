// Explains how the bytes of a transfer reached this node. Collects the reports of this node, of the
// transfer's sources, and of the daemons that filled these sources.
//
// An explanation asks up to kMaxQuestions questions, of nodes up to kMaxHops away, within kTime. Nodes at the
// same distance are asked at the same time. All addresses come from the global store. Read-only; thread-safe.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/service/status_report.h"
#include "daemon/sources/peer_client.h"
#include "proto/daemon.pb.h"
#include "rpc/executor.h"

namespace tensorcast::daemon {

class TransferExplainer {
 public:
  static constexpr int kMaxHops = 4;
  static constexpr size_t kMaxQuestions = 32;
  static constexpr size_t kMaxAnswerBytes = size_t{96} << 10;  // so that all answers fit into one message
  static constexpr absl::Duration kTime = absl::Seconds(5);
  static constexpr absl::Duration kTimeOfOne = absl::Seconds(2);

  struct Options {
    const StatusReporter* status = nullptr;  // all must outlive the explainer
    GlobalStoreClient* global_store = nullptr;
    PeerClient* peers = nullptr;
  };

  explicit TransferExplainer(const Options& options) : options_(options) {}

  // NOT_FOUND if this node does not remember the transfer. A missing answer of another node is not an error:
  // its hop has a `problem`.
  absl::StatusOr<v1::ExplainTransferResponse> Explain(const RequestContext& context,
                                                      const std::string& transfer_id);

 private:
  struct Question {
    std::string node;
    v1::DescribeHopRequest request;
    bool filling = false;  // the replica was filling while it was read, so its own sources matter
  };
  using Asked = std::set<std::pair<std::string, std::string>>;  // node and replica

  // A question for each source of this hop that is not in `asked` yet, sources with more bytes first. Adds
  // these sources to `asked`.
  static std::vector<Question> QuestionsOf(const v1::TransferHop& hop, Asked& asked);
  std::vector<v1::TransferHop> AskAll(const RequestContext& context, const std::vector<Question>& questions);
  absl::StatusOr<v1::TransferHop> Ask(const RequestContext& context, const PeerAddress& peer,
                                      const Question& question) const;

  const Options options_;
  rpc::Executor askers_{rpc::Executor::Options{.max_threads = 16, .max_queued = 256}};
};

}  // namespace tensorcast::daemon
