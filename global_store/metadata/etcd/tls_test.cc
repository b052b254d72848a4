// An etcd that requires certificates of its callers, and presents its own.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"
#include "global_store/metadata/etcd/client.h"
#include "global_store/metadata/etcd/leadership.h"
#include "global_store/metadata/etcd/store.h"
#include "global_store/metadata/etcd/testing/etcd_cluster.h"
#include "security/testing/address_certificate.h"
#include "security/testing/test_authority.h"

namespace tensorcast::global_store::etcd::tls_test {
namespace {

using security::testing::TestAuthority;

constexpr char kPrefix[] = "tensorcast";

class EtcdOverTls : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cluster = EtcdCluster::Start(
        folder_.File("etcd"), 3,
        {absl::StrCat("--cert-file=", server_.certificate), absl::StrCat("--key-file=", server_.key),
         "--client-cert-auth", absl::StrCat("--trusted-ca-file=", authority_.ca())},
        LoginOf(authority_));
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  ClientOptions LoginOf(const TestAuthority& authority) const {
    const security::Identity::Files own = authority.Issue("global-store/a");
    return {.ca = server_.certificate, .certificate = own.certificate, .key = own.key};
  }
  absl::Status Read(ClientOptions login, absl::Duration timeout) const {
    login.endpoints = cluster_->endpoints();
    const auto client = Client::Create(login);
    if (!client.ok()) return client.status();
    etcdserverpb::RangeRequest any;
    any.set_key("any");
    return (*client)->Range(RequestContext::Background(timeout), any).status();
  }

  const tensorcast::testing::TempFolder folder_;
  const TestAuthority authority_;
  const security::Identity::Files server_ =
      security::testing::MakeAddressCertificate(folder_.path(), EtcdCluster::Host());
  std::unique_ptr<EtcdCluster> cluster_;
};

TEST_F(EtcdOverTls, StoreWithCertificate_LeadsAndCommitsThoughAMemberIsAway) {
  ClientOptions login = LoginOf(authority_);
  login.endpoints = cluster_->endpoints();
  const auto client = Client::Create(login);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto leadership = Leadership::Campaign(
      client->get(), {.prefix = kPrefix, .ttl = absl::Minutes(1), .name = "a", .address = "a:1"},
      RequestContext::Background(absl::Minutes(1)), [](const StoreAddress&) {});
  ASSERT_TRUE(leadership.ok()) << leadership.status();
  const auto store = MakeStore(client->get(), leadership->get(), kPrefix);
  for (int member = 0; member < cluster_->members(); ++member) {
    cluster_->Kill(member);
    const absl::Status bound = store->Commit(
        {.facts = {.keys = {{.name = absl::StrCat("k", member), .artifact_id = "a", .revision = 1}}}});
    EXPECT_TRUE(bound.ok()) << member << ": " << bound;
    cluster_->Restart(member);
  }
  const auto facts = store->Load();
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->keys.size(), 3u);
}

TEST_F(EtcdOverTls, WrongCertificates_AreRefusedByBothSides) {
  ASSERT_TRUE(Read(LoginOf(authority_), absl::Minutes(1)).ok());
  constexpr absl::Duration kTried = absl::Seconds(2);
  EXPECT_TRUE(absl::IsUnavailable(Read({}, kTried))) << "in clear";
  EXPECT_TRUE(absl::IsUnavailable(Read({.ca = server_.certificate}, kTried))) << "without a certificate";
  const TestAuthority foreign("other.example");
  EXPECT_TRUE(absl::IsUnavailable(Read(LoginOf(foreign), kTried))) << "a foreign certificate";
  ClientOptions wary = LoginOf(authority_);
  wary.ca = foreign.ca();
  EXPECT_TRUE(absl::IsUnavailable(Read(wary, kTried))) << "an etcd of another authority";
}

TEST(EtcdTls, UnusableTlsFiles_AreNamedInTheError) {
  for (const char* const file : {"/no/such/file", "/proc/self"}) {
    const auto unusable = Client::Create({.endpoints = {"127.0.0.1:1"}, .ca = file});
    EXPECT_TRUE(absl::IsInvalidArgument(unusable.status())) << file;
    EXPECT_NE(unusable.status().message().find(file), std::string::npos) << unusable.status();
  }
  const TestAuthority authority;
  const auto alone =
      Client::Create({.endpoints = {"127.0.0.1:1"}, .certificate = authority.Issue("node/a").certificate});
  EXPECT_TRUE(absl::IsInvalidArgument(alone.status())) << "a certificate, but nothing to know etcd by";
}

}  // namespace
}  // namespace tensorcast::global_store::etcd::tls_test
