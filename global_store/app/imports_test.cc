// Claims of imports over a real socket.
#include "global_store/app/global_store_fixture.h"
#include "gmock/gmock.h"
#include "proto/imports.grpc.pb.h"

namespace tensorcast::global_store::imports_test {
namespace {

class ImportsTest : public GlobalStoreServerTest {
 protected:
  absl::StatusOr<v1::ClaimImportResponse> Claim(const std::string& node, bool ended = false,
                                                const std::string& artifact_id = "",
                                                const std::string& import_id = "import") {
    v1::ClaimImportRequest request;
    *request.mutable_node() = Identity(node);
    request.set_import_id(import_id);
    request.set_ended(ended);
    request.set_artifact_id(artifact_id);
    const auto stub = v1::Imports::NewStub(rpc::MakeChannel(server_->address()));
    return rpc::CallUnary(*stub, &v1::Imports::Stub::ClaimImport, Context(), request);
  }
};

TEST_F(ImportsTest, SecondNode_WaitsAndIsToldTheArtifact) {
  Register("a");
  Register("b");
  const auto first = Claim("a");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->granted());
  EXPECT_TRUE(first->has_retry_after()) << "when to renew it";
  const auto waits = Claim("b");
  ASSERT_TRUE(waits.ok()) << waits.status();
  EXPECT_FALSE(waits->granted());
  EXPECT_EQ(waits->reading_node(), "a");
  const auto manifest = SomeManifest("model");
  ASSERT_TRUE(Publish(*manifest, "a", "r").ok());
  ASSERT_TRUE(Claim("a", /*ended=*/true, manifest->id()).ok());
  EXPECT_EQ(Claim("b")->artifact_id(), manifest->id());
}

TEST_F(ImportsTest, NodeThatDies_LosesItsClaim) {
  Register("a");
  Register("b");
  ASSERT_TRUE(Claim("a")->granted());
  Pass(absl::Seconds(6));
  EXPECT_TRUE(Claim("b")->granted());
}

TEST_F(ImportsTest, DeletedArtifact_IsReadAgain) {
  Register("a");
  ASSERT_TRUE(Claim("a")->granted());
  ASSERT_TRUE(Claim("a", /*ended=*/true, SomeManifest("never published")->id()).ok());
  EXPECT_TRUE(Claim("a")->granted());
}

TEST_F(ImportsTest, UnknownNodeAndLongId_AreRefused) {
  EXPECT_EQ(Claim("stranger").status().code(), absl::StatusCode::kNotFound);
  Register("a");
  EXPECT_EQ(Claim("a", false, "", std::string(1000, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcast::global_store::imports_test
