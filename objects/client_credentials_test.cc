#include "objects/client_credentials.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>

#include "base/status.h"
#include "base/testing/temp_folder.h"
#include "objects/testing/fake_s3.h"

namespace tensorcast::objects::client_credentials_test {
namespace {

using objects::testing::FakeReply;
using objects::testing::FakeRequest;
using objects::testing::FakeS3;
using ::testing::HasSubstr;
using ::testing::Not;

Environment EnvironmentOf(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::string() : found->second;
  };
}

class ClientCredentialsTest : public ::testing::Test {
 protected:
  std::map<std::string, std::string> Variables() const {
    return {{"HOME", folder_.path()},
            {"AWS_EC2_METADATA_DISABLED", "true"},
            {"AWS_ENDPOINT_URL", s3_.url()},
            {"AWS_ACCESS_KEY_ID", "KEY"},
            {"AWS_SECRET_ACCESS_KEY", "secret"}};
  }
  absl::StatusOr<std::optional<ClientCredentials>> Find(const std::string& uri,
                                                        std::map<std::string, std::string> variables) {
    return FindClientCredentials({}, uri, EnvironmentOf(std::move(variables)));
  }
  // What a daemon reads with that environment of its own.
  absl::StatusOr<std::string> Read(const std::string& uri, ClientCredentials credentials,
                                   const Environment& daemon, const std::string& read = "") {
    TC_ASSIGN_OR_RETURN(const auto store, OpenForClient(uri, std::move(credentials), daemon));
    TC_ASSIGN_OR_RETURN(const FoundObject found, store->Find({}, read.empty() ? uri : read));
    return ReadBytes({}, *found.object, 0, found.object->identity().bytes);
  }

  const tensorcast::testing::TempFolder folder_;
  bool expired_ = false;
  FakeS3 s3_{{.keys = Credentials{.access_key_id = "KEY", .secret_access_key = Secret("secret")},
              .first = [this](const FakeRequest&) -> std::optional<FakeReply> {
                if (!expired_) return std::nullopt;
                return FakeReply{.status = 400,
                                 .body = "<Error><Code>ExpiredToken</Code><Message>x</Message></Error>"};
              }}};
};

TEST_F(ClientCredentialsTest, KeysOfEnvironment_PassToAnotherProcess) {
  s3_.Put("models/a", "bytes");
  const auto found = Find("s3://bucket/models/a", Variables());
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  const auto file = Hand(**found);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto taken = Take(file->get());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->keys->secret_access_key.Reveal(), "secret");
  EXPECT_EQ(taken->keys->expires, absl::InfiniteFuture());
  EXPECT_EQ(taken->s3_endpoint, s3_.url());
  EXPECT_EQ(
      Read("s3://bucket/models/a", *taken, EnvironmentOf({{"AWS_ENDPOINT_URL", s3_.url()}})).value_or(""),
      "bytes");
}

TEST_F(ClientCredentialsTest, KeysOfProfile_AreFoundByItsName) {
  const auto found = Find("s3://bucket/a", {{"HOME", folder_.path()},
                                            {"AWS_PROFILE", "mine"},
                                            {"AWS_SHARED_CREDENTIALS_FILE", folder_.File("credentials")}});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound) << "the profile is missing";
}

