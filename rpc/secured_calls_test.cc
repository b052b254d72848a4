// Which callers are admitted, and which may make which call, over real sockets with certificates.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "proto/differences.pb.h"
#include "proto/imports.pb.h"
#include "proto/live.pb.h"
#include "proto/possession.pb.h"
#include "proto/records.pb.h"
#include "proto/versions.pb.h"
#include "rpc/call.h"
#include "rpc/call_contexts.h"
#include "rpc/credentials.h"
#include "rpc/endpoint_access.h"
#include "rpc/rpc_test_service.h"
#include "security/roles.h"
#include "security/testing/test_authority.h"

namespace tensorcast::rpc::secured_calls_test {
namespace {

using security::Only;
using security::Role;
using security::testing::TestAuthority;
using tensorcast::testing::Eventually;
using tensorcast::testing::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Stub = v1::GlobalStore::Stub;

std::set<std::string> CallsOf(const google::protobuf::FileDescriptor& file) {
  std::set<std::string> calls;
  for (int i = 0; i < file.service_count(); ++i) {
    for (int j = 0; j < file.service(i)->method_count(); ++j) {
      calls.insert(absl::StrCat(file.service(i)->name(), "/", file.service(i)->method(j)->name()));
    }
  }
  return calls;
}

TEST(Roles, CallTable_HasExactlyOneRowPerCall) {
  std::set<std::string> calls = CallsOf(*v1::RegisterNodeRequest::descriptor()->file());
  calls.merge(CallsOf(*v1::OpenPullRequest::descriptor()->file()));
  calls.merge(CallsOf(*v1::ProveRequest::descriptor()->file()));
  calls.merge(CallsOf(*v1::ReportWrongDifferenceRequest::descriptor()->file()));
  calls.merge(CallsOf(*v1::ClaimImportRequest::descriptor()->file()));
  calls.merge(CallsOf(*v1::ReadAllRequest::descriptor()->file()));
  calls.merge(CallsOf(*v1::FollowKeyRequest::descriptor()->file()));
  calls.merge(CallsOf(*v1::AttachLiveRequest::descriptor()->file()));
  std::multiset<std::string> rows;
  for (const security::CallRow& row : security::CallTable()) rows.insert(std::string(row.call));
  EXPECT_EQ(std::multiset<std::string>(calls.begin(), calls.end()), rows);
  EXPECT_GT(rows.size(), 30u);
}

// Answers, and remembers the caller.
class RecordingStore final : public v1::GlobalStore::CallbackService {
 public:
  explicit RecordingStore(Executor* executor) : executor_(*executor) {}

  grpc::ServerUnaryReactor* BindKey(grpc::CallbackServerContext* call, const v1::BindKeyRequest*,
                                    v1::BindKeyResponse*) override {
    return Record(call);
  }
  grpc::ServerUnaryReactor* DeleteKey(grpc::CallbackServerContext* call, const v1::DeleteKeyRequest*,
                                      v1::DeleteKeyResponse*) override {
    return Record(call);
  }
  grpc::ServerWriteReactor<v1::WatchKeysResponse>* WatchKeys(grpc::CallbackServerContext* call,
                                                             const v1::WatchKeysRequest*) override {
    return HandleWriteStream<v1::WatchKeysResponse>(
        call, executor_, [](const RequestContext& context, StreamWriter<v1::WatchKeysResponse>& writer) {
          absl::Notification cancelled;
          const auto registration = context.cancellation.OnCancel([&] { cancelled.Notify(); });
          if (absl::Status first = writer.Write({}); !first.ok()) return first;
          cancelled.WaitForNotification();
          return context.Check("a watch");
        });
  }

  int calls() const { return calls_; }
  Caller caller() {
    absl::MutexLock lock(&mutex_);
    return caller_;
  }

 private:
  grpc::ServerUnaryReactor* Record(grpc::CallbackServerContext* call) {
    const Caller caller = CallerOf(*call);
    return HandleUnary(call, executor_, [this, caller](const RequestContext&) {
      ++calls_;
      absl::MutexLock lock(&mutex_);
      caller_ = caller;
      return absl::OkStatus();
    });
  }

