#include "daemon/service/transfer_explainer.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::daemon {
namespace {

RequestContext Within(const RequestContext& context, absl::Duration time) {
  RequestContext bounded = context.Child();
  bounded.deadline = std::min(context.deadline, SteadyNow() + time);
  return bounded;
}

v1::TransferHop Unknown(const std::string& node, const std::string& replica_id, const absl::Status& why) {
  v1::TransferHop hop;
  hop.set_node(node);
  hop.set_replica_id(replica_id);
  hop.set_problem(std::string(why.message()));
  return hop;
}

// The answers to questions that are asked at once, and how many are open.
struct Answers {
  absl::Mutex mutex;
  std::vector<v1::TransferHop> hops ABSL_GUARDED_BY(mutex);
  size_t open ABSL_GUARDED_BY(mutex) = 0;
};

}  // namespace

std::vector<TransferExplainer::Question> TransferExplainer::QuestionsOf(const v1::TransferHop& hop,
                                                                        Asked& asked) {
  std::vector<const v1::SourceReport*> sources;
  for (const v1::SourceReport& source : hop.transfer().sources()) {
    if (!source.grant_id().empty() && !source.replica_id().empty()) sources.push_back(&source);
  }
  // The sources that gave most come first, as the number of questions is bounded.
  std::ranges::stable_sort(sources, std::greater(), [](const auto* source) { return source->bytes(); });
  std::vector<Question> questions;
  for (const v1::SourceReport* source : sources) {
    const auto same = [source](const Question& question) {
      return question.node == source->source() && question.request.replica_id() == source->replica_id();
    };
    // One that was given up and came back was read under several grants.
    auto question = std::ranges::find_if(questions, same);
    if (question == questions.end()) {
      if (!asked.emplace(source->source(), source->replica_id()).second) continue;
      question = questions.insert(questions.end(), {.node = source->source()});
      question->request.set_replica_id(source->replica_id());
    }
    question->request.add_grant_ids(source->grant_id());
    question->filling |= source->filling();
  }
  return questions;
}

absl::StatusOr<v1::TransferHop> TransferExplainer::Ask(const RequestContext& context, const PeerAddress& peer,
                                                       const Question& question) const {
  TC_ASSIGN_OR_RETURN(v1::TransferHop hop,
                      options_.peers->DescribeHop(Within(context, kTimeOfOne), peer, question.request));
  // The answer is bounded, so that all answers fit into one message to the client.
  if (hop.ByteSizeLong() > kMaxAnswerBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the node's answer has ", hop.ByteSizeLong(),
                                                     " bytes, more than the max of ", kMaxAnswerBytes));
  }
  // An answer about another replica is not believed in that.
  if (hop.transfer().replica_id() != question.request.replica_id()) hop.clear_transfer();
  return hop;
}

std::vector<v1::TransferHop> TransferExplainer::AskAll(const RequestContext& context,
                                                       const std::vector<Question>& questions) {
  std::set<std::string> names;
  for (const Question& question : questions) names.insert(question.node);
  // One call finds all addresses.
  const absl::StatusOr<std::vector<v1::Node>> nodes =
      options_.global_store->FindNodes(Within(context, kTimeOfOne), {names.begin(), names.end()});
  // Where a node is, the global store says. A peer could name any address.
  std::map<std::string, PeerAddress> peers;
  if (nodes.ok()) {
    for (const v1::Node& node : *nodes) {
      peers.emplace(node.name(), PeerAddress(node.grpc_address(), node.name()));
    }
  }
  Answers answers;
  {
    absl::MutexLock lock(&answers.mutex);
    answers.hops.resize(questions.size());
    answers.open = questions.size();
  }
  const auto answer = [&](size_t i, absl::StatusOr<v1::TransferHop> hop) {
    const Question& question = questions[i];
    if (!hop.ok()) hop = Unknown(question.node, question.request.replica_id(), hop.status());
    // The node that answers is the one that was asked, whatever name it gives.
    hop->set_node(question.node);
    hop->set_replica_id(question.request.replica_id());
    absl::MutexLock lock(&answers.mutex);
    answers.hops[i] = *std::move(hop);
    --answers.open;
  };
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto peer = peers.find(questions[i].node);
    // Without addresses all questions have one answer: why there are none.
    if (!nodes.ok()) {
      answer(i, nodes.status());
    } else if (peer == peers.end()) {
      answer(i,
             absl::NotFoundError(absl::StrCat("the global store no longer knows node ", questions[i].node)));
    } else {
      const absl::Status scheduled = askers_.Schedule([this, &context, &questions, &answer, peer, i] {
        answer(i, Ask(context, peer->second, questions[i]));
      });
      if (!scheduled.ok()) answer(i, scheduled);
    }
  }
  // What the questions use is on this stack, so this call waits for all of them. Each ends by itself, with
  // the context at the latest.
  absl::MutexLock lock(&answers.mutex);
  const auto all = [&answers]() ABSL_SHARED_LOCKS_REQUIRED(answers.mutex) { return answers.open == 0; };
  answers.mutex.Await(absl::Condition(&all));
  return std::move(answers.hops);
}

// From hop to hop, breadth first: all questions of one distance from here are asked together.
absl::StatusOr<v1::ExplainTransferResponse> TransferExplainer::Explain(const RequestContext& context,
                                                                       const std::string& transfer_id) {
  std::optional<v1::TransferHop> own = options_.status->FindTransfer(transfer_id);
  if (!own.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("explain transfer ", transfer_id,
                     ": this node remembers no such transfer; ask the daemon of the node that received it"));
  }
  // All questions share this time. The caller's own deadline may be shorter.
  const RequestContext bounded = Within(context, kTime);
  v1::ExplainTransferResponse response;
  // This node's own report is the first hop, so nothing is asked about it.
  Asked asked = {{own->node(), own->replica_id()}};
  std::vector<Question> questions = QuestionsOf(*own, asked);
  *response.add_hops() = *std::move(own);
  size_t left = kMaxQuestions;
  size_t unasked = 0;
  for (int distance = 1; !questions.empty() && distance <= kMaxHops; ++distance) {
    if (questions.size() > left) {
      unasked += questions.size() - left;
      questions.resize(left);
    }
    left -= questions.size();
    std::vector<v1::TransferHop> hops = AskAll(bounded, questions);
    std::vector<Question> next;
    for (size_t i = 0; i < hops.size(); ++i) {
      // The sources of a replica that was filling fed this transfer, too. One that was ready gave what it
      // had.
      if (questions[i].filling) {
        for (Question& question : QuestionsOf(hops[i], asked)) next.push_back(std::move(question));
      }
      *response.add_hops() = std::move(hops[i]);
    }
    questions = std::move(next);
  }
  unasked += questions.size();
  if (unasked > 0) {
    response.set_left_out(absl::StrCat(unasked, " more sources were not asked; the limits are ",
                                       kMaxQuestions, " sources and ", kMaxHops, " hops"));
  }
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("explain transfer ", transfer_id)));
  return response;
}

}  // namespace tensorcast::daemon
