#include "cli/config/secrets.h"

#include "cli/config/config.h"
#include "gmock/gmock.h"

namespace tensorcast::config::secrets_test {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Secrets, Configuration_ShowsNoSecret) {
  const absl::StatusOr<v1::Config> config = Parse(R"(
observability:
  otel:
    endpoint: https://joe:pass-in-address@collector:4318
    headers: {authorization: Bearer pass-in-header}
    resource_attributes: {team: blue}
daemon:
  name: node-a
  origins: ["https://joe:pass-in-origin@models/a@b/"]
security:
  key: /etc/key.pem
)",
                                                  "file", {});
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string shown = ToYaml(WithoutSecrets(*config));
  EXPECT_THAT(shown, Not(HasSubstr("pass-in")));
  EXPECT_THAT(shown, HasSubstr("https://(hidden)@collector:4318"));
  EXPECT_THAT(shown, HasSubstr("https://(hidden)@models/a@b/"));
  EXPECT_THAT(shown, HasSubstr("authorization=(hidden)"));
  EXPECT_THAT(shown, HasSubstr("team=blue"));
  EXPECT_THAT(shown, HasSubstr("name: node-a"));
  EXPECT_THAT(shown, HasSubstr("/etc/key.pem")) << "the path, which is of use, and not the key";
}

}  // namespace tensorcast::config::secrets_test
