// Versions of a model on two nodes: the second one gets each as a difference from what it holds, beside that
// or over it.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/eventually.h"
#include "core/difference/difference_artifact.h"
#include "core/ingest/advance.h"
#include "core/replica/transfer_report.h"
#include "core/testing/scripted_source.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "daemon/global_store_link/global_store_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKey[] = "policy";
constexpr uint32_t kChunks = 8;

class Differences : public ::testing::Test {
 protected:
  void SetUp() override {
    a_ = &cluster_.AddNode("a", OnItsOwnHost);
    b_ = &cluster_.AddNode("b", OnItsOwnHost);
  }

  // The next version: 1 % of its bytes differ, in every chunk.
  const TestArtifact& Step() {
    ++version_;
    for (uint64_t i = version_; i < artifact_.image.size(); i += 100) artifact_.image[i] ^= std::byte{5};
    return artifact_;
  }
  client::PutResult Put(const std::string& base) {
    const std::string path = cluster_.WriteModel(absl::StrCat("v", version_), artifact_);
    auto put = a_->client().Import(Soon(), path, {.key = kKey, .base = base});
    EXPECT_TRUE(put.ok()) << put.status();
    return put.ok() ? *std::move(put) : client::PutResult();
  }
  // What the newest version is on b: compared, and let go.
  TransferReport GetOnB() { return GetOn(*b_); }
  TransferReport GetOn(TestNode& node) {
    const auto replica = node.client().Get(Soon(), kKey);
    EXPECT_TRUE(replica.ok()) << replica.status();
    if (!replica.ok()) return {};
    for (const Tensor& tensor : artifact_.layout.tensors) {
      const auto view = (*replica)->Find(tensor.name);
      EXPECT_TRUE(view.ok()) << view.status();
      if (!view.ok()) continue;
      EXPECT_TRUE(
          std::ranges::equal(view->host, std::span(artifact_.image).subspan(tensor.offset, tensor.nbytes)))
          << tensor.name;
    }
    return (*replica)->transfer().value_or(TransferReport());
  }
  static uint64_t BytesOf(const TransferReport& report, std::string_view lane) {
    uint64_t bytes = 0;
    for (const SourceReport& source : report.sources) bytes += source.source.lane == lane ? source.bytes : 0;
    return bytes;
  }
  static uint64_t Received(TestNode& node) {
    const auto status = node.admin().GetStatus(Soon());
    EXPECT_TRUE(status.ok()) << status.status();
    uint64_t bytes = 0;
    for (const v1::LaneTotal& lane : status->lanes()) bytes += lane.bytes_received();
    return bytes;
  }
  static void Evict(TestNode& node, const std::string& artifact_id) {
    const absl::Status evicted = node.admin().EvictReplica(Soon(), artifact_id, /*force=*/true);
    EXPECT_TRUE(evicted.ok()) << evicted;
  }