TEST_F(ClientCredentialsTest, HubToken_IsForTheHubAlone) {
  const std::map<std::string, std::string> variables = {
      {"HOME", folder_.path()}, {"AWS_EC2_METADATA_DISABLED", "true"}, {"HF_TOKEN", "token"}};
  const auto hub = Find("hf://org/name", variables);
  ASSERT_TRUE(hub.ok() && hub->has_value());
  EXPECT_EQ((*hub)->hub_token.Reveal(), "token");
  EXPECT_FALSE((*hub)->keys.has_value());
  const auto bucket = Find("s3://bucket/a", variables);
  ASSERT_TRUE(bucket.ok()) << bucket.status();
  EXPECT_FALSE(bucket->has_value());
  EXPECT_EQ(OpenForClient("s3://bucket/a", **hub, EnvironmentOf({})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientCredentialsTest, OtherSchemes_HaveNone) {
  const auto found = Find("https://host/m.safetensors", Variables());
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->has_value());
}

TEST_F(ClientCredentialsTest, OtherUri_IsNotReadWithThem) {
  s3_.Put("models/a", "bytes");
  s3_.Put("other/a", "bytes");
  const auto found = Find("s3://bucket/models/a", Variables());
  ASSERT_TRUE(found.ok());
  const Environment daemon = EnvironmentOf({{"AWS_ENDPOINT_URL", s3_.url()}});
  EXPECT_EQ(Read("s3://bucket/models/a", **found, daemon, "s3://bucket/other/a").status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(s3_.server().requests().empty());
}

// A client must not reach what trusts the daemon's host.
TEST_F(ClientCredentialsTest, LoopbackEndpoint_IsReadOnlyAsTheDaemonsOwn) {
  s3_.Put("models/a", "bytes");
  const auto found = Find("s3://bucket/models/a", Variables());
  ASSERT_TRUE(found.ok());
  const absl::Status refused = Read("s3://bucket/models/a", **found, EnvironmentOf({})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("loopback"));
  EXPECT_TRUE(s3_.server().requests().empty());
}

TEST_F(ClientCredentialsTest, RateOfTheProcess_HoldsForReadsWithThem) {
  s3_.Put("models/a", "bytes");
  const auto found = Find("s3://bucket/models/a", Variables());
  ASSERT_TRUE(found.ok());
  const auto rates = std::make_shared<ReadRates>(/*all=*/1, /*of_origin=*/0);
  const auto store =
      OpenForClient("s3://bucket/models/a", **found, EnvironmentOf({{"AWS_ENDPOINT_URL", s3_.url()}}), rates);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto opened = (*store)->Find({}, "s3://bucket/models/a");
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE(rates->Await({}, "another reader", 1 << 20, "read").ok());
  RequestContext late;
  late.deadline = SteadyNow() + absl::Milliseconds(20);
  EXPECT_EQ(ReadBytes(late, *opened->object, 0, 5).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientCredentialsTest, ExpiredKeys_AreNamedWithTheRemedy) {
  s3_.Put("models/a", "bytes");
  const Environment daemon = EnvironmentOf({{"AWS_ENDPOINT_URL", s3_.url()}});
  auto found = Find("s3://bucket/models/a", Variables());
  ASSERT_TRUE(found.ok());
  const auto store = OpenForClient("s3://bucket/models/a", **found, daemon);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto opened = (*store)->Find({}, "s3://bucket/models/a");
  ASSERT_TRUE(opened.ok()) << opened.status();
  expired_ = true;  // in the middle of the import
  const absl::Status ended = ReadBytes({}, *opened->object, 0, 5).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kPermissionDenied) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("expired"));
  EXPECT_THAT(std::string(ended.message()), HasSubstr("sign in again"));

  (*found)->keys->expires = absl::UnixEpoch();
  const absl::Status before = Read("s3://bucket/models/a", **found, daemon).status();
  EXPECT_EQ(before.code(), absl::StatusCode::kPermissionDenied) << before;
  EXPECT_THAT(std::string(before.message()), HasSubstr("expired"));
  EXPECT_THAT(std::string(before.message()), Not(HasSubstr("secret")));
}

TEST_F(ClientCredentialsTest, FileOfAnotherKind_IsRefused) {
  const UniqueFd regular(open(folder_.File("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd unsealed(memfd_create("m", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const UniqueFd garbage(memfd_create("m", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(write(garbage.get(), "garbage of a client", 19), 19);
  ASSERT_EQ(fcntl(garbage.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
  for (const UniqueFd* const file : {&regular, &unsealed, &garbage}) {
    EXPECT_EQ(Take(file->get()).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tensorcast::objects::client_credentials_test
