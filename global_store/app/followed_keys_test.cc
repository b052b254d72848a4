// Followers of keys and version groups, over a real socket: made, served, kept over a restart.
#include <gmock/gmock.h>

#include <future>

#include "global_store/app/global_store_fixture.h"
#include "proto/versions.grpc.pb.h"

namespace tensorcast::global_store::followed_keys_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using VersionsStub = v1::Versions::Stub;

class FollowedKeys : public GlobalStoreServerTest {
 protected:
  template <class Request, class Response>
  absl::StatusOr<Response> Ask(grpc::Status (VersionsStub::*method)(grpc::ClientContext*, const Request&,
                                                                    Response*),
                               const std::type_identity_t<Request>& request,
                               const RequestContext& context = Context()) {
    const auto stub = v1::Versions::NewStub(rpc::MakeChannel(options_.listen));
    return rpc::CallUnary(*stub, method, context, request, {.retry_for = absl::ZeroDuration()});
  }
  v1::FollowKeyResponse Follow(const std::string& key, const std::vector<std::string>& nodes) {
    v1::FollowKeyRequest request;
    request.set_key(key);
    for (const std::string& node : nodes) request.add_targets()->set_node_id(node);
    const auto response = Ask(&VersionsStub::FollowKey, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::FollowKeyResponse());
  }
  std::vector<v1::Follower> List(const std::string& key = "") {
    v1::ListFollowersRequest request;
    request.set_key(key);
    const auto response = Ask(&VersionsStub::ListFollowers, request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return {};
    return {response->followers().begin(), response->followers().end()};
  }
  // Publishes a version under the key; its artifact id.
  std::string PublishVersion(const std::string& seed) {
    const auto manifest = SomeManifest(seed);
    const auto published = Publish(*manifest, "source", "r" + seed, "k");
    EXPECT_TRUE(published.ok()) << published.status();
    return manifest->id();
  }
  // The artifacts of the tasks that a heartbeat hands out.
  std::vector<std::string> Handed(const std::string& node) {
    const auto response = Beat(node);
    EXPECT_TRUE(response.ok()) << response.status();
    std::vector<std::string> artifacts;
    if (!response.ok()) return artifacts;
    for (const v1::ReplicationTask& task : response->tasks()) artifacts.push_back(task.artifact_id());
    return artifacts;
  }
};

TEST_F(FollowedKeys, Followers_GetEachNewestVersionAndOutliveRestart) {
  Register("source");
  Register("a");
  const v1::FollowKeyResponse followed = Follow("k", {"a", "absent"});
  ASSERT_EQ(followed.results_size(), 2);
  EXPECT_EQ(followed.results(0).follower().node_name(), "a");
  EXPECT_THAT(followed.results(1).error().message(), HasSubstr("absent"));
  const std::string first = PublishVersion("1");
  EXPECT_THAT(Handed("a"), ElementsAre(first));
  const std::string second = PublishVersion("2");
  EXPECT_THAT(Handed("a"), ElementsAre(second));
  Restart();
  Register("source");
  Register("a");
  EXPECT_THAT(Handed("a"), ElementsAre(second)) << "the store knows what it was to bring";
  ASSERT_THAT(List("k"), SizeIs(1));
  EXPECT_EQ(List()[0].newest_revision(), 2u);
  EXPECT_EQ(List()[0].task().state(), v1::REPLICATION_TASK_STATE_RUNNING);
  EXPECT_THAT(List("other"), IsEmpty());

  v1::UnfollowKeyRequest unfollow;
  unfollow.set_key("k");
  const auto removed = Ask(&VersionsStub::UnfollowKey, unfollow);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->followers_size(), 1);
  EXPECT_THAT(Handed("a"), IsEmpty());
  Restart();
  EXPECT_THAT(List(), IsEmpty());
}

TEST_F(FollowedKeys, ReportedReplica_EndsTaskWithoutHeartbeat) {
  Register("source");
  Register("a");
  Follow("k", {"a"});
  const std::string version = PublishVersion("1");
  ASSERT_THAT(Handed("a"), ElementsAre(version));
  v1::UpdateReplicasRequest update;
  *update.mutable_node() = Identity("a");
  update.set_sequence(1);
  *update.add_replicas() = SomeReplica("a1", version);
  ASSERT_TRUE(Call(&Stub::UpdateReplicas, update).ok());
  ASSERT_THAT(List("k"), SizeIs(1));
  EXPECT_EQ(List()[0].task().state(), v1::REPLICATION_TASK_STATE_DONE);
  EXPECT_EQ(List()[0].revision(), 1u);
  EXPECT_THAT(Handed("a"), IsEmpty());
}