  Executor& executor_;
  std::atomic<int> calls_{0};
  absl::Mutex mutex_;
  Caller caller_ ABSL_GUARDED_BY(mutex_);
};

class SecuredCalls : public ::testing::Test {
 protected:
  void Start(ServerOptions options) {
    options.services = {&service_};
    auto started = Server::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  void StartStore() { Start({.listen = {"127.0.0.1:0"}, .credentials = Own("global-store")}); }

  std::shared_ptr<const Credentials> Own(std::string_view path) const {
    return std::make_shared<Credentials>(authority_.Load(path));
  }
  // A channel with a connection of its own.
  std::unique_ptr<Stub> StubAs(std::shared_ptr<const Credentials> own,
                               security::RoleSet servers = security::Only(Role::kGlobalStore)) {
    return v1::GlobalStore::NewStub(
        MakeChannel(server_->addresses()[0],
                    {.max_message_bytes = next_++, .credentials = std::move(own), .servers = servers}));
  }
  static absl::Status Bind(Stub& stub, CallOptions options = {.retry_for = absl::ZeroDuration()}) {
    return CallUnary(stub, &Stub::BindKey, Within(absl::Seconds(60)), {}, options).status();
  }
  static absl::Status Delete(Stub& stub, CallOptions options = {.retry_for = absl::ZeroDuration()}) {
    return CallUnary(stub, &Stub::DeleteKey, Within(absl::Seconds(60)), {}, options).status();
  }

  const TestAuthority authority_;
  int next_ = kMaxMessageBytes;
  Executor executor_;
  RecordingStore service_{&executor_};
  std::unique_ptr<Server> server_;
};

TEST_F(SecuredCalls, CallerWithRequiredRole_IsServedAndKnownByName) {
  StartStore();
  const auto stub = StubAs(Own("client/trainer"));
  const absl::Status bound = Bind(*stub);
  ASSERT_TRUE(bound.ok()) << bound;
  EXPECT_EQ(service_.caller().peer, authority_.Uri("client/trainer"));
  EXPECT_EQ(service_.caller().asking, authority_.Uri("client/trainer"));
}

TEST_F(SecuredCalls, CallerOfOtherRole_IsRefusedAndToldRequiredRole) {
  StartStore();
  const auto stub = StubAs(Own("client/trainer"));
  const absl::Status refused = Delete(*stub);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(authority_.Uri("client/trainer")), HasSubstr("GlobalStore/DeleteKey"),
                    HasSubstr("the call requires the role operator; connect to the global store with an "
                              "operator's certificate")));
  EXPECT_EQ(service_.calls(), 0);
  EXPECT_TRUE(Delete(*StubAs(Own("operator/ada"))).ok());
}

TEST_F(SecuredCalls, NodeOnBehalfOfOthers_MayOnlyMakeClientCalls) {
  StartStore();
  const auto stub = StubAs(Own("node/a"));
  EXPECT_EQ(Bind(*stub).code(), absl::StatusCode::kPermissionDenied);
  for (const std::string& asking :
       {std::string("client"), std::string("operator"), authority_.Uri("operator/ada")}) {
    const CallOptions options{.retry_for = absl::ZeroDuration(), .on_behalf_of = asking};
    EXPECT_TRUE(Bind(*stub, options).ok()) << asking;
    EXPECT_EQ(service_.caller().peer, authority_.Uri("node/a"));
    EXPECT_EQ(service_.caller().asking, asking);
    EXPECT_EQ(Delete(*stub, options).code(), absl::StatusCode::kPermissionDenied) << asking;
  }
}

TEST_F(SecuredCalls, OnBehalfOf_IsAllowedToNodesForOurClientsOnly) {
  StartStore();
  const auto node = StubAs(Own("node/a"));
  for (const std::string& asking :
       {std::string("node"), authority_.Uri("node/b"), authority_.Uri("global-store"), std::string("anybody"),
        std::string("spiffe://other.example/tensorcast/client/b")}) {
    EXPECT_EQ(Bind(*node, {.retry_for = absl::ZeroDuration(), .on_behalf_of = asking}).code(),
              absl::StatusCode::kPermissionDenied)
        << asking;
  }
  const auto client = StubAs(Own("client/b"));
  EXPECT_EQ(
      Delete(*client, {.retry_for = absl::ZeroDuration(), .on_behalf_of = authority_.Uri("operator/ada")})
          .code(),
      absl::StatusCode::kPermissionDenied);
}

TEST_F(SecuredCalls, CallerWithoutOurCertificate_IsRefused) {
  StartStore();
  const TestAuthority other;  // of the same trust domain, even
  const auto plain = v1::GlobalStore::NewStub(MakeChannel(server_->addresses()[0], {}));
  const auto unauthenticated = v1::GlobalStore::NewStub(MakeChannel(
      server_->addresses()[0], {.credentials = std::make_shared<Credentials>(other.Load("operator"))}));
  EXPECT_EQ(Bind(*plain).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Bind(*unauthenticated).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service_.calls(), 0);
  EXPECT_TRUE(Bind(*StubAs(Own("operator"))).ok());
}

TEST_F(SecuredCalls, ServerWithCertificate_TellsWhenItEnds) {
  const auto left = [] {
    return otel::testing::ReadGauge(otel::metrics::kCertificateRemainingSeconds.id(), {});
  };
  EXPECT_EQ(left(), 0);
  const std::shared_ptr<const Credentials> own = Own("node/a");
  Start({.listen = {"127.0.0.1:0"}, .credentials = own});
  const double expected = absl::ToDoubleSeconds(own->identity().self().not_after - absl::Now());
  EXPECT_NEAR(left(), expected, 60);
}

TEST_F(SecuredCalls, ServerOfOtherRole_GetsNoCall) {
  Start({.listen = {"127.0.0.1:0"}, .credentials = Own("node/a")});
  const absl::Status refused = Bind(*StubAs(Own("operator"), Only(Role::kGlobalStore)));
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service_.calls(), 0);
  EXPECT_TRUE(Bind(*StubAs(Own("operator"), Only(Role::kNode))).ok());
}