  // The image of a difference that a has.
  TestArtifact DifferenceOnA(const std::string& artifact_id) {
    TestArtifact difference;
    const auto lease = a_->server().engine().LeaseArtifact(artifact_id, {LocationKind::kCpu});
    EXPECT_TRUE(lease.ok()) << lease.status();
    if (!lease.ok()) return difference;
    difference.layout = (*lease)->manifest()->layout();
    for (const ConstHostSpan span : (*lease)->HostSpans(0, difference.layout.image_bytes)) {
      difference.image.insert(difference.image.end(), span.begin(), span.end());
    }
    return difference;
  }
  // As a node that lies does: these bytes as the difference between two versions, published alone from a. Its
  // own manifest is right. Its id.
  std::string Lie(const TestArtifact& difference, const DifferenceEnds& ends) {
    auto pending = a_->server().engine().Ingest(
        Soon(), {.location = {LocationKind::kCpu},
                 .sources = std::make_shared<ScriptedProvider>(std::vector{MakeControl(difference.image)}),
                 .new_layout = difference.layout,
                 .new_metadata = DifferenceMetadata(ends),
                 .new_kind = ArtifactKind::kDifference});
    EXPECT_TRUE(pending.ok()) << pending.status();
    const auto lease = (*pending)->Wait(Soon());
    EXPECT_TRUE(lease.ok()) << lease.status();
    const Manifest& manifest = *(*lease)->manifest();
    const auto status = a_->admin().GetStatus(Soon());
    EXPECT_TRUE(status.ok()) << status.status();
    v1::PublishArtifactRequest first;
    first.mutable_node()->set_node_id(status->node().node_id());
    first.mutable_node()->set_incarnation(status->node().incarnation());
    v1::Replica& replica = *first.mutable_replica();
    replica.set_replica_id((*lease)->replica_id());
    replica.set_artifact_id(manifest.id());
    replica.set_node_id(status->node().node_id());
    replica.mutable_location()->set_kind(v1::LOCATION_KIND_CPU);
    replica.set_state(v1::REPLICA_STATE_READY);
    const auto store = daemon::MakeGlobalStoreClient(
        std::make_shared<daemon::GlobalStoreChannel>(cluster_.global_store().address()));
    const auto published = store->PublishArtifact(Soon(), manifest, first, /*asking=*/"");
    EXPECT_TRUE(published.ok()) << published.status();
    return manifest.id();
  }
  void Delete(const std::string& artifact_id) {
    const absl::Status deleted = a_->admin().DeleteArtifact(Soon(), artifact_id);
    EXPECT_TRUE(deleted.ok()) << deleted;
  }
  bool IsKnown(const std::string& artifact_id) {
    return a_->admin().DescribeArtifact(Soon(), artifact_id).ok();
  }

  TestArtifact artifact_ = MakeTestArtifact(1, std::vector<uint64_t>(kChunks, kTestChunkBytes));
  const uint64_t image_bytes_ = artifact_.layout.image_bytes;
  uint64_t version_ = 0;
  TestCluster cluster_;
  TestNode* a_ = nullptr;
  TestNode* b_ = nullptr;
};

TEST_F(Differences, NextVersion_IsRebuiltFromTheOneThatIsThere) {
  Put("none");
  EXPECT_EQ(BytesOf(GetOnB(), kDifferenceLane), 0u) << "b has no version yet";
  const uint64_t before = Received(*b_);
  Step();
  const client::PutResult put = Put("auto");
  ASSERT_TRUE(put.difference.has_value()) << put.no_difference;
  const TransferReport report = GetOnB();
  EXPECT_EQ(BytesOf(report, kDifferenceLane), image_bytes_);
  EXPECT_LT((Received(*b_) - before) * 10, image_bytes_);
  EXPECT_GT(Received(*b_), before) << "the difference came from somewhere";
}

TEST_F(Differences, NextVersionOnAGpu_IsRebuiltFromTheOneThere) {
  Put("none");
  const auto get_on_gpu = [this](const std::string& location) {
    auto replica = b_->client().Get(Soon(), kKey, {.location = location, .attach = false});
    EXPECT_TRUE(replica.ok()) << replica.status();
    return replica.ok() ? (*replica)->transfer().value_or(TransferReport()) : TransferReport();
  };
  EXPECT_EQ(BytesOf(get_on_gpu("gpu:0"), kDifferenceLane), 0u) << "b has no version yet";
  const uint64_t before = Received(*b_);
  Step();
  const client::PutResult put = Put("auto");
  ASSERT_TRUE(put.difference.has_value()) << put.no_difference;
  const TransferReport report = get_on_gpu("gpu:0");
  EXPECT_EQ(BytesOf(report, kDifferenceLane), image_bytes_);
  EXPECT_EQ(report.verified_chunks, kChunks);
  EXPECT_LT((Received(*b_) - before) * 10, image_bytes_);
  GetOnB();  // the bytes are the right ones: from the GPU to host memory
}

TEST_F(Differences, SeveralVersionsBehind_AreFolded) {
  Put("none");
  GetOnB();
  const uint64_t before = Received(*b_);
  for (int i = 0; i < 3; ++i) {
    Step();
    const client::PutResult put = Put("auto");
    ASSERT_TRUE(put.difference.has_value()) << put.no_difference;
  }
  const TransferReport report = GetOnB();
  EXPECT_EQ(BytesOf(report, kDifferenceLane), image_bytes_);
  EXPECT_LT((Received(*b_) - before) * 5, image_bytes_);
}