TEST_F(FollowedKeys, ForgottenNode_LosesItsFollowers) {
  Register("source");
  Register("a");
  Follow("k", {"a", "source"});
  v1::ForgetNodeRequest forget;
  forget.set_node_id("a");
  EXPECT_FALSE(Call(&Stub::ForgetNode, forget).ok()) << "it is alive";
  Restart();
  const auto forgotten = Call(&Stub::ForgetNode, forget);
  EXPECT_TRUE(forgotten.ok()) << forgotten.status();
  ASSERT_THAT(List(), SizeIs(1));
  EXPECT_EQ(List()[0].node_id(), "source");
}

class AgreedVersions : public FollowedKeys {
 protected:
  void SetUp() override {
    FollowedKeys::SetUp();
    Register("source");
  }
  v1::AgreeOnVersionRequest From(const std::string& member, const std::string& artifact_id = "",
                                 uint64_t revision = 0, uint64_t known = 0) const {
    v1::AgreeOnVersionRequest request;
    request.set_key("k");
    request.set_group("g");
    request.set_size(2);
    request.set_member(member);
    request.set_instance("process of " + member);
    if (revision != 0) {
      request.mutable_prepared()->set_revision(revision);
      request.mutable_prepared()->set_artifact_id(artifact_id);
    }
    request.set_known_revision(known);
    return request;
  }
  v1::AgreeOnVersionResponse Agree(const v1::AgreeOnVersionRequest& request) {
    const auto response = Ask(&VersionsStub::AgreeOnVersion, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::AgreeOnVersionResponse());
  }
};

TEST_F(AgreedVersions, AgreeOnVersion_WaitsForAllMembers) {
  const std::string first = PublishVersion("1");
  EXPECT_EQ(Agree(From("a")).prepare().artifact_id(), first);
  auto waiting = std::async(std::launch::async, [&] { return Agree(From("a", first, 1)); });
  EXPECT_EQ(Agree(From("b")).prepare().artifact_id(), first);
  EXPECT_EQ(Agree(From("b", first, 1)).announced().artifact_id(), first);
  // Either the call that waited, or the next one where it was not there yet when b came.
  EXPECT_EQ(waiting.get().announced().revision(), 1u);
  auto next = std::async(std::launch::async, [&] { return Agree(From("a", first, 1, 1)); });
  const std::string second = PublishVersion("2");
  EXPECT_EQ(next.get().prepare().artifact_id(), second) << "a new version ends the wait";
}

TEST_F(AgreedVersions, RestartBetweenPreparingAndAnnouncing_LosesNothing) {
  const std::string first = PublishVersion("1");
  auto waiting = std::async(std::launch::async,
                            [&] { return Ask(&VersionsStub::AgreeOnVersion, From("a", first, 1)).status(); });
  EXPECT_EQ(Agree(From("b")).prepare().revision(), 1u);
  server_.reset();
  EXPECT_FALSE(waiting.get().ok()) << "nothing was announced";
  Start();
  Register("source");
  auto again = std::async(std::launch::async, [&] { return Agree(From("a", first, 1)); });
  EXPECT_EQ(Agree(From("b", first, 1)).announced().revision(), 1u);
  EXPECT_EQ(again.get().announced().revision(), 1u);
  const std::string second = PublishVersion("2");
  Restart();
  EXPECT_EQ(Agree(From("a", first, 1)).announced().revision(), 1u) << "announced before, though not heard";
}

TEST_F(AgreedVersions, PollWithoutNews_SaysWhatTheGroupWaitsFor) {
  PublishVersion("1");
  const std::string first = Resolve("k")->artifact_id();
  auto waiting = std::async(std::launch::async, [&] { return Agree(From("a", first, 1)); });
  while (waiting.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
    Pass(absl::Milliseconds(50));
  }
  EXPECT_THAT(waiting.get().waits_for(), ElementsAre("1 member that has not joined yet"));
}

TEST_F(AgreedVersions, GroupWithoutSize_IsRefused) {
  v1::AgreeOnVersionRequest request = From("a");
  request.set_size(0);
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(&VersionsStub::AgreeOnVersion, request).status()));
  request = From("a");
  request.set_group("a/b");
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(&VersionsStub::AgreeOnVersion, request).status()));
}

}  // namespace
}  // namespace tensorcast::global_store::followed_keys_test
