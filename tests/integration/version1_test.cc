// A store that has artifacts from before manifests were of version 2: they are served as ever, and their
// content keeps its id.
#include <algorithm>

#include "core/artifact/test_util.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "daemon/global_store_link/global_store_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/protocol_version.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::StartsWith;

class Version1 : public ::testing::Test {
 protected:
  // As a node of an older build did, in chunks of 64 KiB.
  std::shared_ptr<const Manifest> Publish(const TestArtifact& artifact) {
    ImageLayout layout = artifact.layout;
    layout.chunk_bytes = 64 << 10;
    const auto manifest =
        Manifest::Decode(EncodeVersion1Manifest(layout, DigestsOf(layout, artifact.image), {}));
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    const auto store = daemon::MakeGlobalStoreClient(
        std::make_shared<daemon::GlobalStoreChannel>(cluster_.global_store().address()));
    v1::RegisterNodeRequest registration;
    registration.mutable_node()->set_node_id("old");
    registration.mutable_node()->set_name("old");
    registration.mutable_node()->set_grpc_address("127.0.0.1:1");
    registration.mutable_node()->set_incarnation(1);
    registration.mutable_node()->set_protocol_version(rpc::kProtocolVersion);
    EXPECT_TRUE(store->RegisterNode(Soon(), registration).ok());
    v1::PublishArtifactRequest first;
    first.mutable_node()->set_node_id("old");
    first.mutable_node()->set_incarnation(1);
    const auto published = store->PublishArtifact(Soon(), **manifest, first, /*asking=*/"");
    EXPECT_TRUE(published.ok()) << published.status();
    return *manifest;
  }

  TestCluster cluster_;
  TestNode& a_ = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b_ = cluster_.AddNode("b", OnItsOwnHost);
};

TEST_F(Version1, ReimportOfVersion1Artifact_KeepsItsIdAndTransfers) {
  const TestArtifact artifact = MakeChunkedArtifact(1, 3, kTestChunkBytes);
  const auto manifest = Publish(artifact);
  (void)Publish(MakeChunkedArtifact(2, 3, kTestChunkBytes));  // the same tensors, other bytes
  (void)Publish(MakeChunkedArtifact(1, 4, kTestChunkBytes));
  const auto put = a_.client().Import(Soon(), cluster_.WriteModel("model", artifact), {.key = "m"});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->artifact_id, manifest->id());
  EXPECT_TRUE(put->existed);

  const auto replica = b_.client().Get(Soon(), "m", {});
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_EQ((*replica)->artifact_id(), manifest->id());
  EXPECT_TRUE(std::ranges::equal((*replica)->image(), artifact.image));
  EXPECT_EQ((*replica)->transfer()->verified_chunks, manifest->layout().chunk_count());
}

TEST_F(Version1, SameTensorsAsVersion1WithOtherBytes_GetNewId) {
  (void)Publish(MakeChunkedArtifact(1, 3, kTestChunkBytes));
  const TestArtifact other = MakeChunkedArtifact(2, 3, kTestChunkBytes);
  const auto put = a_.client().Import(Soon(), cluster_.WriteModel("model", other), {});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_THAT(put->artifact_id, StartsWith("tc2:"));
  EXPECT_FALSE(put->existed);
}

}  // namespace
}  // namespace tensorcast::testing
