#include "global_store/imports/import_claims.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tensorcast::global_store::import_claims_test {
namespace {

class ImportClaimsTest : public ::testing::Test {
 protected:
  ImportClaims::Answer Claim(const std::string& node, const std::string& import = "import",
                             uint64_t incarnation = 1) {
    return claims_.Claim(node, incarnation, import, now_);
  }

  ImportClaims claims_{{.ttl = absl::Seconds(6), .max_claims = 3}};
  SteadyTime now_ = SteadyTime() + absl::Hours(1);
};

TEST_F(ImportClaimsTest, EightNodes_OneReads) {
  int granted = 0;
  for (int node = 0; node < 8; ++node) granted += Claim(absl::StrCat("n", node)).granted ? 1 : 0;
  EXPECT_EQ(granted, 1);
  EXPECT_EQ(Claim("n7").reading_node_id, "n0");
  EXPECT_TRUE(Claim("n7", "another import").granted);
}

TEST_F(ImportClaimsTest, EndedImport_GivesItsArtifactToAll) {
  Claim("a");
  claims_.End("a", 1, "import", "tc2:made", now_);
  EXPECT_EQ(Claim("b").artifact_id, "tc2:made");
  EXPECT_EQ(Claim("a").artifact_id, "tc2:made");
  claims_.Forget("import");
  EXPECT_TRUE(Claim("b").granted);
}

TEST_F(ImportClaimsTest, FailedImport_LetsTheNextNodeRead) {
  Claim("a");
  claims_.End("b", 1, "import", "", now_);
  EXPECT_EQ(Claim("b").reading_node_id, "a") << "only its holder ends a claim";
  claims_.End("a", 1, "import", "", now_);
  EXPECT_TRUE(Claim("b").granted);
}

TEST_F(ImportClaimsTest, SilentNode_LosesItsClaim) {
  Claim("a");
  now_ += absl::Seconds(4);
  EXPECT_TRUE(Claim("a").granted) << "renewed";
  now_ += absl::Seconds(4);
  EXPECT_FALSE(Claim("b").granted);
  now_ += absl::Seconds(2);
  EXPECT_TRUE(Claim("b").granted);
  EXPECT_FALSE(Claim("a").granted) << "it came back too late";
}

TEST_F(ImportClaimsTest, RestartedNode_IsAnotherHolder) {
  Claim("a", "import", 1);
  EXPECT_FALSE(Claim("a", "import", 2).granted);
}

TEST_F(ImportClaimsTest, FullTable_DropsTheOldest) {
  for (const char* const import : {"1", "2", "3", "4"}) {
    Claim("a", import);
    now_ += absl::Seconds(1);
  }
  EXPECT_TRUE(Claim("b", "1").granted);
  EXPECT_FALSE(Claim("b", "4").granted);
}

}  // namespace
}  // namespace tensorcast::global_store::import_claims_test