TEST_F(Differences, EvictedBase_VersionComesWhole) {
  const client::PutResult base = Put("none");
  GetOnB();
  Evict(*b_, base.artifact_id);
  Step();
  Put("auto");
  const TransferReport report = GetOnB();
  EXPECT_EQ(BytesOf(report, kDifferenceLane), 0u);
  EXPECT_EQ(report.bytes, image_bytes_);
}

TEST_F(Differences, RepeatedGet_IsRebuiltAgain) {
  Put("none");
  GetOnB();
  Step();
  const client::PutResult put = Put("auto");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(BytesOf(GetOnB(), kDifferenceLane), image_bytes_);
    Evict(*b_, put.artifact_id);
  }
}

TEST_F(Differences, WrongDifference_IsDeletedOnceTwoNodesMetIt) {
  TestNode& c = cluster_.AddNode("c", OnItsOwnHost);
  const client::PutResult base = Put("none");
  GetOnB();
  GetOn(c);
  Step();
  const client::PutResult next = Put("auto");
  ASSERT_TRUE(next.difference.has_value()) << next.no_difference;
  const TestArtifact right = DifferenceOnA(next.difference->artifact_id);
  Step();
  const client::PutResult last = Put("none");
  const std::string wrong = Lie(right, {.base = base.artifact_id, .target = last.artifact_id});
  for (int i = 0; i < 2; ++i) {
    EXPECT_LT(BytesOf(GetOnB(), kDifferenceLane), image_bytes_);
    EXPECT_TRUE(IsKnown(wrong)) << "one node alone may lie";
    Evict(*b_, last.artifact_id);
  }
  EXPECT_LT(BytesOf(GetOn(c), kDifferenceLane), image_bytes_);
  EXPECT_TRUE(Eventually([&] { return !IsKnown(wrong); }));
  EXPECT_TRUE(IsKnown(next.difference->artifact_id)) << "right ones stay";
}

// A node that lies publishes differences with one byte changed, each with a manifest that matches it: in the
// index and in the records, their lengths among them.
TEST_F(Differences, DamagedDifferencesOfALyingNode_NeverMakeWrongBytes) {
  const client::PutResult base = Put("none");
  GetOnB();
  Step();
  const client::PutResult next = Put("auto");
  ASSERT_TRUE(next.difference.has_value()) << next.no_difference;
  const TestArtifact right = DifferenceOnA(next.difference->artifact_id);
  Delete(next.difference->artifact_id);
  std::vector<uint64_t> offsets;
  const Tensor& index = right.layout.tensors[0];
  const Tensor& records = right.layout.tensors[1];
  for (uint64_t at = 0; at < index.nbytes; at += 4) offsets.push_back(index.offset + at);
  for (uint64_t at = 0; at < 24; at += 2) offsets.push_back(records.offset + at);
  for (uint64_t at = 24; at < records.nbytes; at += records.nbytes / 8) {
    offsets.push_back(records.offset + at);
  }
  int not_used = 0;
  for (const uint64_t offset : offsets) {
    TestArtifact wrong = right;
    wrong.image[offset] ^= std::byte{0x11};
    const std::string lie = Lie(wrong, {.base = base.artifact_id, .target = next.artifact_id});
    const TransferReport report = GetOnB();
    if (BytesOf(report, kDifferenceLane) < image_bytes_) ++not_used;
    EXPECT_EQ(report.verified_chunks, kChunks) << "damaged at " << offset;
    Delete(lie);
    Evict(*b_, next.artifact_id);
  }
  EXPECT_GT(not_used, static_cast<int>(offsets.size() / 2)) << "the damage is met";
}

