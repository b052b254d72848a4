#include "objects/credentials/credential_providers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"
#include "objects/credentials/credential_chain.h"
#include "objects/testing/fake_server.h"

namespace tensorcast::objects {
namespace {

using ::testing::AllOf;
using testing::FakeReply;
using testing::FakeRequest;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kJson[] =
    R"({"Code": "Success", "AccessKeyId": "KEY", "SecretAccessKey": "secret", "Token": "token",
                             "Expiration": "2030-01-02T03:04:05Z"})";

class CredentialProvidersTest : public ::testing::Test {
 protected:
  CredentialProvidersTest() {
    variables_ = {{"HOME", folder_.path()}, {"AWS_EC2_METADATA_DISABLED", "true"}};
  }

  Environment environment() const {
    return [variables = variables_](std::string_view name) {
      const auto found = variables.find(std::string(name));
      return found == variables.end() ? "" : found->second;
    };
  }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.File(name)) << text;
    return folder_.File(name);
  }
  static std::string Text(const absl::StatusOr<std::optional<Credentials>>& found) {
    if (!found.ok()) return std::string(found.status().message());
    if (!found->has_value()) return "none";
    return absl::StrCat((*found)->access_key_id, " ", (*found)->secret_access_key.Reveal(), " ",
                        (*found)->session_token.Reveal());
  }
  static absl::Time Expiration() {
    return absl::FromCivil(absl::CivilSecond(2030, 1, 2, 3, 4, 5), absl::UTCTimeZone());
  }

  const tensorcast::testing::TempFolder folder_;
  std::map<std::string, std::string> variables_;
  const std::shared_ptr<HttpClient> http_ = std::make_shared<HttpClient>();
};

TEST_F(CredentialProvidersTest, Environment_HasKeys) {
  EXPECT_EQ(Text(EnvironmentCredentials(environment())({})), "none");
  variables_["AWS_ACCESS_KEY_ID"] = "KEY";
  EXPECT_THAT(Text(EnvironmentCredentials(environment())({})), HasSubstr("secret key is missing"));
  variables_["AWS_SECRET_ACCESS_KEY"] = "secret";
  variables_["AWS_SESSION_TOKEN"] = "token";
  EXPECT_EQ(Text(EnvironmentCredentials(environment())({})), "KEY secret token");
}

TEST_F(CredentialProvidersTest, Profile_IsReadFromBothFiles) {
  variables_["AWS_SHARED_CREDENTIALS_FILE"] =
      Write("credentials",
            "# keys\n[default]\naws_access_key_id = D\naws_secret_access_key=d/+=\n\n[team]\n"
            "AWS_ACCESS_KEY_ID=T\n");
  variables_["AWS_CONFIG_FILE"] =
      Write("config",
            "[default]\nregion = eu-west-1\n[profile team]\naws_access_key_id = other\n"
            "aws_secret_access_key = t\ns3 =\n  region = nested\nregion = eu-north-1\n");
  EXPECT_EQ(Text(ProfileCredentials(environment())({})), "D d/+= ");
  EXPECT_EQ(ConfiguredRegion(environment()), "eu-west-1");
  variables_["AWS_PROFILE"] = "team";
  EXPECT_EQ(Text(ProfileCredentials(environment())({})), "T t ");
  EXPECT_EQ(ConfiguredRegion(environment()), "eu-north-1");
  variables_["AWS_REGION"] = "us-west-2";
  EXPECT_EQ(ConfiguredRegion(environment()), "us-west-2");
  variables_["AWS_PROFILE"] = "none";
  EXPECT_THAT(Text(ProfileCredentials(environment())({})), HasSubstr("read profile none"));
}

TEST_F(CredentialProvidersTest, NamedDefaultProfile_MayBeInConfigFileAlone) {
  variables_["AWS_SHARED_CREDENTIALS_FILE"] = folder_.File("no such file");
  variables_["AWS_CONFIG_FILE"] = Write("config", "[default]\nregion = eu-west-1\n");
  variables_["AWS_PROFILE"] = "default";
  EXPECT_EQ(Text(ProfileCredentials(environment())({})), "none");
  EXPECT_EQ(ConfiguredRegion(environment()), "eu-west-1");
}

TEST_F(CredentialProvidersTest, UnsupportedProfile_IsRefusedByName) {
  const auto text = [this](const std::string& settings) {
    Write("config", absl::StrCat("[profile team]\n", settings));
    return Text(ProfileCredentials(environment())({}));
  };
  variables_["AWS_CONFIG_FILE"] = folder_.File("config");
  variables_["AWS_PROFILE"] = "team";
  const std::string keys = "aws_access_key_id = K\naws_secret_access_key = s\n";
  for (const char* const setting : {"source_profile", "credential_source"}) {
    // AWS's tools assume the role, whatever other keys there are.
    EXPECT_THAT(text(absl::StrCat(keys, "role_arn = r\n", setting, " = other\n")),
                AllOf(HasSubstr("profile team"), HasSubstr(setting), HasSubstr("export-credentials")));
  }
  for (const char* const setting : {"sso_session", "sso_start_url", "login_session", "credential_process"}) {
    EXPECT_THAT(text(absl::StrCat(setting, " = other\n")),
                AllOf(HasSubstr("profile team"), HasSubstr(setting), HasSubstr("--profile team")));
    EXPECT_EQ(text(absl::StrCat(keys, setting, " = other\n")), "K s ");
  }
  EXPECT_EQ(text("region = eu-west-1\n"), "none");
}

TEST_F(CredentialProvidersTest, NoFiles_GiveNothing) {
  EXPECT_EQ(Text(ProfileCredentials(environment())({})), "none");
  EXPECT_EQ(ConfiguredRegion(environment()), "us-east-1");
}

