#include "security/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "security/testing/test_authority.h"

namespace tensorcast::security::identity_test {
namespace {

using tensorcast::testing::Eventually;
using ::testing::HasSubstr;
using testing::TestAuthority;

// Two ends of a connection in memory: what one writes the other reads.
class Handshake {
 public:
  Handshake(const std::shared_ptr<SSL_CTX>& server, const std::shared_ptr<SSL_CTX>& client)
      : server_(SSL_new(server.get()), SSL_free), client_(SSL_new(client.get()), SSL_free) {
    BIO* server_end = nullptr;
    BIO* client_end = nullptr;
    BIO_new_bio_pair(&server_end, 0, &client_end, 0);
    SSL_set_bio(server_.get(), server_end, server_end);
    SSL_set_bio(client_.get(), client_end, client_end);
    SSL_set_accept_state(server_.get());
    SSL_set_connect_state(client_.get());
    for (int i = 0; i < 10; ++i) {  // TLS 1.3 needs three
      SSL_do_handshake(client_.get());
      SSL_do_handshake(server_.get());
    }
    // A client of TLS 1.3 is done before the server has seen its certificate: what the server thinks of it
    // comes with the first read.
    char byte = 0;
    SSL_read(client_.get(), &byte, 1);
    ERR_clear_error();
  }
  bool done() const {
    return SSL_is_init_finished(server_.get()) && SSL_is_init_finished(client_.get()) &&
           (SSL_get_shutdown(client_.get()) & SSL_RECEIVED_SHUTDOWN) == 0;
  }
  const SSL* server() const { return server_.get(); }
  const SSL* client() const { return client_.get(); }

