#include "security/authority_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/testing/temp_folder.h"
#include "security/identity.h"

namespace tensorcast::security::authority_folder_test {
namespace {

using ::testing::HasSubstr;

class AuthorityFolderTest : public ::testing::Test {
 protected:
  mode_t ModeOf(const std::string& path) {
    struct stat found{};
    EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
    return found.st_mode & 07777;
  }

  tensorcast::testing::TempFolder parent_;
  const std::string folder_ = parent_.File("certs");
};

TEST_F(AuthorityFolderTest, IssuedCertificate_LoadsAsIdentity) {
  const auto authority = AuthorityFolder::Make(folder_, "test.example", ValidFor(absl::Hours(1)));
  ASSERT_TRUE(authority.ok()) << authority.status();
  const auto issued = authority->Issue("node/a", ValidFor(absl::Hours(1)));
  ASSERT_TRUE(issued.ok()) << issued.status();
  EXPECT_EQ(issued->name.ToString(), "spiffe://test.example/tensorcast/node/a");
  EXPECT_EQ(issued->files.certificate, folder_ + "/node-a.pem");
  const auto loaded = Identity::Load({.ca = authority->files().certificate,
                                      .certificate = issued->files.certificate,
                                      .key = issued->files.key,
                                      .denied = {},
                                      .trust_domain = {}});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
}

TEST_F(AuthorityFolderTest, KeyFiles_AreReadableByTheirUserOnly) {
  const auto authority = AuthorityFolder::Make(folder_, "test.example", ValidFor(absl::Hours(1)));
  ASSERT_TRUE(authority.ok()) << authority.status();
  const auto issued = authority->Issue("operator/eva", ValidFor(absl::Hours(1)));
  ASSERT_TRUE(issued.ok()) << issued.status();
  EXPECT_EQ(ModeOf(folder_), 0700u);
  EXPECT_EQ(ModeOf(authority->files().key), 0600u);
  EXPECT_EQ(ModeOf(issued->files.key), 0600u);
  EXPECT_EQ(ModeOf(issued->files.certificate), 0644u);
}

TEST_F(AuthorityFolderTest, OpenAuthorityFolder_IssuesForSameTrustDomain) {
  ASSERT_TRUE(AuthorityFolder::Make(folder_, "test.example", ValidFor(absl::Hours(1))).ok());
  const auto again = AuthorityFolder::Open(folder_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->trust_domain(), "test.example");
  EXPECT_TRUE(again->Issue("node/a", ValidFor(absl::Hours(1))).ok());
  EXPECT_EQ(again->Issue("root", ValidFor(absl::Hours(1))).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AuthorityFolder::Open(parent_.File("elsewhere")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(AuthorityFolderTest, MakeAuthorityFolder_RefusesExistingAuthority) {
  ASSERT_TRUE(AuthorityFolder::Make(folder_, "test.example", ValidFor(absl::Hours(1))).ok());
  std::filesystem::remove(folder_ + "/ca.pem");  // its key alone is one, too
  const auto second = AuthorityFolder::Make(folder_, "test.example", ValidFor(absl::Hours(1)));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(second.status().message(), HasSubstr("choose another folder"));
}

}  // namespace
}  // namespace tensorcast::security::authority_folder_test
