// Where the time of a real transfer went, as a user asks for it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Explained : public E2eTest {
 protected:
  void SetUp() override {
    E2eTest::SetUp();
    if (HasFatalFailure()) return;
    StartCluster();
    if (HasFatalFailure()) return;
    const std::string model = MakeModel("model.safetensors", 40 << 20);
    TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
    TC_ASSERT_OK_AND_ASSIGN(replica_, client(1).Get(Context(), "m", {.location = "gpu:0", .lane = "tcp"}));
  }
  CommandResult OnNode(int node, std::vector<std::string> arguments) {
    arguments.push_back("--daemon");
    arguments.push_back(cluster_->addresses(node).unix_socket);
    return RunCommand(std::move(arguments));
  }

  std::unique_ptr<client::Replica> replica_;
};

TEST_F(Explained, TheLastTransferNamesItsLaneItsSourceAndWhatBoundsIt) {
  const CommandResult result = OnNode(1, {"explain", "last"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("tcp"), HasSubstr("node-0"), HasSubstr("gpu:0"),
                                   HasSubstr("verify"), HasSubstr("place"), HasSubstr("Bounded by ")));

  const CommandResult json_result = OnNode(1, {"explain", "last", "--json"});
  const nlohmann::json json = nlohmann::json::parse(json_result.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << json_result.output;
  EXPECT_EQ(json["transfer"]["transfer_id"], replica_->transfer()->transfer_id);
  EXPECT_THAT(json["analysis"]["bound"]["part"].get<std::string>(),
              AnyOf("queue", "start", "fetch", "verify", "place", "gaps", "finish"));
  EXPECT_EQ(json["analysis"]["stages"][0]["lane"], "tcp");

  // The source was asked, too, and both tell of the same bytes.
  EXPECT_THAT(result.output, HasSubstr("source node-0 (tcp): served "));
  ASSERT_EQ(json["analysis"]["sources"].size(), 1u);
  EXPECT_EQ(json["analysis"]["sources"][0]["known"], true);
  EXPECT_EQ(std::to_string(json["analysis"]["sources"][0]["bytes"].get<uint64_t>()),
            json["transfer"]["bytes"].get<std::string>());
}

TEST_F(Explained, ASourceThatCannotBeAskedIsSaidToBeUnknown) {
  (void)cluster_->daemon(0).Stop(absl::ZeroDuration());
  const CommandResult result = OnNode(1, {"explain", "last"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("source node-0 (tcp): not known: "), HasSubstr("Bounded by ")));
}

TEST_F(Explained, ATransferIsFoundByTheBeginningOfItsIdOrOfItsReplicas) {
  const std::string& id = replica_->transfer()->transfer_id;
  for (const std::string& wanted : {id.substr(0, 8), replica_->replica_id()}) {
    const CommandResult result = OnNode(1, {"explain", wanted});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr(id));
  }
  const CommandResult unknown = OnNode(1, {"explain", "no-such-transfer"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.output, HasSubstr(id));
}

TEST_F(Explained, TopShowsEveryNodeAndTheLastTransfers) {
  const CommandResult result = OnNode(0, {"top", "--once"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::string& id = replica_->transfer()->transfer_id;
  EXPECT_THAT(result.output, AllOf(HasSubstr("node-0"), HasSubstr("node-1"), HasSubstr("gpu:1"),
                                   HasSubstr("tcp so far: "), HasSubstr(id.substr(0, 8))));
  EXPECT_THAT(result.output, testing::Not(HasSubstr("no details")));
}

TEST_F(Explained, TopDoesWithoutANodeThatDoesNotAnswer) {
  replica_.reset();
  (void)cluster_->daemon(1).Stop(absl::ZeroDuration());
  const CommandResult result = OnNode(0, {"top", "--once"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("node-0"));
  // The global store has forgotten it, or it is shown as one that says nothing.
  EXPECT_THAT(result.output, AnyOf(testing::Not(HasSubstr("node-1")), HasSubstr("no details")));
}

}  // namespace
}  // namespace tensorcast