TEST_F(Differences, SwappedDifferencesOfALyingNode_NeverMakeWrongBytes) {
  const client::PutResult v0 = Put("none");
  Step();
  const client::PutResult v1 = Put("auto");
  Step();
  const client::PutResult v2 = Put("auto");
  ASSERT_TRUE(v1.difference.has_value() && v2.difference.has_value());
  const TestArtifact first = DifferenceOnA(v1.difference->artifact_id);
  const TestArtifact second = DifferenceOnA(v2.difference->artifact_id);
  ASSERT_TRUE(b_->client().Get(Soon(), v0.artifact_id).ok());
  Delete(v1.difference->artifact_id);
  Delete(v2.difference->artifact_id);
  // Of another target, and of another base.
  const std::string of_target = Lie(first, {.base = v0.artifact_id, .target = v2.artifact_id});
  EXPECT_LT(BytesOf(GetOnB(), kDifferenceLane), image_bytes_);
  Evict(*b_, v2.artifact_id);
  Delete(of_target);
  const std::string of_base = Lie(second, {.base = v0.artifact_id, .target = v2.artifact_id});
  EXPECT_LT(BytesOf(GetOnB(), kDifferenceLane), image_bytes_);
  Evict(*b_, v2.artifact_id);
  Delete(of_base);
  // One for the other, folded. Their changes are at different places, so the bytes may come out right.
  Lie(second, {.base = v0.artifact_id, .target = v1.artifact_id});
  Lie(first, {.base = v1.artifact_id, .target = v2.artifact_id});
  EXPECT_EQ(GetOnB().verified_chunks, kChunks);
}

TEST_F(Differences, DictInAnotherOrder_IsTheNextVersionAllTheSame) {
  const auto put = [&](bool reversed, const std::string& base) {
    std::vector<client::PutTensor> tensors;
    for (const Tensor& tensor : artifact_.layout.tensors) {
      tensors.push_back({.name = tensor.name,
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .bytes = std::span(artifact_.image).subspan(tensor.offset, tensor.nbytes)});
    }
    if (reversed) std::ranges::reverse(tensors);
    return a_->client().Put(Soon(), tensors, {}, {.key = kKey, .base = base});
  };
  ASSERT_TRUE(put(/*reversed=*/false, "none").ok());
  GetOnB();
  Step();
  const auto next = put(/*reversed=*/true, "auto");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->difference.has_value()) << next->no_difference;
  EXPECT_EQ(BytesOf(GetOnB(), kDifferenceLane), image_bytes_);
}

TEST_F(Differences, BaseThatTwoOtherNodesHave_IsBroughtForPut) {
  TestNode& c = cluster_.AddNode("c", OnItsOwnHost);
  const client::PutResult base = Put("none");
  GetOnB();
  Evict(*a_, base.artifact_id);  // as a publisher that was restarted
  Step();
  EXPECT_THAT(Put("auto").no_difference, HasSubstr("only one other node has the base in memory"));
  GetOnB();
  GetOn(c);
  Evict(*a_, a_->client().ResolveKey(Soon(), kKey)->artifact_id);
  const uint64_t before = Received(*a_);
  Step();
  const client::PutResult next = Put("auto");
  EXPECT_TRUE(next.difference.has_value()) << next.no_difference;
  EXPECT_EQ(Received(*a_) - before, image_bytes_);
  EXPECT_EQ(BytesOf(GetOnB(), kDifferenceLane), image_bytes_);
}

TEST_F(Differences, RequiredDifferenceWithoutBase_PublishesNothing) {
  const std::string path = cluster_.WriteModel("v0", artifact_);
  const auto put =
      a_->client().Import(Soon(), path, {.key = kKey, .base = "auto", .require_difference = true});
  EXPECT_EQ(put.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(put.status().message()),
              AllOf(HasSubstr("not bound yet"), HasSubstr("without requiring a difference")));
  EXPECT_EQ(a_->client().ResolveKey(Soon(), kKey).status().code(), absl::StatusCode::kNotFound);
}