TEST_F(SecuredCalls, ServerOfOtherName_GetsNoCall) {
  Start({.listen = {"127.0.0.1:0"}, .credentials = Own("node/a")});
  const auto stub_of = [&](const std::string& name) {
    return v1::GlobalStore::NewStub(
        MakeChannel(server_->addresses()[0],
                    {.credentials = Own("operator"), .servers = Only(Role::kNode), .server_name = name}));
  };
  EXPECT_EQ(Bind(*stub_of("b")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(service_.calls(), 0);
  EXPECT_TRUE(Bind(*stub_of("a")).ok());
}

TEST_F(SecuredCalls, NameDeniedLater_CallsAreRefusedAndStreamsEnd) {
  StartStore();
  const auto stub = StubAs(Own("client/b"));
  ASSERT_TRUE(Bind(*stub).ok());
  grpc::ClientContext context;
  const auto watch = stub->WatchKeys(&context, {});
  v1::WatchKeysResponse response;
  ASSERT_TRUE(watch->Read(&response));
  authority_.Deny("client/b");
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(Eventually([&] { return Bind(*stub).code() == absl::StatusCode::kPermissionDenied; }));
  EXPECT_TRUE(Bind(*StubAs(Own("client/c"))).ok());
}

TEST_F(SecuredCalls, ReplacedCertificate_IsUsedWhileCallsContinue) {
  StartStore();
  const auto own = Own("client/b");
  const auto stub = StubAs(own);
  grpc::ClientContext context;
  const auto watch = stub->WatchKeys(&context, {});
  v1::WatchKeysResponse response;
  ASSERT_TRUE(watch->Read(&response));
  // The client's own, which shows in the name that the server sees: another name in the same files.
  const auto files = own->identity().files();
  const auto renamed = authority_.Issue("client/c");
  std::rename(renamed.key.c_str(), files.key.c_str());
  std::rename(renamed.certificate.c_str(), files.certificate.c_str());
  ASSERT_TRUE(Eventually([&] {
    // Each on a connection of its own.
    return Bind(*StubAs(own)).ok() && service_.caller().peer == authority_.Uri("client/c");
  }));
  ASSERT_TRUE(Bind(*stub).ok());
  EXPECT_EQ(service_.caller().peer, authority_.Uri("client/b"));
  context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(SecuredCalls, UnixSocket_HasConfiguredRoles) {
  const TempFolder folder;
  Start({.listen = {"unix:" + folder.File("client.sock")},
         .unix_roles = Only(Role::kClient),
         .operator_socket = "/run/tc/daemon.sock"});
  const auto stub = StubAs(nullptr);
  EXPECT_TRUE(Bind(*stub).ok());
  EXPECT_EQ(service_.caller().peer, "");
  EXPECT_EQ(service_.caller().asking, "client");
  const absl::Status refused = Delete(*stub);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(
      refused.message(),
      absl::StrCat("call GlobalStore/DeleteKey: the call requires the role operator, and the socket ",
                   folder.File("client.sock"),
                   " grants the role client; connect to /run/tc/daemon.sock as user ", UserText(geteuid())));
}

TEST_F(SecuredCalls, UnixSocketBesideTlsPort_IsClearWithOperatorRole) {
  const TempFolder folder;
  Start({.listen = {"unix:" + folder.File("daemon.sock"), "127.0.0.1:0"}, .credentials = Own("node/a")});
  EXPECT_TRUE(Delete(*StubAs(Own("client/b"))).ok());  // with any certificate: this is not TLS
  EXPECT_EQ(service_.caller().asking, "operator");
}

TEST_F(SecuredCalls, ServerWithoutCertificates_ServesEveryCaller) {
  Start({.listen = {"127.0.0.1:0"}});
  EXPECT_TRUE(Delete(*StubAs(nullptr)).ok());
  EXPECT_EQ(service_.caller().asking, "");
}

TEST_F(SecuredCalls, Health_IsAnsweredToCertificateHoldersOnly) {
  StartStore();
  const std::string& address = server_->addresses()[0];
  for (const char* path : {"node/a", "client/b", "operator", "global-store"}) {
    const absl::Status health = CheckHealth(address, absl::Seconds(60), Own(path));
    EXPECT_TRUE(health.ok()) << path << ": " << health;
  }
  EXPECT_FALSE(CheckHealth(address, absl::Seconds(60)).ok());
}

TEST_F(SecuredCalls, CallerOverConnectionLimit_GetsReasonOverTls) {
  Start({.listen = {"127.0.0.1:0"}, .max_connections = 1, .credentials = Own("global-store")});
  const auto first = StubAs(Own("client/a"));
  ASSERT_TRUE(Bind(*first).ok());
  EXPECT_THAT(std::string(Bind(*StubAs(Own("client/b"))).message()),
              HasSubstr("already has 1 connections, its limit"));
}

}  // namespace
}  // namespace tensorcast::rpc::secured_calls_test
