// Pulls between ends that show certificates: which peers are let in, and which are not.
#include <gmock/gmock.h>
#include <openssl/ssl.h>

#include "base/testing/eventually.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "security/testing/test_authority.h"
#include "transport/pull/wire.h"
#include "transport/tcp/raw_peer.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/testing/test_image.h"

namespace tensorcast::transport::tcp::tcp_tls_test {
namespace {

using security::testing::TestAuthority;

constexpr uint64_t kImageBytes = 100000;

class TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    source_ = NewTransport(authority_.Load("node/source"));
    WritePattern(memory_.span(0, kImageBytes), 0);
    serving_ = Serve(/*receiver=*/"");
  }

  std::unique_ptr<Serving> Serve(std::string_view receiver) {
    return source_
        ->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory_.span(0, kImageBytes)}), receiver)
        .value();
  }

  std::unique_ptr<TcpTransport> NewTransport(std::shared_ptr<security::Identity> identity) {
    auto transport = TcpTransport::Create({.identity = std::move(identity)}).value();
    EXPECT_EQ(transport->RegisterMemory(memory_.data(), memory_.bytes()), absl::OkStatus());
    return transport;
  }

  // A pull of the image, by this identity.
  absl::Status PullAs(std::shared_ptr<security::Identity> identity) {
    return PullBy(*NewTransport(std::move(identity)), serving_->descriptor());
  }
  absl::Status PullBy(TcpTransport& receiver, const std::string& descriptor) {
    auto pull = receiver.Connect(RequestContext::Background(absl::Seconds(30)), descriptor);
    if (!pull.ok()) return pull.status();
    Completions done;
    (*pull)->Fetch(0, {Destination()}, SteadyTime::InfiniteFuture(), done.Expect());
    EXPECT_TRUE(done.Wait());
    return done.statuses()[0];
  }
  HostSpan Destination() const { return memory_.span(kImageBytes, kImageBytes); }

  // No peer got a byte, and a node is served as before.
  void ExpectNothingServedButToNodes() {
    EXPECT_EQ(serving_->stats().bytes, 0u);
    ExpectServed("node/other");
  }
  void ExpectServed(const char* node) {
    EXPECT_EQ(PullAs(authority_.Load(node)), absl::OkStatus());
    EXPECT_TRUE(HoldsPattern(Destination(), 0));
  }

  TestMemory memory_{1 << 20};
  TestAuthority authority_;
  std::unique_ptr<TcpTransport> source_;
  std::unique_ptr<Serving> serving_;
};

bool IsRefusal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) || absl::IsUnavailable(status);
}

TEST_F(TlsTest, NodeCertificate_MayPullFromNode) {
  EXPECT_EQ(PullAs(authority_.Load("node/receiver")), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(Destination(), 0));
}

TEST_F(TlsTest, CertificateOfOtherAuthority_IsRefused) {
  const TestAuthority other;
  EXPECT_TRUE(IsRefusal(PullAs(other.Load("node/receiver"))));
  ExpectNothingServedButToNodes();
}

TEST_F(TlsTest, CertificateOfOtherRole_IsRefused) {
  for (const char* name : {"client/c", "operator/o", "global-store/g"}) {
    EXPECT_TRUE(IsRefusal(PullAs(authority_.Load(name)))) << name;
  }
  ExpectNothingServedButToNodes();
}

TEST_F(TlsTest, SourceWithOtherNameThanDescriptor_IsRefused) {
  Descriptor descriptor = DecodeDescriptor(kTcpLane, serving_->descriptor()).value();
  EXPECT_EQ(descriptor.source, authority_.Uri("node/source"));
  descriptor.source = authority_.Uri("node/another");
  const auto receiver = NewTransport(authority_.Load("node/receiver"));
  const absl::Status status = PullBy(*receiver, EncodeDescriptor(descriptor));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(status.message(), ::testing::AllOf(::testing::HasSubstr(authority_.Uri("node/source")),
                                                 ::testing::HasSubstr(descriptor.source)));
  ExpectNothingServedButToNodes();
}