TEST_F(CredentialProvidersTest, WebIdentity_IsExchangedInABody) {
  FakeServer sts([](const FakeRequest& request) {
    EXPECT_EQ(request.query, "");
    EXPECT_THAT(request.body,
                AllOf(HasSubstr("Action=AssumeRoleWithWebIdentity"), HasSubstr("WebIdentityToken=jwt.a%2Bb"),
                      HasSubstr("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr")));
    return FakeReply{
        .body =
            "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
            "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>KEY</AccessKeyId>"
            "<SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>"
            "<Expiration>2030-01-02T03:04:05Z</Expiration></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"};
  });
  EXPECT_EQ(Text(WebIdentityCredentials(http_, environment())({})), "none");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = Write("token", "jwt.a+b\n");
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
  variables_["AWS_ENDPOINT_URL_STS"] = sts.url();
  const auto found = WebIdentityCredentials(http_, environment())({});
  EXPECT_EQ(Text(found), "KEY secret token");
  EXPECT_EQ((*found)->expires, Expiration());
}

TEST_F(CredentialProvidersTest, FolderInPlaceOfTokenFile_IsAnError) {
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = folder_.path();
  variables_["AWS_ROLE_ARN"] = "arn";
  EXPECT_THAT(Text(WebIdentityCredentials(http_, environment())({})),
              AllOf(HasSubstr(folder_.path()), HasSubstr("Is a directory")));
}

TEST_F(CredentialProvidersTest, FolderInPlaceOfProfileFile_CountsAsEmpty) {
  variables_["AWS_SHARED_CREDENTIALS_FILE"] = folder_.path();
  const auto profile = ReadProfile(environment());
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(profile->settings.empty());
}

TEST_F(CredentialProvidersTest, RefusedWebIdentity_IsNamedWithoutToken) {
  FakeServer sts([](const FakeRequest&) {
    return FakeReply{.status = 403,
                     .body = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"};
  });
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = Write("token", "jwt");
  variables_["AWS_ROLE_ARN"] = "arn";
  variables_["AWS_ENDPOINT_URL"] = sts.url();
  EXPECT_THAT(Text(WebIdentityCredentials(http_, environment())({})),
              AllOf(HasSubstr("web identity"), HasSubstr("AccessDenied"), Not(HasSubstr("jwt"))));
}

TEST_F(CredentialProvidersTest, Container_GetsItsTokenFromFile) {
  FakeServer container([](const FakeRequest& request) {
    EXPECT_EQ(request.Header("authorization"), "pod-token");
    return FakeReply{.body = kJson};
  });
  EXPECT_EQ(Text(ContainerCredentials(http_, environment())({})), "none");
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url() + "/v1/credentials";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = Write("pod", "pod-token");
  const auto found = ContainerCredentials(http_, environment())({});
  EXPECT_EQ(Text(found), "KEY secret token");
  EXPECT_EQ((*found)->expires, Expiration());
}

TEST_F(CredentialProvidersTest, ContainerElsewhere_GetsNoToken) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://host.example/";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "pod-token";
  EXPECT_THAT(Text(ContainerCredentials(http_, environment())({})),
              HasSubstr("does not use https and is not on this host"));
}

TEST_F(CredentialProvidersTest, Instance_IsAskedInVersionTwo) {
  FakeServer metadata([](const FakeRequest& request) {
    if (request.path == "/latest/api/token") {
      EXPECT_EQ(request.method, "PUT");
      EXPECT_EQ(request.Header("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
      return FakeReply{.body = "session"};
    }
    if (request.Header("x-aws-ec2-metadata-token") != "session") return FakeReply{.status = 401};
    if (absl::EndsWith(request.path, "/security-credentials/")) return FakeReply{.body = "my role"};
    if (absl::EndsWith(request.path, "/security-credentials/my%20role")) return FakeReply{.body = kJson};
    return FakeReply{.status = 404};
  });
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = metadata.url();
  EXPECT_EQ(Text(InstanceCredentials(http_, environment())({})), "none");  // disabled
  variables_["AWS_EC2_METADATA_DISABLED"] = "";
  EXPECT_EQ(Text(InstanceCredentials(http_, environment())({})), "KEY secret token");
}

TEST_F(CredentialProvidersTest, HostWithoutMetadata_HasNone) {
  std::string closed;
  {
    FakeServer server([](const FakeRequest&) { return FakeReply{}; });
    closed = server.url();
  }
  variables_["AWS_EC2_METADATA_DISABLED"] = "";
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = closed;
  EXPECT_EQ(Text(InstanceCredentials(http_, environment())({})), "none");
}

TEST_F(CredentialProvidersTest, MalformedAnswer_IsRefused) {
  for (const char* const body : {"", "[]", "{", "{\"AccessKeyId\": 1}",
                                 R"({"AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "soon"})"}) {
    FakeServer container([&](const FakeRequest&) { return FakeReply{.body = body}; });
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url();
    EXPECT_FALSE(ContainerCredentials(http_, environment())({}).ok()) << body;
  }
}

TEST_F(CredentialProvidersTest, DefaultCredentials_AskInOrder) {
  FakeServer container([](const FakeRequest&) { return FakeReply{.body = kJson}; });
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url();
  const auto from_container = MakeDefaultCredentials(http_, environment())->Get({});
  ASSERT_TRUE(from_container.ok()) << from_container.status();
  EXPECT_EQ((*from_container)->access_key_id, "KEY");
  variables_["AWS_ACCESS_KEY_ID"] = "FIRST";
  variables_["AWS_SECRET_ACCESS_KEY"] = "secret";
  EXPECT_EQ((*MakeDefaultCredentials(http_, environment())->Get({}))->access_key_id, "FIRST");
}

}  // namespace
}  // namespace tensorcast::objects
