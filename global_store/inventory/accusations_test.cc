// Which nodes may accuse a replica of corruption, and what an accusation costs.
#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::accusations_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Accusations : public DirectoryTest {
 protected:
  void SetUp() override {
    for (const char* node : {"holder", "other-holder", "reader", "accuser", "second"}) Register(node);
    Publish("x");
    Publish("y");
    Update("holder", {SomeReplica("r", "x")});
    Update("other-holder", {SomeReplica("s", "y")});
  }

  // By the receiver of a grant on that replica.
  void Accuse(const std::string& accuser, const std::string& artifact_id) {
    const GrantOffer offer = Request(accuser, artifact_id);
    ASSERT_FALSE(offer.granted.empty()) << accuser << " gets no grant of " << artifact_id;
    ASSERT_TRUE(directory_.transfers()
                    .CompleteGrant(Id(accuser), offer.granted.front().grant.grant_id, GrantEnd::kFailed,
                                   /*source_corrupt=*/true, now_)
                    .ok());
    directory_.transfers().grants().TakeEnded();
  }
  void Refute(const std::string& holder, const std::string& replica_id) {
    directory_.accusations().NoteIntact({holder, replica_id});
  }
  // Replicas with nodes that are to be asked: "node/replica".
  std::vector<std::string> TakeAccused() {
    std::vector<std::string> names;
    for (const CopyToProve& accused : directory_.accusations().Take()) {
      names.push_back(absl::StrCat(accused.replica.node_id, "/", accused.replica.replica_id));
    }
    return names;
  }
};

TEST_F(Accusations, AccusationWithoutGrant_IsIgnored) {
  Request("accuser", "x", {}, {"r", "holder/r"});  // it gets a grant only now
  EXPECT_EQ(Offered("reader", "x"), "r");
  EXPECT_THAT(TakeAccused(), IsEmpty());
}

TEST_F(Accusations, Accusation_EndsWhenHolderDigestsAgain) {
  Accuse("accuser", "x");
  EXPECT_EQ(Offered("reader", "x"), "");
  EXPECT_THAT(TakeAccused(), ElementsAre("holder/r"));
  EXPECT_THAT(TakeAccused(), IsEmpty());
  const GrantOffer waits = Request("reader", "x");
  EXPECT_THAT(waits.waiting_for, Contains("a replica that node name-holder digests again"));
  EXPECT_GT(waits.retry_after, absl::ZeroDuration());
  EXPECT_TRUE(Request("accuser", "x", {"holder/r"}).waiting_for.empty())
      << "the node that accused it waits for another";
  Refute("other-holder", "r");
  EXPECT_EQ(Offered("reader", "x"), "") << "only its holder answers";
  Refute("holder", "r");
  EXPECT_EQ(Offered("reader", "x"), "r");
  Accuse("accuser", "x");
  EXPECT_THAT(TakeAccused(), IsEmpty()) << "it has been digested for this accuser";
  EXPECT_EQ(Offered("reader", "x"), "r");
}

TEST_F(Accusations, AccusationWithHeldGrant_WithdrawsReplica) {
  const GrantOffer offer = Request("accuser", "x");
  ASSERT_FALSE(offer.granted.empty());
  Request("accuser", "x", {"holder/r"}, {"holder/r"});
  EXPECT_EQ(Offered("reader", "x"), "");
}

TEST_F(Accusations, AccuserRefutedByTwoHolders_LosesWeight) {
  Accuse("accuser", "x");
  Refute("holder", "r");
  Accuse("accuser", "y");
  EXPECT_EQ(Offered("reader", "y"), "") << "one refutation may be the holder's lie";
  Refute("other-holder", "s");
  Update("holder", {SomeReplica("anew", "y")});
  Update("other-holder", {SomeReplica("s", "y", LocationKind::kCpu, ReplicaState::kGone)});
  TakeAccused();
  Accuse("accuser", "y");
  EXPECT_EQ(Offered("reader", "y"), "anew");
  EXPECT_THAT(TakeAccused(), ElementsAre("holder/anew")) << "the holder looks all the same";
}

TEST_F(Accusations, TwoAccusers_OutweighRefutationByHolder) {
  Accuse("accuser", "x");
  Refute("holder", "r");
  Accuse("second", "x");
  EXPECT_EQ(Offered("reader", "x"), "");
  Refute("holder", "r");
  EXPECT_EQ(Offered("reader", "x"), "");
}

TEST_F(Accusations, TwoAccusers_DoNotOutweighHolderWithTwoReaders) {
  Register("second-reader");
  for (const char* reader : {"reader", "second-reader"}) {
    const GrantOffer offer = Request(reader, "x");
    ASSERT_EQ(offer.granted.size(), 1u);
    ASSERT_TRUE(directory_.transfers()
                    .CompleteGrant(Id(reader), offer.granted.front().grant.grant_id, GrantEnd::kSucceeded,
                                   /*source_corrupt=*/false, now_)
                    .ok());
  }
  Accuse("accuser", "x");
  Refute("holder", "r");
  Accuse("second", "x");
  EXPECT_EQ(Offered("reader", "x"), "") << "until the holder has digested it again";
  Refute("holder", "r");
  EXPECT_EQ(Offered("reader", "x"), "r");
}

TEST_F(Accusations, AccusedLastCopy_IsNotEvicted) {
  Accuse("accuser", "x");
  EXPECT_FALSE(Evict("holder", "r").granted);
}

TEST_F(Accusations, EqualReplicaIdsOfTwoNodes_AreTwoReplicas) {
  // Whichever came first: nodes choose their replicas' ids.
  Update("accuser", {SomeReplica("r", "x")});
  Update("second", {SomeReplica("t", "x")});
  EXPECT_EQ(DescribeArtifact(directory_, "x")->replicas.size(), 3u);
  const GrantOffer offer = Request("reader", "x", {"accuser/r", "second/t"});
  ASSERT_EQ(offer.granted.size(), 1u);
  EXPECT_EQ(offer.granted.front().grant.source_node, "holder");
  Update("accuser", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone)});
  EXPECT_NE(directory_.transfers().grants().Find(offer.granted.front().grant.grant_id), nullptr);
  EXPECT_EQ(directory_.counts().replicas, 3u);
}

}  // namespace
}  // namespace tensorcast::global_store::accusations_test
