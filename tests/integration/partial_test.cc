// Gets of some tensors, and what is left of gets that did not end: each brings only what is not there yet,
// and gives what it has to others.
#include <algorithm>
#include <string>
#include <vector>

#include "daemon/sources/peer_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kChunk = kTestChunkBytes;

class Partial : public ::testing::Test {
 protected:
  void SetUp() override {
    a_ = &cluster_.AddNode("a", OnItsOwnHost);
    b_ = &cluster_.AddNode("b", OnItsOwnHost);
    auto put = a_->client().Import(Soon(), cluster_.WriteModel("model", artifact_), {.durable = true});
    ASSERT_TRUE(put.ok()) << put.status();
    id_ = put->artifact_id;
  }

  absl::StatusOr<std::unique_ptr<client::Replica>> Get(TestNode& node,
                                                       const std::vector<std::string>& tensors = {}) {
    return node.client().Get(Soon(), id_, {.tensors = tensors});
  }
  // The names of the tensors that the replica shows; each has its bytes.
  std::vector<std::string> Shown(const client::Replica& replica) const {
    std::vector<std::string> names;
    for (const client::TensorView& view : replica.tensors()) {
      names.emplace_back(view.name);
      const auto tensor = std::ranges::find(artifact_.layout.tensors, view.name, &Tensor::name);
      EXPECT_TRUE(
          std::ranges::equal(view.host, std::span(artifact_.image).subspan(tensor->offset, tensor->nbytes)))
          << view.name;
    }
    return names;
  }
  static v1::Replica OnlyReplica(TestNode& node) {
    const auto replicas = node.admin().ListReplicas(Soon(), "", /*chunk_bits=*/true);
    EXPECT_TRUE(replicas.ok() && replicas->size() == 1) << replicas.status();
    return replicas.ok() && !replicas->empty() ? replicas->front() : v1::Replica();
  }
  // What the node gave to others; it counts when they have it already.
  static uint64_t Served(TestNode& node) {
    const auto status = node.admin().GetStatus(Soon());
    EXPECT_TRUE(status.ok()) << status.status();
    uint64_t bytes = 0;
    for (const v1::LaneTotal& lane : status->lanes()) bytes += lane.bytes_served();
    return bytes;
  }

  const TestArtifact artifact_ = MakeTestArtifact(1, std::vector<uint64_t>(8, kChunk));  // a chunk each
  TestCluster cluster_;
  TestNode* a_ = nullptr;
  TestNode* b_ = nullptr;
  std::string id_;
};

TEST_F(Partial, GetOfChosenTensors_PullsOnlyTheirChunksAndFullGetTheRest) {
  auto some = Get(*b_, {"tensor.1", "tensor.[56]"});
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(Shown(**some), ElementsAre("tensor.1", "tensor.5", "tensor.6"));
  EXPECT_EQ((*some)->Find("tensor.2").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*some)->transfer()->bytes, 3 * kChunk);
  EXPECT_TRUE(Eventually([&] { return Served(*a_) == 3 * kChunk; })) << Served(*a_);
  const v1::Replica partial = OnlyReplica(*b_);
  EXPECT_EQ(partial.state(), v1::REPLICA_STATE_PARTIAL);
  EXPECT_EQ(partial.chunks_present(), 3);
  EXPECT_EQ(partial.chunks_total(), 8);
  EXPECT_EQ(partial.chunk_bits(), "\x62") << "1, 5 and 6";

  auto same = Get(*b_, {"tensor.5"});
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_FALSE((*same)->transfer().has_value()) << "it is there";
  auto more = Get(*b_, {"tensor.[0-2]"});
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ((*more)->transfer()->bytes, 2 * kChunk);
  EXPECT_THAT(Shown(**more), ElementsAre("tensor.0", "tensor.1", "tensor.2"));
  EXPECT_EQ(OnlyReplica(*b_).chunks_present(), 5);

  auto all = Get(*b_);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ((*all)->transfer()->bytes, 3 * kChunk);
  EXPECT_EQ((*all)->transfer()->bytes_present, 5 * kChunk);
  EXPECT_TRUE(Eventually([&] { return Served(*a_) == 8 * kChunk; })) << "each chunk once: " << Served(*a_);
  EXPECT_EQ(Shown(**all).size(), 8u);
  EXPECT_EQ((*all)->replica_id(), (*some)->replica_id());
  EXPECT_EQ(OnlyReplica(*b_).state(), v1::REPLICA_STATE_READY);
  EXPECT_THAT(Shown(**some), ElementsAre("tensor.1", "tensor.5", "tensor.6")) << "it is attached still";
}