// Of a key with two versions, b has the first one, and a the second.
class Advances : public Differences {
 protected:
  void PutTwo(uint32_t keep = 1) {
    first_ = PutOn(*a_, "none", keep).artifact_id;
    GetOnB();
    Step();
    second_ = PutOn(*a_, "auto", keep).artifact_id;
  }
  // From memory: no file is a copy of it.
  client::PutResult PutOn(TestNode& node, const std::string& base, uint32_t keep) {
    std::vector<client::PutTensor> tensors;
    for (const Tensor& tensor : artifact_.layout.tensors) {
      tensors.push_back({.name = tensor.name,
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .bytes = std::span(artifact_.image).subspan(tensor.offset, tensor.nbytes)});
    }
    auto put = node.client().Put(Soon(), tensors, {}, {.key = kKey, .keep = keep, .base = base});
    EXPECT_TRUE(put.ok()) << put.status();
    return put.ok() ? *std::move(put) : client::PutResult();
  }
  static client::GetOptions Advancing(bool wait = false) {
    return {.wait_for_space = wait, .attach = false, .advance = true};
  }
  static std::vector<std::string> IdsOn(TestNode& node) {
    const auto replicas = node.admin().ListReplicas(Soon(), "");
    EXPECT_TRUE(replicas.ok()) << replicas.status();
    std::vector<std::string> ids;
    for (const v1::Replica& replica : *replicas) ids.push_back(replica.artifact_id());
    return ids;
  }
  static v1::Pool HostPoolOf(TestNode& node) {
    const auto status = node.admin().GetStatus(Soon());
    EXPECT_TRUE(status.ok()) << status.status();
    for (const v1::Pool& pool : status->pools()) {
      if (pool.location().kind() == v1::LOCATION_KIND_CPU) return pool;
    }
    return {};
  }

  std::string first_;
  std::string second_;
};

TEST_F(Advances, AdvancedVersion_TakesTheMemoryOfTheEarlierOne) {
  PutTwo();
  const uint64_t before = HostPoolOf(*b_).used_bytes();
  const auto got = b_->client().Get(Soon(), kKey, Advancing());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ((*got)->artifact_id(), second_);
  const TransferReport report = (*got)->transfer().value_or(TransferReport());
  ASSERT_FALSE(report.sources.empty());
  EXPECT_EQ(report.sources[0].source.lane, kAdvanceLane);
  EXPECT_EQ(report.sources[0].source.name, first_);
  EXPECT_EQ(BytesOf(report, kDifferenceLane), image_bytes_);
  EXPECT_THAT(IdsOn(*b_), AllOf(Contains(second_), Not(Contains(first_))));
  // The differences and buffers, and no second image.
  EXPECT_LT(HostPoolOf(*b_).used_bytes(), before + image_bytes_);
  EXPECT_EQ(BytesOf(GetOnB(), kAdvanceLane), 0u) << "it is there, with the right bytes";
  EXPECT_TRUE(testing::Eventually([&] {
    const auto described = a_->admin().DescribeArtifact(Soon(), second_);
    return described.ok() && described->replicas_size() == 2;
  })) << "the global store counts it as a copy";
}

TEST_F(Advances, AttachedVersion_IsRefusedAndItsReaderNamed) {
  PutTwo();
  auto held = b_->client().Get(Soon(), first_);
  ASSERT_TRUE(held.ok()) << held.status();
  const auto refused = b_->client().Get(Soon(), kKey, Advancing());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr((*held)->replica_id()), HasSubstr(absl::StrCat("process ", getpid()))));
  EXPECT_THAT(IdsOn(*b_), Contains(first_));
  const auto waiting = b_->client().StartGet(Soon(), kKey, Advancing(/*wait=*/true));
  EXPECT_EQ(waiting->Wait(SteadyNow() + absl::Milliseconds(100)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  held->reset();
  const auto got = waiting->Wait(Soon().deadline);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(IdsOn(*b_), Not(Contains(first_)));
}

TEST_F(Advances, LastCopyOfKeptVersion_IsRefused) {
  PutTwo(/*keep=*/2);
  Evict(*a_, first_);
  const auto refused = b_->client().Get(Soon(), kKey, Advancing());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("must stay"));
  EXPECT_THAT(IdsOn(*b_), AllOf(Contains(first_), Not(Contains(second_))));
}

}  // namespace
}  // namespace tensorcast::testing