TEST_F(TlsTest, StolenPullId_IsRefusedAndItsReceiverServed) {
  otel::testing::RecordedTelemetry recorded;
  serving_ = Serve("receiver");
  const absl::Status stolen = PullAs(authority_.Load("node/thief"));
  EXPECT_EQ(stolen.code(), absl::StatusCode::kPermissionDenied) << stolen;
  EXPECT_THAT(stolen.message(), ::testing::HasSubstr(authority_.Uri("node/thief")));
  EXPECT_EQ(serving_->stats().bytes, 0u);
  EXPECT_FALSE(serving_->stats().receiver_trace.IsValid()) << "it was let in";
  EXPECT_EQ(recorded.Sum(otel::metrics::kP2pConnectionsRefused.id(), {"tcp", "receiver"}), 1);
  EXPECT_EQ(PullAs(authority_.Load("node/receiver")), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(Destination(), 0));
}

TEST_F(TlsTest, ConnectionsOfOnePull_ResumeTheFirstSession) {
  constexpr uint64_t kLargeBytes = uint64_t{17} << 20;  // worth two connections
  TestMemory memory(2 * kLargeBytes);
  ASSERT_EQ(source_->RegisterMemory(memory.data(), memory.bytes()), absl::OkStatus());
  const auto serving =
      source_
          ->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory.span(0, kLargeBytes)}),
                  /*receiver=*/"")
          .value();
  const auto identity = authority_.Load("node/receiver");
  const auto receiver = TcpTransport::Create({.connections = 4, .identity = identity}).value();
  ASSERT_EQ(receiver->RegisterMemory(memory.data(), memory.bytes()), absl::OkStatus());
  const auto pull =
      receiver->Connect(RequestContext::Background(absl::Seconds(30)), serving->descriptor()).value();
  const auto context = identity->ClientContext();
  EXPECT_TRUE(
      ::tensorcast::testing::Eventually([&] { return SSL_CTX_sess_connect_good(context.get()) == 2; }));
  EXPECT_EQ(SSL_CTX_sess_hits(context.get()), 1);
}

TEST_F(TlsTest, CertificateOnOneEndOnly_IsRefused) {
  EXPECT_EQ(PullAs(nullptr).code(), absl::StatusCode::kFailedPrecondition);
  const auto plain = NewTransport(nullptr);
  const auto serving =
      plain
          ->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory_.span(0, kImageBytes)}),
                  /*receiver=*/"")
          .value();
  const auto receiver = NewTransport(authority_.Load("node/receiver"));
  EXPECT_EQ(PullBy(*receiver, serving->descriptor()).code(), absl::StatusCode::kFailedPrecondition);
  ExpectNothingServedButToNodes();
}

TEST_F(TlsTest, PullIdWithoutCertificate_ClosesTheConnection) {
  RawPeer peer = RawPeer::ConnectTo(source_->address());
  peer.Send(Hello{.pull_id = DecodeDescriptor(kTcpLane, serving_->descriptor())->pull_id});
  EXPECT_TRUE(peer.IsClosed());
  ExpectNothingServedButToNodes();
}

TEST_F(TlsTest, NextPull_ResumesSessionUntilCertificateChanges) {
  const security::Identity::Files files = authority_.Issue("node/receiver");
  const auto identity = security::Identity::Load(files, absl::Milliseconds(10)).value();
  const auto receiver = NewTransport(identity);
  const auto first = identity->ClientContext();
  for (const int hits : {0, 1, 2}) {
    ASSERT_EQ(PullBy(*receiver, serving_->descriptor()), absl::OkStatus());
    EXPECT_EQ(SSL_CTX_sess_hits(first.get()), hits);
  }
  authority_.Issue("node/receiver");
  ASSERT_TRUE(::tensorcast::testing::Eventually([&] { return identity->ClientContext() != first; }));
  ASSERT_EQ(PullBy(*receiver, serving_->descriptor()), absl::OkStatus());
  EXPECT_EQ(SSL_CTX_sess_hits(identity->ClientContext().get()), 0);
}