TEST_F(Partial, AttachToPartialReplica_ErrorNamesMissingChunks) {
  auto some = Get(*b_, {"tensor.1"});
  ASSERT_TRUE(some.ok()) << some.status();
  auto peer = daemon::MakePeerClient(
      [](const daemon::PeerAddress& address) { return rpc::MakeChannel(address.address); });
  v1::AttachReplicaRequest request;
  request.set_artifact_id(id_);
  request.add_tensors("tensor.1");
  EXPECT_TRUE(peer->AttachReplica(Soon(), b_->server().addresses().front(), request).ok());
  request.add_tensors("tensor.2");
  const absl::Status missing =
      peer->AttachReplica(Soon(), b_->server().addresses().front(), request).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr("holds only 1 of 8 chunks"));
  request.clear_tensors();
  EXPECT_EQ(peer->AttachReplica(Soon(), b_->server().addresses().front(), request).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(Partial, GetAfterCancelledGet_PullsOnlyTheRest) {
  b_->gate().Hold(/*pass=*/4);
  const auto cancelled = b_->client().StartGet(Soon(), id_, {});
  ASSERT_TRUE(Eventually([&] {
    const auto status = b_->admin().GetStatus(Soon());
    return status.ok() && status->running_transfers_size() == 1 &&
           status->running_transfers(0).bytes() == 4 * kChunk;
  }));
  cancelled->Cancel();  // which opens the gate at the daemon, once that has heard of it
  EXPECT_EQ(cancelled->Wait(Soon().deadline).status().code(), absl::StatusCode::kCancelled);
  // Later than the caller: a request before that would join what is at work.
  ASSERT_TRUE(Eventually([&] { return OnlyReplica(*b_).state() == v1::REPLICA_STATE_PARTIAL; }));
  EXPECT_GE(OnlyReplica(*b_).chunks_present(), 4);
  auto all = Get(*b_);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(Shown(**all).size(), 8u);
  ASSERT_TRUE((*all)->transfer().has_value());
  EXPECT_GE((*all)->transfer()->bytes_present, 4 * kChunk);
  EXPECT_EQ((*all)->transfer()->bytes + (*all)->transfer()->bytes_present, 8 * kChunk);
}

TEST_F(Partial, PartialReplica_ServesItsChunksWhileFirstSourceIsAway) {
  auto some = Get(*b_, {"tensor.[2-4]"});
  ASSERT_TRUE(some.ok()) << some.status();
  TestNode& c = cluster_.AddNode("c", OnItsOwnHost);
  a_->Stop();
  auto same = Get(c, {"tensor.[34]"});
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(Shown(**same), ElementsAre("tensor.3", "tensor.4"));
  EXPECT_TRUE(Eventually([&] { return Served(*b_) == 2 * kChunk; })) << Served(*b_);
  EXPECT_EQ(OnlyReplica(c).state(), v1::REPLICA_STATE_PARTIAL);

  cluster_.StartNode(*a_, OnItsOwnHost);  // with its packed file
  auto all = Get(c);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(Shown(**all).size(), 8u);
  EXPECT_EQ((*all)->transfer()->bytes, 6 * kChunk);
}

TEST_F(Partial, PartialReplica_ServesBesideCompleteReplica) {
  ASSERT_TRUE(Get(*b_, {"tensor.[2-4]"}).ok());
  ASSERT_TRUE(Eventually([&] { return Served(*a_) == 3 * kChunk; })) << Served(*a_);
  TestNode& c = cluster_.AddNode("c", OnItsOwnHost);
  c.gate().Hold();
  const auto same = c.client().StartGet(Soon(), id_, {.tensors = {"tensor.[2-4]"}});
  EXPECT_TRUE(Eventually([&] {
    const auto status = c.admin().GetStatus(Soon());
    return status.ok() && status->running_transfers_size() == 1 &&
           status->running_transfers(0).sources_size() == 2;
  }));
  c.gate().Release();
  const auto replica = same->Wait(Soon().deadline);
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_THAT(Shown(**replica), ElementsAre("tensor.2", "tensor.3", "tensor.4"));
  EXPECT_TRUE(Eventually([&] { return Served(*a_) + Served(*b_) == 6 * kChunk; })) << "each chunk once";
}

TEST_F(Partial, PartialReplica_DoesNotCountAsCopyAndGoesWithArtifact) {
  ASSERT_TRUE(Get(*b_, {"tensor.1"}).ok());
  EXPECT_TRUE(Eventually([&] { return a_->admin().GetClusterStatus(Soon())->replicas() == 3; }));
  const std::string replica = OnlyReplica(*b_).replica_id();
  EXPECT_TRUE(b_->admin().EvictReplica(Soon(), replica, /*force=*/false).ok()) << "without consent";
  ASSERT_TRUE(Get(*b_, {"tensor.1"}).ok());
  ASSERT_TRUE(a_->admin().DeleteArtifact(Soon(), id_).ok());
  EXPECT_TRUE(Eventually([&] { return b_->admin().ListReplicas(Soon(), "")->empty(); }));
}

}  // namespace
}  // namespace tensorcast::testing
