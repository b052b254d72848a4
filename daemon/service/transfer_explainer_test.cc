#include "daemon/service/transfer_explainer.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/service/service_fixture.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::daemon::transfer_explainer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SourceReport From(const std::string& node, bool filling, uint64_t bytes = 1) {
  SourceReport source{
      .source = {.type = SourceType::kRemote, .lane = "tcp", .name = node, .grant_id = "grant-of-" + node}};
  source.source.replica_id = "replica-of-" + node;
  source.filling = filling;
  source.bytes = bytes;
  return source;
}

class TransferExplainerTest : public ServiceTest {
 protected:
  // A transfer to this node from these.
  void Received(std::vector<SourceReport> sources) {
    for (const SourceReport& source : sources) Knows(source.source.name);
    transfers.Add({.transfer_id = "t", .replica_id = "own", .sources = std::move(sources)});
  }
  void Knows(const std::string& name) {
    store.With([&](FakeGlobalStore& fake) {
      v1::Node& known = fake.nodes[name];
      known.set_name(name);
      known.set_grpc_address("at-" + name);
    });
  }
  // The answer of a node with a transfer that read from these.
  static v1::TransferHop Answer(const v1::DescribeHopRequest& request,
                                const std::vector<SourceReport>& sources) {
    v1::TransferHop hop;
    *hop.mutable_transfer() = rpc::ToProto(
        TransferReport{.transfer_id = "another", .replica_id = request.replica_id(), .sources = sources});
    for (const std::string& grant : request.grant_ids()) hop.add_servings()->set_grant_id(grant);
    return hop;
  }
  static std::vector<std::string> NodesOf(const v1::ExplainTransferResponse& response) {
    std::vector<std::string> nodes;
    for (const v1::TransferHop& hop : response.hops()) nodes.push_back(hop.node());
    return nodes;
  }

  absl::StatusOr<v1::ExplainTransferResponse> Explain(const std::string& transfer_id) {
    TransferExplainer explainer({.status = status.get(), .global_store = &store, .peers = &peers});
    return explainer.Explain(context, transfer_id);
  }
};

TEST_F(TransferExplainerTest, Explain_AsksSourcesOfSourcesThatWereFilling) {
  Received({From("b", true, 5), From("a", false, 9)});
  Knows("c");
  peers.describe = [](const PeerAddress& peer, const v1::DescribeHopRequest& request) {
    EXPECT_EQ(peer.address, "at-" + peer.node);
    EXPECT_EQ(request.replica_id(), "replica-of-" + peer.node);
    EXPECT_THAT(request.grant_ids(), ElementsAre("grant-of-" + peer.node));
    // What made the ready one was over before, so its sources are not asked for.
    return Answer(request, {From(peer.node == "b" ? "c" : "never-asked", false)});
  };
  const auto response = Explain("t");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(NodesOf(*response), ElementsAre("node-0", "a", "b", "c"));
  EXPECT_EQ(response->hops(0).transfer().transfer_id(), "t");
  EXPECT_EQ(response->hops(2).transfer().sources(0).source(), "c");
  EXPECT_THAT(response->hops(2).servings(), SizeIs(1));
  EXPECT_THAT(response->left_out(), IsEmpty());
}

TEST_F(TransferExplainerTest, Explain_AsksHopsOfOneDistanceConcurrently) {
  std::vector<SourceReport> sources;
  for (int i = 0; i < 6; ++i) sources.push_back(From(absl::StrCat("n", i), false));
  Received(sources);
  absl::Mutex mutex;
  int asked = 0;
  peers.describe = [&](const PeerAddress&, const v1::DescribeHopRequest& request) {
    absl::MutexLock lock(&mutex);
    ++asked;
    const auto all = [&asked] { return asked == 6; };
    // Answered one after the other, the first would wait in vain.
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(20)));
    return Answer(request, {});
  };
  const auto response = Explain("t");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(response->hops(), SizeIs(7));
}

TEST_F(TransferExplainerTest, Explain_LimitsHopsAndQuestions) {
  int named = 0;
  peers.describe = [&](const PeerAddress&, const v1::DescribeHopRequest& request) {
    const std::string next = absl::StrCat("made-up-", ++named);
    Knows(next);
    return Answer(request, {From(next, true)});
  };
  Received({From("liar", true)});
  auto response = Explain("t");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(response->hops(), SizeIs(1 + TransferExplainer::kMaxHops));
  EXPECT_THAT(response->left_out(), HasSubstr("1 more sources were not asked"));

  std::vector<SourceReport> crowd;
  for (int i = 0; i < 40; ++i) crowd.push_back(From(absl::StrCat("n", i), false));
  peers.describe = [](const PeerAddress&, const v1::DescribeHopRequest& request) {
    return Answer(request, {});
  };
  for (const SourceReport& source : crowd) Knows(source.source.name);
  transfers.Add({.transfer_id = "of many", .replica_id = "own", .sources = crowd});
  response = Explain("of many");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(response->hops(), SizeIs(1 + TransferExplainer::kMaxQuestions));
  EXPECT_THAT(response->left_out(), HasSubstr("8 more sources were not asked"));
}

TEST_F(TransferExplainerTest, SourcesThatFedEachOther_AreAskedOnce) {
  Received({From("a", true), From("b", true)});
  peers.describe = [](const PeerAddress& peer, const v1::DescribeHopRequest& request) {
    return Answer(request, {From(peer.node == "a" ? "b" : "a", true)});
  };
  const auto response = Explain("t");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(NodesOf(*response), ElementsAre("node-0", "a", "b"));
}

TEST_F(TransferExplainerTest, Explain_ReportsWhyAHopIsMissing) {
  Received({From("silent", true), From("wordy", false), From("gone", false), From("other", true)});
  store.With([](FakeGlobalStore& fake) { fake.nodes.erase("gone"); });
  peers.describe = [](const PeerAddress& peer,
                      const v1::DescribeHopRequest& request) -> absl::StatusOr<v1::TransferHop> {
    if (peer.node == "silent") return absl::UnavailableError("no answer");
    v1::TransferHop hop = Answer(request, {From("x", true)});
    hop.set_node("another node");
    if (peer.node == "wordy") hop.mutable_transfer()->set_artifact_id(std::string(1 << 20, 'x'));
    if (peer.node == "other") hop.mutable_transfer()->set_replica_id("of another replica");
    return hop;
  };
  auto response = Explain("t");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_THAT(NodesOf(*response), ElementsAre("node-0", "silent", "wordy", "gone", "other"));
  EXPECT_EQ(response->hops(1).problem(), "no answer");
  EXPECT_THAT(response->hops(2).problem(), HasSubstr("the node's answer has 10"));
  EXPECT_THAT(response->hops(3).problem(), HasSubstr("no longer knows node gone"));
  EXPECT_FALSE(response->hops(4).has_transfer()) << "it was asked about another one";

  store.With([](FakeGlobalStore& fake) { fake.down = absl::UnavailableError("the store is away"); });
  response = Explain("t");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->hops(1).problem(), "the store is away");
}

TEST_F(TransferExplainerTest, ExplainUnknownTransfer_IsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(Explain("t").status()));
}

}  // namespace
}  // namespace tensorcast::daemon::transfer_explainer_test