 private:
  std::unique_ptr<SSL, decltype(&SSL_free)> server_;
  std::unique_ptr<SSL, decltype(&SSL_free)> client_;
};

bool Connects(const Identity& server, const Identity& client) {
  return Handshake(server.ServerContext(), client.ClientContext()).done();
}

TEST(Identity, Handshake_TellsBothEndsThePeersName) {
  const TestAuthority authority;
  const auto source = authority.Load("node/a");
  const auto receiver = authority.Load("node/b");
  const Handshake handshake(source->ServerContext(), receiver->ClientContext());
  ASSERT_TRUE(handshake.done());
  EXPECT_EQ(source->PeerOf(handshake.server())->name.ToString(), authority.Uri("node/b"));
  EXPECT_EQ(receiver->PeerOf(handshake.client())->name.ToString(), authority.Uri("node/a"));
  EXPECT_EQ(std::string(SSL_get_version(handshake.client())), "TLSv1.3");
}

TEST(Identity, Identity_KnowsItsNameAndEnd) {
  const TestAuthority authority;
  const auto files = authority.Issue("operator/ada", absl::Hours(3));
  const auto identity = Identity::Load(files);
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ((*identity)->self().name.ToString(), "spiffe://test.example/tensorcast/operator/ada");
  EXPECT_LE((*identity)->self().not_after, absl::Now() + absl::Hours(3));
  EXPECT_GT((*identity)->self().not_after, absl::Now() + absl::Hours(2));
  EXPECT_EQ((*identity)->trust_domain(), "test.example");
}

TEST(Identity, CertificateOfOtherAuthority_IsRefused) {
  const TestAuthority ours;
  const TestAuthority theirs;  // for the same trust domain, even
  const auto a = ours.Load("node/a");
  const auto b = theirs.Load("node/b");
  EXPECT_FALSE(Connects(*a, *b));
  EXPECT_FALSE(Connects(*b, *a));
  EXPECT_TRUE(Connects(*a, *a));
}

TEST(Identity, NameOfOtherTrustDomain_IsRefused) {
  const TestAuthority authority;
  const auto a = authority.Load("node/a");
  const Name foreign{.trust_domain = "other.example", .role = Role::kNode, .name = "a"};
  EXPECT_THAT(std::string(a->CheckName(foreign).message()),
              HasSubstr("not in the trust domain test.example"));
}

TEST(Identity, PeerWithoutCertificate_IsRefused) {
  const TestAuthority authority;
  const auto server = authority.Load("node/a");
  const std::shared_ptr<SSL_CTX> nobody(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  EXPECT_FALSE(Handshake(server->ServerContext(), nobody).done());
}

TEST(Identity, HandshakeBelowTls13_IsRefused) {
  const TestAuthority authority;
  const auto server = authority.Load("node/a");
  const auto client = authority.Load("node/b");
  const auto context = client->ClientContext();
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  EXPECT_FALSE(Handshake(server->ServerContext(), context).done());
}

TEST(Identity, DeniedName_IsRefusedOnNewAndOpenConnections) {
  const TestAuthority authority;
  const auto server = authority.Load("node/a");
  const auto client = authority.Load("node/b");
  const Handshake open(server->ServerContext(), client->ClientContext());
  ASSERT_TRUE(open.done());
  const auto context = server->ServerContext();  // also one that was made before
  authority.Deny("node/b");
  ASSERT_TRUE(Eventually([&] { return !server->PeerOf(open.server()).ok(); }));
  EXPECT_EQ(server->PeerOf(open.server()).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(Handshake(context, client->ClientContext()).done());
  EXPECT_TRUE(Connects(*server, *server));
}

TEST(Identity, ReplacedFiles_AreUsedAndOpenConnectionsStay) {
  const TestAuthority authority;
  const auto server = authority.Load("node/a");
  const auto client = authority.Load("node/b");
  const Handshake open(server->ServerContext(), client->ClientContext());
  ASSERT_TRUE(open.done());
  const std::string before = server->self().serial_number;
  authority.Issue("node/a");
  ASSERT_TRUE(Eventually([&] { return server->self().serial_number != before; }));
  EXPECT_TRUE(client->PeerOf(open.client()).ok());
  const Handshake fresh(server->ServerContext(), client->ClientContext());
  ASSERT_TRUE(fresh.done());
  const auto seen = DescribeCertificate(*SSL_get0_peer_certificate(fresh.client()));
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(seen->serial_number, server->self().serial_number);
}

TEST(Identity, UnusableReplacedFiles_KeepPreviousIdentity) {
  const TestAuthority authority;
  const auto files = authority.Issue("node/a");
  const auto identity = *Identity::Load(files, absl::Milliseconds(10));
  const std::string before = identity->self().serial_number;
  std::ofstream(files.certificate, std::ios::trunc) << "nonsense";
  // The denied names are read in the same look, so that they tell when it was over.
  authority.Deny("node/c");
  const Name denied{.trust_domain = "test.example", .role = Role::kNode, .name = "c"};
  ASSERT_TRUE(Eventually([&] { return !identity->CheckName(denied).ok(); }));
  EXPECT_EQ(identity->self().serial_number, before);
  EXPECT_TRUE(Connects(*identity, *identity));
}

// Neither a descriptor that was not free for a moment nor a mode changes a file's content or its time.
TEST(Identity, KeyThatIsMadePrivateLater_IsUsed) {
  const TestAuthority authority;
  const auto files = authority.Issue("node/a");
  const auto renewed = authority.Issue("node/b");
  const auto identity = *Identity::Load(files, absl::Milliseconds(10));
  ASSERT_EQ(chmod(renewed.key.c_str(), 0644), 0);
  ASSERT_EQ(rename(renewed.key.c_str(), files.key.c_str()), 0);
  ASSERT_EQ(rename(renewed.certificate.c_str(), files.certificate.c_str()), 0);
  // The denied names are read in the same look, so that they tell when it was over.
  authority.Deny("node/c");
  const Name denied{.trust_domain = "test.example", .role = Role::kNode, .name = "c"};
  ASSERT_TRUE(Eventually([&] { return !identity->CheckName(denied).ok(); }));
  EXPECT_EQ(identity->self().name.name, "a");
  ASSERT_EQ(chmod(files.key.c_str(), 0600), 0);
  EXPECT_TRUE(Eventually([&] { return identity->self().name.name == "b"; }));
}

TEST(Identity, ExpiredCertificate_IsNotLoaded) {
  const TestAuthority authority;
  const auto identity = Identity::Load(authority.Issue("node/a", -absl::Hours(1)));
  EXPECT_EQ(identity.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(identity.status().message()), HasSubstr("expired"));
}

TEST(Identity, ExpiredPeerCertificate_IsRefused) {
  const TestAuthority authority;
  const auto identity = authority.Load("node/a");
  Certificate peer = identity->self();
  EXPECT_TRUE(identity->CheckPeer(peer).ok());
  peer.not_after = absl::Now() - absl::Seconds(1);
  EXPECT_EQ(identity->CheckPeer(peer).code(), absl::StatusCode::kUnauthenticated);
}

TEST(Identity, MismatchedFiles_AreRefusedWithTheirConfigurationKey) {
  const TestAuthority authority;
  const TestAuthority other;
  const auto good = authority.Issue("node/a");
  const auto another = authority.Issue("node/b");
  const auto refused = [](const Identity::Files& files) {
    const auto identity = Identity::Load(files);
    EXPECT_FALSE(identity.ok());
    return std::string(identity.status().message());
  };
  auto files = good;
  files.key = another.key;
  EXPECT_THAT(refused(files), HasSubstr("security.key"));
  files = good;
  files.ca = other.ca();
  EXPECT_THAT(refused(files), HasSubstr("security.certificate"));
  files = good;
  files.ca = good.key;
  EXPECT_THAT(refused(files), HasSubstr("security.ca"));
  files = good;
  files.ca = "";
  EXPECT_THAT(refused(files), HasSubstr("security.ca is empty"));
  files = good;
  files.trust_domain = "other.example";
  EXPECT_THAT(refused(files), HasSubstr("security.trust_domain is other.example"));
  files = good;
  files.certificate += ".missing";
  EXPECT_THAT(refused(files), HasSubstr("security.certificate"));
  chmod(good.key.c_str(), 0644);
  EXPECT_THAT(refused(good), HasSubstr("chmod 0600"));
}

TEST(Identity, InvalidDeniedName_IsReportedWithItsLine) {
  const TestAuthority authority;
  const auto files = authority.Issue("node/a");
  std::ofstream(files.denied, std::ios::trunc) << "# none yet\n\nnode/b\n";
  EXPECT_THAT(std::string(Identity::Load(files).status().message()), HasSubstr("denied:3"));
}

TEST(Identity, CertificateWithoutSpiffeName_IsRefused) {
  EXPECT_EQ(ReadCertificate("nonsense").status().code(), absl::StatusCode::kInvalidArgument);
  const TestAuthority authority;
  std::ifstream file(authority.ca());
  const std::string ca((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(std::string(ReadCertificate(ca).status().message()), HasSubstr("the name has no path"));
}

TEST(Authority, IssueCertificate_NeedsMatchingAuthorityKey) {
  const Validity day{absl::Now(), absl::Now() + absl::Hours(24)};
  const auto one = *MakeAuthority("test.example", day);
  const auto two = *MakeAuthority("test.example", day);
  const Name name{.trust_domain = "test.example", .role = Role::kClient, .name = ""};
  EXPECT_TRUE(IssueCertificate(one, name, day).ok());
  EXPECT_EQ(IssueCertificate({one.certificate, two.key}, name, day).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(IssueCertificate({"", ""}, name, day).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*DomainOfAuthority(one.certificate), "test.example");
  EXPECT_EQ(DomainOfAuthority(IssueCertificate(one, name, day)->certificate).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeAuthority("Test Example", day).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Authority, ReadCertificate_ReturnsNameAndValidity) {
  const absl::Time now = absl::FromUnixSeconds(1800000000);
  const Validity year{now, now + absl::Hours(24 * 365)};
  const auto authority = *MakeAuthority("test.example", year);
  const Name name{.trust_domain = "test.example", .role = Role::kNode, .name = "rack-7"};
  const auto issued = IssueCertificate(authority, name, {now, now + absl::Hours(1)});
  ASSERT_TRUE(issued.ok()) << issued.status();
  const auto certificate = ReadCertificate(issued->certificate);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_EQ(certificate->name, name);
  EXPECT_EQ(certificate->not_before, now);
  EXPECT_EQ(certificate->not_after, now + absl::Hours(1));
  EXPECT_EQ(certificate->issuer, "TensorCast authority of test.example");
  EXPECT_GE(certificate->serial_number.size(), 30u);
}

}  // namespace
}  // namespace tensorcast::security::identity_test