TEST_F(TlsTest, DeniedReceiver_IsRefused) {
  const auto denied = authority_.Load("node/denied");
  authority_.Deny("node/denied");
  // The files are looked at every second.
  ASSERT_TRUE(::tensorcast::testing::Eventually([&] { return IsRefusal(PullAs(denied)); }));
}

// A pull of the image that is open, and was served a first fetch.
class OpenPull {
 public:
  OpenPull(std::unique_ptr<TcpTransport> receiver, const std::string& descriptor, HostSpan destination)
      : receiver_(std::move(receiver)), destination_(destination) {
    auto pull = receiver_->Connect(RequestContext::Background(absl::Seconds(30)), descriptor);
    connected_ = pull.status();
    if (pull.ok()) pull_ = *std::move(pull);
  }
  // The whole image, once more.
  absl::Status Fetch() {
    if (pull_ == nullptr) return connected_;
    Completions done;
    pull_->Fetch(0, {destination_}, SteadyTime::InfiniteFuture(), done.Expect());
    EXPECT_TRUE(done.Wait());
    return done.statuses()[0];
  }
  // Why it does not go on any more, at last.
  absl::Status End() {
    absl::Status end;
    EXPECT_TRUE(::tensorcast::testing::Eventually([&] { return !(end = Fetch()).ok(); }));
    return end;
  }

 private:
  const std::unique_ptr<TcpTransport> receiver_;
  const HostSpan destination_;
  absl::Status connected_;
  std::unique_ptr<Pull> pull_;
};

TEST_F(TlsTest, DeniedReceiver_LosesItsOpenPullWithReason) {
  otel::testing::RecordedTelemetry recorded;
  OpenPull pull(NewTransport(authority_.Load("node/receiver")), serving_->descriptor(), Destination());
  ASSERT_EQ(pull.Fetch(), absl::OkStatus());
  authority_.Deny("node/receiver");
  const absl::Status end = pull.End();
  EXPECT_EQ(end.code(), absl::StatusCode::kPermissionDenied) << end;
  EXPECT_THAT(end.message(), ::testing::HasSubstr(authority_.Uri("node/receiver") + ": security.denied"));
  EXPECT_EQ(recorded.Sum(otel::metrics::kP2pConnectionsRefused.id(), {"tcp", "ended"}), 1);
  ExpectServed("node/other");
}

TEST_F(TlsTest, DeniedSource_IsLeftByItsReceiver) {
  OpenPull pull(NewTransport(authority_.Load("node/receiver")), serving_->descriptor(), Destination());
  ASSERT_EQ(pull.Fetch(), absl::OkStatus());
  authority_.Deny("node/source");
  const absl::Status end = pull.End();
  EXPECT_EQ(end.code(), absl::StatusCode::kPermissionDenied) << end;
  EXPECT_THAT(end.message(), ::testing::HasSubstr(authority_.Uri("node/source") + ": security.denied"));
}

TEST_F(TlsTest, ExpiredReceiverCertificate_EndsItsPull) {
  absl::Status end;
  // On a busy machine a short time may be over before the two are introduced.
  for (const absl::Duration good_for : {absl::Seconds(2), absl::Seconds(8), absl::Seconds(30)}) {
    const auto identity = security::Identity::Load(authority_.Issue("node/brief", good_for));
    if (!identity.ok()) continue;
    OpenPull pull(NewTransport(*identity), serving_->descriptor(), Destination());
    if (!pull.Fetch().ok()) continue;
    end = pull.End();
    break;
  }
  EXPECT_EQ(end.code(), absl::StatusCode::kUnauthenticated) << end;
  EXPECT_THAT(end.message(), ::testing::HasSubstr("authenticate " + authority_.Uri("node/brief")));
  ExpectServed("node/other");
}

}  // namespace
}  // namespace tensorcast::transport::tcp::tcp_tls_test
